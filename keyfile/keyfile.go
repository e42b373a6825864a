// Package keyfile reads the files of keys that seal data on the disk: a key is Size bytes, or
// twice as many hexadecimal digits with space around them.
package keyfile

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
)

// Size is the length of a key in bytes, that of AES-256.
const Size = 32

// Key is a secret.
type Key [Size]byte

// Read reads the key in a file.
func Read(name string) (*Key, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	key, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return key, nil
}

// parse reads the key in the contents of a file.
func parse(text []byte) (*Key, error) {
	key := new(Key)
	if digits := bytes.TrimSpace(text); len(digits) == hex.EncodedLen(Size) {
		if _, err := hex.Decode(key[:], digits); err == nil {
			return key, nil
		}
	}
	if len(text) != Size {
		return nil, fmt.Errorf("a key has %d bytes or %d hexadecimal digits, the file has %d bytes", Size, hex.EncodedLen(Size), len(text))
	}
	copy(key[:], text)
	return key, nil
}
