package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/must"
)

// sent is what a client sends over a connection.
type sent struct {
	bytes.Buffer
	frames *http2.Framer
}

func newSent() *sent {
	s := new(sent)
	s.WriteString(http2.ClientPreface)
	s.frames = http2.NewFramer(&s.Buffer, nil)
	s.frames.WriteSettings()
	return s
}

// open begins a call, with its header in several frames if it is long.
func (s *sent) open(stream uint32, path string) {
	var block bytes.Buffer
	hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":path", Value: path})
	first := block.Next(16)
	s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: block.Len() == 0})
	for block.Len() > 0 {
		fragment := block.Next(16)
		s.frames.WriteContinuation(stream, block.Len() == 0, fragment)
	}
}

// message is a message with its prefix.
func message(length int, compressed byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(length)), make([]byte, length)...)
}

// reads is a connection from which each read takes as much as next says.
type reads struct {
	net.Conn
	from io.Reader
	next func() int
}

func (r *reads) Read(p []byte) (int, error) { return r.from.Read(p[:min(len(p), r.next())]) }

// newLimits returns bounds of some bytes for all messages.
func newLimits(memory int64, patience time.Duration) *arrivals {
	return &arrivals{
		budget: server.NewBudget(memory), most: 1 << 20, patience: patience,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"reason"}),
	}
}

// countOf returns how many messages were refused for a reason.
func countOf(limits *arrivals, reason string) float64 {
	var m dto.Metric
	limits.refused.WithLabelValues(reason).Write(&m)
	return m.Counter.GetValue()
}

// readAll reads a wire as grpc does, and claims each call; long says which have several messages.
func readAll(t *testing.T, w *wire, p []byte, long func(stream uint32) bool) (got []byte, calls map[uint32]*arrival) {
	t.Helper()
	calls = make(map[uint32]*arrival)
	for {
		n, err := w.Read(p)
		got = append(got, p[:n]...)
		if a := w.newest; a != nil {
			w.claim(t.Context(), "flow", long(a.stream))
			calls[a.stream] = a
		}
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			return got, calls
		}
	}
}

// TestWireReadsAlong sends calls of all kinds, cut anywhere. grpc reads what was sent, and what the wire knows of each call
// does not depend on the cuts.
func TestWireReadsAlong(t *testing.T) {
	s := newSent()
	s.open(1, "/short")
	s.frames.WriteData(1, true, message(100, 0))
	s.open(3, "/"+strings.Repeat("long", 100))
	s.open(5, "/several")
	whole := message(60_000, 0)
	s.frames.WriteDataPadded(3, false, whole[:3], make([]byte, 7)) // its length is cut
	s.frames.WriteData(5, false, append(message(10, 0), message(20, 0)...))
	s.frames.WriteDataPadded(3, false, whole[3:30_000], make([]byte, 255))
	s.frames.WriteRawFrame(0x77, 0, 3, []byte("unknown"))
	s.frames.WriteData(5, false, message(50_000, 0)[:100])
	s.frames.WriteData(3, false, whole[30_000:])
	s.open(7, "/given-up")
	s.frames.WriteRSTStream(7, http2.ErrCodeCancel)
	s.frames.WriteWindowUpdate(0, 1)
	want := bytes.Clone(s.Bytes())
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		most := 1 + r.IntN(1<<r.IntN(16))
		w := newWire(&reads{from: bytes.NewReader(want), next: func() int { return 1 + r.IntN(most) }}, newLimits(0, 0))
		got, calls := readAll(t, w, make([]byte, 1+r.IntN(40<<10)), func(id uint32) bool { return id == 5 })
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: grpc reads other bytes", seed)
		}
		for id, want := range map[uint32]*arrival{
			1: {size: 100, ended: true}, 3: {size: 60_000}, 5: {size: 50_000, left: 50_000 - 95}, 7: {ended: true},
		} {
			a := calls[id]
			if a == nil || a.size != want.size || a.left != want.left || a.ended != want.ended || a.refusal != nil || a.ignored {
				t.Fatalf("seed %d, stream %d: %+v", seed, id, a)
			}
		}
	}
}

