package tape

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"

	"example.com/conductor/keyfile"
)

// A sealed segment has its payloads under AES-256-GCM. The headers of records stay readable:
// scanning needs them, and they are authenticated with the payload.

const (
	// sealBytes is the growth of a sealed payload: a nonce of 12 bytes and a tag of 16.
	sealBytes = 28
	// sealInfo keeps keys of segments apart from other uses of the same file.
	sealInfo = "kvconductor journal segment %016x %016x"
)

var (
	errSealed   = errors.New("sealed: give the file of the server's setting journal.key_file with --key-file")
	errUnopened = errors.New("the key does not open the record")
)

// newAEAD returns the cipher of one segment. Each segment has its own key, so no record opens
// in another segment, and random nonces of one key stay few.
func (h header) newAEAD(key *keyfile.Key) cipher.AEAD {
	derived, err := hkdf.Key(sha256.New, key[:], nil, fmt.Sprintf(sealInfo, h.run, h.number), keyfile.Size)
	if err != nil {
		panic("BUG: a key of a segment cannot be derived: " + err.Error())
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		panic("BUG: a derived key has a wrong size: " + err.Error())
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("BUG: AES has no GCM: " + err.Error())
	}
	return aead
}

// recordBytes returns the bytes of a record in a file.
func (t *Tape) recordBytes(r *Record) int64 {
	n := int64(recordSize + len(r.Payload))
	if t.opts.Key != nil {
		n += sealBytes
	}
	return n
}
