package zmq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
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
func (c readConn) Close() error               { return nil }

// cuts are ways in which bytes arrive.
var cuts = map[string]func(io.Reader) io.Reader{
	"whole":   func(r io.Reader) io.Reader { return r },
	"halves":  iotest.HalfReader,
	"by byte": iotest.OneByteReader,
}

// Messages come as the peer sent them, or the error names the fault.
func TestFramingMessages(t *testing.T) {
	f := func(limit int, want string, parts ...[]byte) {
		t.Helper()
		for name, cut := range cuts {
			f := newFraming(readConn{Reader: cut(bytes.NewReader(bytes.Join(parts, nil)))}, limit, nil)
			var got []byte
			var err error
			for err == nil {
				var m payload.Message
				var command bool
				m, command, err = f.readMessage()
				for i, body := range m.Frames {
					flags := byte(0)
					if i < len(m.Frames)-1 {
						flags |= flagMore
					}
					if command {
						flags |= flagCommand
					}
					got = append(got, frame(flags, string(body), 0)...)
				}
				m.Block.Release()
			}
			sent := bytes.Join(parts, nil)
			switch {
			case want == "" && (!errors.Is(err, io.EOF) || !bytes.Equal(got, sent)):
				t.Errorf("%s: %d of %d bytes came: %v", name, len(got), len(sent), err)
			case want != "" && !strings.Contains(err.Error(), want):
				t.Errorf("%s: got %v, want something about %q", name, err, want)
			}
		}
	}
	long := strings.Repeat("x", 300)
	f(300, "", frame(0, "", 0), frame(0, "a", 0), frame(0, long, 0))
	f(300, "", frame(flagMore, long[:100], 0), frame(flagMore, "", 0), frame(0, long[:200], 0), frame(0, long, 0))
	f(300, "", frame(flagCommand, "\x04PING\x00\x00", 0), frame(0, long, 0))
	f(299, "300 bytes after 0", frame(0, long, 0))
	f(300, "201 bytes after 100", frame(flagMore, long[:100], 0), frame(0, long[:201], 0))
	f(1<<20, "9223372036854775808 bytes", frame(0, "", 1<<63))
	f(1<<20, "18446744073709551615 bytes", frame(0, "", 1<<64-1))
	f(1<<20, "18446744073709551615 bytes after 5", frame(flagMore, "12345", 0), frame(0, "", 1<<64-1))
	f(1<<20, "command of 4097", frame(flagCommand, "", 4097))
	f(1<<20, "in parts", frame(flagCommand|flagMore, "\x04PING", 0), frame(0, "", 0))
	f(1<<20, "in parts", frame(flagMore, "", 0), frame(flagCommand, "\x04PING", 0))
	f(1<<20, "64 frames", bytes.Repeat(frame(flagMore, "", 0), 65))
	f(1<<20, "", bytes.Repeat(frame(flagMore, "", 0), 63), frame(0, "", 0))
	f(1<<20, "unexpected EOF", frame(flagMore, "", 0), frame(0, "half", 8))
}

// A message over the limit costs itself: its frames come with what they begin with, and what follows
// it comes whole.
func TestFramingSkips(t *testing.T) {
	big := strings.Repeat("0123456789", 30_000)
	small := strings.Repeat("x", 1000)
	wire := bytes.Join([][]byte{
		frame(0, small, 0),
		frame(flagMore, "topic", 0), frame(flagMore, "12345678", 0), frame(0, big, 0),
		frame(0, small, 0), frame(0, big, 0), frame(0, big, 0),
		frame(flagMore, small, 0), frame(flagMore, small[:500], 0), frame(0, "end", 0),
		frame(flagCommand, "\x04PING\x00\x00", 0),
		frame(0, "last", 0), frame(0, "cut", 600),
	}, nil)
	type message struct {
		frames   []string
		oversize uint64
	}
	want := []message{
		{[]string{small}, 0},
		{[]string{"topic", "12345678", big[:keptBeginning]}, 300_013},
		{[]string{small}, 0}, {[]string{big[:keptBeginning]}, 300_000}, {[]string{big[:keptBeginning]}, 300_000},
		{[]string{small, small[:500], "end"}, 1503},
		{[]string{"\x04PING\x00\x00"}, 0},
		{[]string{"last"}, 0},
	}
	for name, cut := range cuts {
		memory := payload.NewMemory(1 << 20)
		f := newFraming(readConn{Reader: cut(bytes.NewReader(wire))}, 1400, memory)
		f.skips = true
		var held []payload.Message // while others are read
		for i, want := range want {
			m, _, err := f.readMessage()
			must.Succeed(t, err)
			held = append(held, payload.Message{Frames: slices.Clone(m.Frames), Block: m.Block, Oversize: m.Oversize})
			if m.Oversize != want.oversize || len(m.Frames) != len(want.frames) {
				t.Fatalf("%s: message %d has %d frames and %d bytes too many", name, i, len(m.Frames), m.Oversize)
			}
		}
		for i, m := range held {
			for j, want := range want[i].frames {
				if string(m.Frames[j]) != want {
					t.Errorf("%s: frame %d of message %d is %q", name, j, i, m.Frames[j])
				}
			}
			m.Block.Release()
		}
		if _, _, err := f.readMessage(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: a message that is cut off: %v", name, err)
		}
		if _, reading := memory.Used(); reading > 2*maxRead {
			t.Errorf("%s: the connection reads into %d bytes", name, reading)
		}
	}
	f := newFraming(readConn{Reader: bytes.NewReader(frame(0, "", maxSkipped+1))}, 1400, nil)
	f.skips = true
	if _, _, err := f.readMessage(); err == nil || !strings.Contains(err.Error(), "limit is 1073741824") {
		t.Errorf("more than is read past: %v", err)
	}
}

