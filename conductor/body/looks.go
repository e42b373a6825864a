package body

import (
	"bytes"
	"regexp"
	"slices"
)

// bom is how some programs of Windows begin text in UTF-8. It says nothing, so it is skipped.
var bom = []byte("\xef\xbb\xbf")

// form finds the beginning of a form that is sent as application/x-www-form-urlencoded.
var form = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.%+-]{0,63}=`)

// Looks returns what a body in a codec, which cannot be read, seems to be, and how to send it, in words that follow a colon; "" if
// it looks like nothing known. also are the other codecs that its path reads, by their media types.
func Looks(src []byte, in Codec, also ...Codec) string {
	another := func(codec Codec) string {
		if !slices.Contains(also, codec) {
			return "it looks like " + codec.String() + "; this path reads " + in.String() + " alone"
		}
		return "it looks like " + codec.String() + ", which needs the header Content-Type: " + codec.ContentType()
	}
	is := func(beginnings ...string) bool {
		for _, b := range beginnings {
			if bytes.HasPrefix(src, []byte(b)) {
				return true
			}
		}
		return false
	}
	switch {
	case len(src) == 0:
		return ""
	case is("\x1f\x8b"):
		return "it looks like gzip, which needs the header Content-Encoding: gzip"
	case is("\x28\xb5\x2f\xfd"):
		return "it looks like zstd, which needs the header Content-Encoding: zstd"
	case is("\x78\x01", "\x78\x5e", "\x78\x9c", "\x78\xda"):
		return "it looks like deflate, which is not supported: gzip and zstd are"
	case in == Msgpack && is("{", "[", "\xef\xbb\xbf{"):
		return another(JSON)
	case in == Msgpack:
		return ""
	case is("\xff\xfe", "\xfe\xff", "{\x00", "\x00{"):
		return "it looks like UTF-16; send it in UTF-8"
	case src[0]&0xf0 == 0x80, src[0] == 0xde, src[0] == 0xdf:
		return another(Msgpack)
	case is("--") && bytes.Contains(src, []byte("\r\nContent-Disposition:")), form.Match(src):
		return "it looks like a form; send JSON with the header Content-Type: application/json"
	case is("'"):
		return "it begins with the quote of a shell"
	}
	return ""
}
