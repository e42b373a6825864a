package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"example.com/conductor/spelling"
)

// foreignFormats are what payloads begin with that are no msgpack, or that msgpack's first
// byte would take for a number.
var foreignFormats = []struct{ magic, name string }{
	{"\x1f\x8b", "gzip data"},
	{"\x28\xb5\x2f\xfd", "zstd data"},
	{"\x04\x22\x4d\x18", "lz4 data"},
	{"\x78\x01", "zlib data"},
	{"\x78\x5e", "zlib data"},
	{"\x78\x9c", "zlib data"},
	{"\x78\xda", "zlib data"},
	{"\x80\x02", "a Python pickle"},
	{"\x80\x03", "a Python pickle"},
	{"\x80\x04", "a Python pickle"},
	{"\x80\x05", "a Python pickle"},
	{"HTTP/", "HTTP"},
	{"GET ", "HTTP"},
	{"POST ", "HTTP"},
	{"PRI * HTTP/2", "HTTP/2"},
	{"\x16\x03", "TLS"},
	{"{", "JSON text"},
	{"[", "JSON text"},
}

// DescribeBeginning says in words what bytes begin with, for an operator who looks for what a
// publisher sends: "0x93, a msgpack array of 3". It shows no text of them.
func DescribeBeginning(p []byte) string {
	if len(p) == 0 {
		return "nothing, it is empty"
	}
	first := fmt.Sprintf("0x%02x, ", p[0])
	for _, f := range foreignFormats {
		if bytes.HasPrefix(p, []byte(f.magic)) {
			return first + f.name
		}
	}
	if len(p) > 1 && p[0] < 0x80 {
		if text := p[:min(len(p), 64)]; isText(text) {
			return first + "text"
		}
	}
	c := cursor{b: p, maxDepth: depthCap}
	switch k, n := c.readHeader(); k {
	case kNone:
		return first + "no msgpack"
	case kArray, kMap:
		return fmt.Sprintf("%s%s of %d", first, nameInMsgpack(k), n)
	case kStr, kBin, kExt:
		return fmt.Sprintf("%s%s of %s", first, nameInMsgpack(k), spelling.Count(n, "byte"))
	default:
		return first + nameInMsgpack(k)
	}
}

// nameInMsgpack is the name of a kind with its article, "a msgpack array".
func nameInMsgpack(k kind) string {
	if k == kNil {
		return "msgpack's nil"
	}
	_, name, _ := bytes.Cut([]byte(k.String()), []byte(" "))
	return "a msgpack " + string(name)
}

// isText reports whether bytes are printable ASCII, or UTF-8 that may be cut off at its end.
func isText(p []byte) bool {
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == utf8.RuneError && n == 1 && len(p) >= utf8.UTFMax {
			return false
		}
		p = p[n:]
	}
	return true
}

// LooksLikeBatch reports whether bytes begin as a batch does: an array of a time and a list.
func LooksLikeBatch(p []byte) bool {
	c := cursor{b: p, maxDepth: depthCap}
	if k, n := c.readHeader(); k != kArray || n < 2 {
		return false
	}
	switch k := c.peekKind(); k {
	case kFloat, kUint, kInt, kNil:
		c.skipValues(1)
	default:
		return false
	}
	return c.peekKind() == kArray
}
