package history

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"slices"
	"strings"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
	"example.com/conductor/keyfile"
)

// SealingKey seals the salts of sources and identities, which may be secrets, by AES-GCM. The zero
// value has no key: it leaves out what has a salt.
type SealingKey struct{ aead cipher.AEAD }

// NoKey leaves out sources and identities with a salt.
var NoKey = &SealingKey{}

// sealedSuffix ends the name of a sealed field.
const sealedSuffix = ".sealed"

// NewSealingKey returns the key of a secret.
func NewSealingKey(secret *keyfile.Key) (*SealingKey, error) {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &SealingKey{aead}, err
}

// ReadSealingKey reads a key file.
func ReadSealingKey(name string) (*SealingKey, error) {
	secret, err := keyfile.Read(name)
	if err != nil {
		return nil, err
	}
	return NewSealingKey(secret)
}

// Seal is a Sealer.
func (k *SealingKey) Seal(f []tape.Field) ([]tape.Field, bool) {
	at := slices.IndexFunc(f, func(f tape.Field) bool {
		return f.Name == registration.FieldSalt || f.Name == image.FieldSaltedSecret
	})
	switch {
	case at < 0:
		return f, true
	case k.aead == nil:
		return f, f[at].Name == image.FieldSaltedSecret // the salts are left out
	}
	f = slices.Clone(f)
	// #nosec G407 -- the cipher draws a random nonce itself (cipher.NewGCMWithRandomNonce)
	sealed := k.aead.Seal(nil, nil, []byte(f[at].Value), nil)
	f[at] = tape.Field{Name: f[at].Name + sealedSuffix, Value: base64.StdEncoding.EncodeToString(sealed)}
	return f, true
}

// Open is an Opener. It drops the secret of a deployment that it cannot open: the blocks without an
// adapter and a salt do without.
func (k *SealingKey) Open(f []tape.Field) ([]tape.Field, bool) {
	at := slices.IndexFunc(f, func(f tape.Field) bool { return strings.HasSuffix(f.Name, sealedSuffix) })
	if at < 0 {
		return f, true
	}
	f = slices.Clone(f)
	name := strings.TrimSuffix(f[at].Name, sealedSuffix)
	text, ok := k.openText(f[at].Value)
	switch {
	case ok:
		f[at] = tape.Field{Name: name, Value: text}
	case name == image.FieldSaltedSecret:
		f = slices.Delete(f, at, at+1)
	default:
		return nil, false
	}
	return f, true
}

// openText returns a sealed text.
func (k *SealingKey) openText(value string) (string, bool) {
	if k.aead == nil {
		return "", false
	}
	sealed, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return "", false
	}
	text, err := k.aead.Open(nil, nil, sealed, nil)
	return string(text), err == nil
}
