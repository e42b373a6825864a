package snapshot

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"slices"

	"kvconductor/conductor"
	"kvconductor/events/journal"
	"kvconductor/keyfile"
)

// Key seals the salts of sources and contexts, which may be secrets, by AES-GCM. The zero
// value has no key: it leaves out what has a salt.
type Key struct{ aead cipher.AEAD }

// NoKey leaves out sources and contexts with a salt.
var NoKey = &Key{}

// fieldSealed is the name of a sealed salt.
const fieldSealed = conductor.FieldSalt + ".sealed"

// NewKey returns the key of a secret.
func NewKey(secret *keyfile.Key) (*Key, error) {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Key{aead}, err
}

// ReadKey reads a key file.
func ReadKey(name string) (*Key, error) {
	secret, err := keyfile.Read(name)
	if err != nil {
		return nil, err
	}
	return NewKey(secret)
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
