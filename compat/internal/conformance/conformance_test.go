package conformance

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestCompareBody holds that a comparison can fail.
func TestCompareBody(t *testing.T) {
	f := func(want, got string, same bool) {
		t.Helper()
		var lines []string
		if want != "" {
			lines = strings.Split(want, "\n")
		}
		if err := CompareBody(lines, got); (err == nil) != same {
			t.Errorf("%q and %q: %v", want, got, err)
		}
	}
	f("", "", true)
	f("", "x", false)
	f("anything", "x", true)
	f("exact x", "x", true)
	f("exact x", "x\n", false)
	f("contains b\ncontains a", "abc", true)
	f("contains b\ncontains d", "abc", false)
	f(`{"a":1}`, `{"a":1,"b":2}`, true)
	f(`{"a":1,"...":"no"}`, `{"a":1,"b":2}`, false)
	f(`{"a":1,"b":"absent"}`, `{"a":1,"b":2}`, false)
	f(`{"a":"*"}`, `{"a":[]}`, true)
	f(`{"a":"*"}`, `{}`, false)
	f(`{}`, `{"a":1}`, false)
	f(`{"a":18446744073709551615}`, `{"a":18446744073709551615}`, true)
	f(`{"a":18446744073709551615}`, `{"a":18446744073709551614}`, false)
	f(`[1,2]`, `[1,2,3]`, false)
	f(`{"a":{"b":[1]}}`, `{"a":{"b":[2]}}`, false)
}

// TestDecodeValue holds that JSON becomes what msgpack can say beyond it.
func TestDecodeValue(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		v, err := DecodeValue(text)
		must.Succeed(t, err)
		packed, err := hex.DecodeString(want)
		must.Succeed(t, err)
		if got := Encode(v); !bytes.Equal(got, packed) {
			t.Errorf("%s: %x, want %s", text, got, want)
		}
	}
	f(`18446744073709551615`, "cfffffffffffffffff")
	f(`-1`, "ff")
	f(`1.5`, "cb3ff8000000000000")
	f(`{"$bin":"00ff"}`, "c40200ff")
	f(`{"b":1,"a":null,"b":2}`, "83a16201a161c0a16202")
	f(`[true,"x"]`, "92c3a178")
}
