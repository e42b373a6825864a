package body

import (
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestLooks holds what bodies that cannot be read seem to be.
func TestLooks(t *testing.T) {
	f := func(src string, in Codec, want string, also ...Codec) {
		t.Helper()
		if got := Looks([]byte(src), in, also...); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
	for _, in := range []Codec{JSON, Msgpack} {
		f("\x1f\x8b\x08\x00", in, "Content-Encoding: gzip")
		f("\x28\xb5\x2f\xfd\x04", in, "Content-Encoding: zstd")
		f("\x78\x9c\x03", in, "deflate, which is not supported")
		f("", in, "")
	}
	f(`{"model":"m"}`, Msgpack, "JSON, which needs the header Content-Type: application/json", JSON)
	f(`{"model":"m"}`, Msgpack, "JSON; this path reads msgpack alone")
	f("\x81\xa1", Msgpack, "")
	f("\xff\xfe{\x00", JSON, "UTF-16; send it in UTF-8")
	f("\xfe\xff\x00{", JSON, "UTF-16")
	f("{\x00\"\x00", JSON, "UTF-16")
	f("\x00{\x00\"", JSON, "UTF-16")
	f("\x85\xa5model", JSON, "msgpack, which needs the header Content-Type: application/msgpack", Msgpack)
	f("\xde\x00\x10", JSON, "msgpack; this path reads JSON alone")
	f("model=m&block_size=16", JSON, "a form; send JSON")
	f("--x\r\nContent-Disposition: form-data", JSON, "a form; send JSON")
	f("'{}'", JSON, "quote of a shell")
	f(`{"a":"b=c`, JSON, "")
	f("hello", JSON, "")
	f("{}{}", JSON, "")
}

// TestFillSkipsByteOrderMark holds that a mark costs nothing of the body, and that the buffer is used again.
func TestFillSkipsByteOrderMark(t *testing.T) {
	r := Get()
	defer r.Release()
	for src, want := range map[string]string{
		"\xef\xbb\xbf{}": "{}", "\xef\xbb\xbf": "", "\xef\xbb": "\xef\xbb", "{\xef\xbb\xbf}": "{\xef\xbb\xbf}",
	} {
		must.Succeed(t, r.Fill(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(src)), 10))
		if string(r.Src) != want {
			t.Errorf("%q becomes %q", src, r.Src)
		}
	}
}