// TestWireRefuses sends messages for which there is no memory, and further ones where a call has one.
func TestWireRefuses(t *testing.T) {
	s := newSent()
	for id := uint32(1); id <= 11; id += 2 {
		s.open(id, "/call")
	}
	s.frames.WriteData(1, false, message(80<<10, 0)[:16<<10])  // reserves 96 KiB of 256
	s.frames.WriteData(3, false, message(120<<10, 0)[:16<<10]) // is too large
	s.frames.WriteData(5, false, message(2<<20, 0)[:16<<10])   // is larger than any may be: grpc says so
	large := message(120<<10, 0)
	s.frames.WriteData(7, false, large[:4])
	s.frames.WriteData(7, false, large[4:100]) // is too large, and grpc knows a part of its length
	s.frames.WriteData(9, false, message(200, 1))
	s.frames.WriteData(11, false, append(message(10, 0), message(90<<10, 0)[:1000]...)) // a second message
	limits := newLimits(256<<10, 0)
	w := newWire(&reads{from: &s.Buffer, next: func() int { return 32 << 10 }}, limits)
	got, calls := readAll(t, w, make([]byte, 32<<10), func(uint32) bool { return false })
	for id, want := range map[uint32]error{
		1: nil, 3: body.ErrMemory, 5: nil, 7: body.ErrMemory, 9: body.ErrMemory, 11: errMessages,
	} {
		a := calls[id]
		if _, err := a.received(nil); !errors.Is(err, want) {
			t.Errorf("stream %d: %v, want %v", id, err, want)
		}
		if a.late.Load() != (id == 7) || (a.Err() != nil) != (id == 7) {
			t.Errorf("stream %d: cut %t, %v", id, a.late.Load(), a.Err())
		}
	}
	if n := countOf(limits, reasonMemory); n != 3 {
		t.Errorf("%v messages were counted as without memory, want 3", n)
	}

	// What grpc reads of the refused ones.
	frames := http2.NewFramer(nil, bytes.NewReader(got[len(http2.ClientPreface):]))
	lengths := make(map[uint32][]byte)
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			break
		}
		if data, ok := f.(*http2.DataFrame); ok {
			lengths[data.StreamID] = append(lengths[data.StreamID], data.Data()...)
		}
	}
	for id, want := range map[uint32]uint32{1: 80 << 10, 3: 0, 5: 2 << 20, 9: 0, 11: 10} {
		if is := binary.BigEndian.Uint32(lengths[id][1:]); is != want {
			t.Errorf("stream %d: grpc reads a message of %d bytes, want %d", id, is, want)
		}
	}
	if next := lengths[11][15:20]; !bytes.Equal(next, make([]byte, 5)) {
		t.Errorf("grpc reads the second message of a call, of %x", next)
	}
	calls[1].close()
	release, err := limits.budget.Reserve("flow", 80<<10)
	must.Succeed(t, err)
	release()
}

// TestLateMessages holds that calls end whose messages do not come, or come in crumbs, and no others.
func TestLateMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 30 * time.Second
		here, there := net.Pipe()
		defer there.Close()
		limits := newLimits(0, patience)
		w := newWire(here, limits)
		defer w.Close()
		contexts := make(map[uint32]context.Context)
		go func() {
			p := make([]byte, 32<<10)
			for {
				if _, err := w.Read(p); err != nil {
					return
				}
				if a := w.newest; a != nil {
					contexts[a.stream], _ = w.claim(context.Background(), "flow", a.stream == 5 || a.stream == 7)
				}
			}
		}()
		s := newSent()
		for id := uint32(1); id <= 9; id += 2 {
			s.open(id, "/call")
		}
		s.frames.WriteData(3, false, message(1000, 0)[:10])                           // 1 sends nothing, 3 a part
		s.frames.WriteData(5, false, message(10, 0))                                  // nothing more for a while
		s.frames.WriteData(7, false, append(message(10, 0), message(1000, 0)[:3]...)) // a part of the second
		s.frames.WriteData(9, true, message(10, 0))                                   // is complete
		s.open(11, "/crumbs")
		for i := range 200 {
			s.frames.WriteData(11, false, message(1000, 0)[i:i+1])
		}
		there.Write(s.Bytes())
		synctest.Wait()
		for id, ctx := range contexts {
			if err := ctx.Err(); (err != nil) != (id == 11) {
				t.Errorf("stream %d at once: %v", id, err)
			}
		}
		time.Sleep(2 * patience)
		synctest.Wait()
		for id, ctx := range contexts {
			want := map[uint32]error{1: context.DeadlineExceeded, 3: context.DeadlineExceeded, 7: context.DeadlineExceeded,
				11: context.DeadlineExceeded}[id]
			if err := ctx.Err(); err != want {
				t.Errorf("stream %d after a while: %v, want %v", id, err, want)
			}
		}
		for reason, want := range map[string]float64{reasonLate: 3, reasonCrumbs: 1} {
			if n := countOf(limits, reason); n != want {
				t.Errorf("%v messages were counted as %s, want %v", n, reason, want)
			}
		}
		time.Sleep(patience) // what grpc has forgotten, the wire forgets too
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.arrivals) != 2 {
			t.Errorf("%d calls are known, want 2", len(w.arrivals))
		}
	})
}

// FuzzWire holds that a wire hands on the bytes of any client, whatever they are, but for lengths that it refuses.
func FuzzWire(f *testing.F) {
	s := newSent()
	s.open(1, "/call")
	s.frames.WriteDataPadded(1, false, message(300, 0), make([]byte, 20))
	f.Add(s.Bytes(), uint16(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		w := newWire(&reads{from: bytes.NewReader(in), next: func() int { return 1 + int(cut) }}, newLimits(0, 0))
		got, _ := readAll(t, w, make([]byte, 1+int(cut)/2), func(id uint32) bool { return true })
		if !bytes.Equal(got, in) {
			t.Errorf("%x is read as %x", in, got)
		}
	})
}
