package keyfile

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKey(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	f := func(text string, want *Key) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(name)
		if want == nil {
			if err == nil || !strings.Contains(err.Error(), name) || text != "" && strings.Contains(err.Error(), text) {
				t.Errorf("%q: %v", text, err)
			}
		} else if err != nil || *got != *want {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	key := Key(bytes.Repeat([]byte{0xa5}, Size))
	digits := hex.EncodeToString(key[:])
	f(string(key[:]), &key)
	f(digits, &key)
	f(" "+strings.ToUpper(digits)+"\r\n", &key)
	blank := Key(bytes.Repeat([]byte{'\n'}, Size))
	f(string(blank[:]), &blank)
	f("", nil)
	f(string(key[1:]), nil)
	f(string(key[:])+"\n", nil)
	f(digits[1:], nil)
	f(digits[1:]+"g", nil)
	if _, err := Read(name + ".none"); err == nil {
		t.Error("a file that is missing has a key")
	}
}
