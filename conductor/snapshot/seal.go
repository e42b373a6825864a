package snapshot

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"slices"

	"kvconductor/conductor"
	"kvconductor/events/journal"
)

// Key seals the salts of sources and contexts, which may be secrets, by AES-GCM. The zero
// value has no key: it leaves out what has a salt.
type Key struct{ aead cipher.AEAD }

// NoKey leaves out sources and contexts with a salt.
var NoKey = &Key{}

// KeyBytes is the length of a key.
const KeyBytes = 32

// fieldSealed is the name of a sealed salt.
const fieldSealed = conductor.FieldSalt + ".sealed"

// NewKey returns the key of some bytes, KeyBytes of them.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) != KeyBytes {
		return nil, fmt.Errorf("a key has %d bytes, got %d", KeyBytes, len(secret))
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Key{aead}, err
}

// ReadKey reads a key file: KeyBytes bytes, or twice as many hexadecimal digits.
func ReadKey(name string) (*Key, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return key, nil
}

// parseKey reads a key: KeyBytes bytes, or as many in hexadecimal digits.
func parseKey(text []byte) (*Key, error) {
	if digits := bytes.TrimSpace(text); len(digits) == hex.EncodedLen(KeyBytes) {
		secret := make([]byte, KeyBytes)
		if _, err := hex.Decode(secret, digits); err == nil {
			return NewKey(secret)
		}
	}
	return NewKey(text)
}

// Seal is a Sealer.
func (k *Key) Seal(f []journal.Field) ([]journal.Field, bool) {
	at := slices.IndexFunc(f, func(f journal.Field) bool { return f.Name == conductor.FieldSalt })
	switch {
	case at < 0:
		return f, true
	case k.aead == nil:
		return nil, false
	}
	f = slices.Clone(f)
	// #nosec G407 -- the cipher draws a random nonce itself (cipher.NewGCMWithRandomNonce)
	sealed := k.aead.Seal(nil, nil, []byte(f[at].Value), nil)
	f[at] = journal.Field{Name: fieldSealed, Value: base64.StdEncoding.EncodeToString(sealed)}
	return f, true
}

// Open is an Opener.
func (k *Key) Open(f []journal.Field) ([]journal.Field, bool) {
	at := slices.IndexFunc(f, func(f journal.Field) bool { return f.Name == fieldSealed })
	switch {
	case at < 0:
		return f, true
	case k.aead == nil:
		return nil, false
	}
	sealed, err := base64.StdEncoding.DecodeString(f[at].Value)
	if err != nil {
		return nil, false
	}
	salt, err := k.aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, false
	}
	f = slices.Clone(f)
	f[at] = journal.Field{Name: conductor.FieldSalt, Value: string(salt)}
	return f, true
}
