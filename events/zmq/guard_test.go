package zmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// frame encodes one ZMTP frame; size overrides the announced length if not 0.
func frame(flags byte, body string, size uint64) []byte {
	if size == 0 {
		size = uint64(len(body))
	}
	if size > 255 || flags&flagLong != 0 {
		b := binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
		return append(b, body...)
	}
	return append([]byte{flags, byte(size)}, body...)
}

// readConn is a net.Conn that only reads.
type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func TestGuard(t *testing.T) {
	f := func(limit int, want string, parts ...[]byte) {
		t.Helper()
		in := make([]byte, greetingSize) // whatever is in it, it is no frame
		for i := range in {
			in[i] = 0xff
		}
		in = append(in, bytes.Join(parts, nil)...)
		for name, cut := range map[string]func(io.Reader) io.Reader{
			"whole":   func(r io.Reader) io.Reader { return r },
			"by byte": iotest.OneByteReader,
		} {
			// What reads is as fine-grained as what is read.
			got, err := io.ReadAll(cut(newGuard(readConn{Reader: cut(bytes.NewReader(in))}, limit)))
			switch {
			case want == "" && (err != nil || !bytes.Equal(got, in)):
				t.Errorf("%s: passed %d of %d bytes: %v", name, len(got), len(in), err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: got %v, want something about %q", name, err, want)
			}
		}
	}
	long := strings.Repeat("x", 300)
	f(300, "", frame(0, "", 0), frame(0, "a", 0), frame(0, long, 0), frame(flagLong, "a", 0))
	f(300, "", frame(flagMore, long[:100], 0), frame(flagMore, "", 0), frame(0, long[:200], 0), frame(0, long, 0))
	f(300, "", frame(flagCommand, "\x04PING\x00\x00", 0), frame(0, long, 0))
	f(299, "300 bytes after 0", frame(0, long, 0))
	f(300, "201 bytes after 100", frame(flagMore, long[:100], 0), frame(0, long[:201], 0))
	f(1<<20, "9223372036854775808 bytes", frame(0, "", 1<<63))
	f(1<<20, "18446744073709551615 bytes", frame(0, "", 1<<64-1))
	f(1<<20, "18446744073709551615 bytes after 5", frame(flagMore, "12345", 0), frame(0, "", 1<<64-1))
	f(1<<20, "command of 4097", frame(flagCommand, "", 4097))
	f(1<<20, "64 frames", bytes.Repeat(frame(flagMore, "", 0), 65))
	f(1<<20, "", bytes.Repeat(frame(flagMore, "", 0), 64))
}