// The library reads the handshake through the same framing.
func TestFramingHandshake(t *testing.T) {
	greeting := bytes.Repeat([]byte{0xff}, greetingSize) // no frame, whatever is in it
	ready, first := frame(flagCommand, "\x05READY", 0), frame(0, "first", 0)
	for name, cut := range cuts {
		f := newFraming(readConn{Reader: cut(bytes.NewReader(bytes.Join([][]byte{greeting, ready, first}, nil)))}, 100, nil)
		got := make([]byte, greetingSize+len(ready))
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, append(bytes.Clone(greeting), ready...)) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if m, _, err := f.readMessage(); err != nil || string(bytes.Join(m.Frames, nil)) != "first" {
			t.Errorf("%s: got %q, %v", name, m.Frames, err)
		}
	}
	f := newFraming(readConn{Reader: bytes.NewReader(append(greeting, frame(0, "", 1<<40)...))}, math.MaxInt, nil)
	if _, err := io.ReadAll(f); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a giant frame of a handshake: %v", err)
	}
}

// Messages stay as they are while others arrive, in any order of release.
func TestFramingBlocks(t *testing.T) {
	var sent [][]byte
	var wire []byte
	for i := range 400 {
		body := bytes.Repeat([]byte{byte(i)}, []int{1, 300, 5000, 40_000}[i%4])
		sent = append(sent, body)
		wire = append(wire, frame(0, string(body), 0)...)
	}
	f := newFraming(readConn{Reader: bytes.NewReader(wire)}, 1<<20, nil)
	var kept []payload.Message
	for i := range sent {
		m, _, err := f.readMessage()
		must.Succeed(t, err)
		kept = append(kept, payload.Message{Frames: [][]byte{m.Frames[0]}, Block: m.Block})
		if i%3 > 0 { // some go soon, some late
			j := i / 3
			if !bytes.Equal(kept[j].Frames[0], sent[j]) {
				t.Fatalf("message %d has changed when %d came", j, i)
			}
			if kept[j].Block != nil {
				kept[j].Block.Release()
			}
			kept[j] = payload.Of(sent[j])
		}
	}
	for i := range kept {
		if !bytes.Equal(kept[i].Frames[0], sent[i]) {
			t.Fatalf("message %d has changed", i)
		}
	}
}

// endless repeats bytes.
type endless struct {
	b  []byte
	at int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := copy(p[n:], e.b[e.at:])
		n += k
		e.at = (e.at + k) % len(e.b)
	}
	return n, nil
}

// Reading allocates nothing for a message, once blocks go round.
func TestFramingAllocatesNothing(t *testing.T) {
	if payload.PoisonsReleased {
		t.Skip("the pools of a race build lose blocks at random")
	}
	for _, size := range []int{100, 8000, 100_000} {
		msg := append(append(frame(flagMore, "kv", 0), frame(flagMore, "12345678", 0)...), frame(0, strings.Repeat("x", size), 0)...)
		f := newFraming(readConn{Reader: &endless{b: msg}}, 1<<20, nil)
		read := func() {
			m, _, err := f.readMessage()
			if err != nil || len(m.Frames) != 3 || len(m.Frames[2]) != size {
				t.Fatalf("%d frames, %v", len(m.Frames), err)
			}
			m.Block.Release()
		}
		for range 1000 {
			read()
		}
		if n := alloctest.PerRun(1000, read); n != 0 {
			t.Errorf("%v allocations a message of %d bytes", n, size)
		}
	}
}

// silent is a connection whose peer is silent after some bytes.
type silent struct{ bytes []byte }

func (s *silent) Read(p []byte) (int, error) {
	n := copy(p, s.bytes)
	s.bytes = s.bytes[n:]
	if n == 0 {
		if s.bytes == nil {
			return 0, io.EOF
		}
		s.bytes = nil
	}
	return n, nil
}

// A connection that was busy gives its large block back when its peer is silent, and the
// account of Memory follows.
func TestFramingIdles(t *testing.T) {
	memory := payload.NewMemory(1 << 20)
	reading := func() int64 { _, n := memory.Used(); return n }
	s := &silent{bytes: bytes.Repeat(frame(0, strings.Repeat("x", 1000), 0), 1000)}
	f := newFraming(readConn{Reader: s}, 1<<20, memory)
	for range 1000 {
		m, _, err := f.readMessage()
		must.Succeed(t, err)
		m.Block.Release()
	}
	if n := reading(); n != maxRead {
		t.Errorf("a busy connection reads into %d bytes, want %d", n, maxRead)
	}
	if _, _, err := f.readMessage(); err != io.EOF {
		t.Fatal(err)
	}
	if n := reading(); n != payload.MinBlock {
		t.Errorf("an idle connection reads into %d bytes, want %d", n, payload.MinBlock)
	}
	for _, frame := range f.frames[:cap(f.frames)] {
		if frame != nil {
			t.Errorf("an idle connection refers to %d bytes of a large block, which stays in memory", len(frame))
		}
	}
	if f.Close(); reading() != 0 {
		t.Errorf("a closed connection is counted with %d bytes", reading())
	}
}

func BenchmarkFraming(b *testing.B) {
	for _, size := range []int{1000, 8000, 50_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			msg := append(append(frame(flagMore, "kv", 0), frame(flagMore, "12345678", 0)...), frame(0, strings.Repeat("x", size), 0)...)
			f := newFraming(readConn{Reader: &endless{b: msg}}, 1<<20, nil)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				m, _, err := f.readMessage()
				must.Succeed(b, err)
				m.Block.Release()
			}
		})
	}
}
