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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// claimNewest claims the call whose header has just been read, and takes it on, as grpc does.
func claimNewest(w *wire, kind func(stream uint32) methodKind) *arrival {
	a := w.newest
	if a == nil || a.Context != nil {
		return nil
	}
	ctx, err := w.claim(context.Background(), "flow", kind(a.stream))
	if err != nil {
		panic(err)
	}
	ctx.Done()
	return a
}

// readAll reads a wire as grpc does, and claims each call.
func readAll(t *testing.T, w *wire, p []byte, kind func(stream uint32) methodKind) (got []byte, calls map[uint32]*arrival) {
	t.Helper()
	calls = make(map[uint32]*arrival)
	for {
		n, err := w.Read(p)
		got = append(got, p[:n]...)
		if a := claimNewest(w, kind); a != nil {
			calls[a.stream] = a
		}
		checkInvariants(t, w)
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			return got, calls
		}
	}
}

// checkInvariants holds a wire against what its comment says.
func checkInvariants(t *testing.T, w *wire) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, a := range w.arrivals {
		if a != w.newest && !a.counted.Load() {
			t.Fatalf("stream %d is known, and grpc has not taken it on", id)
		}
		sum := int64(0)
		for _, cost := range a.waiting {
			sum += cost
		}
		if sum != a.memory.Bytes() {
			t.Fatalf("stream %d holds %d bytes, and its messages cost %d", id, a.memory.Bytes(), sum)
		}
		if a.Context != nil && a.cancel == nil && (a.kind.stream || a.waitsForClient() && a != w.newest) {
			t.Fatalf("nothing can end the call of stream %d", id)
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
	s.frames.WriteDataPadded(3, false, whole[3:15_000], make([]byte, 255))
	s.frames.WriteData(3, false, whole[15_000:30_000])
	s.frames.WriteRawFrame(0x77, 0, 3, []byte("unknown"))
	s.frames.WriteData(5, false, message(50_000, 0)[:100])
	s.frames.WriteData(3, false, whole[30_000:45_000])
	s.frames.WriteData(3, false, whole[45_000:])
	s.open(7, "/given-up")
	s.frames.WriteRSTStream(7, http2.ErrCodeCancel)
	s.frames.WriteWindowUpdate(0, 1)
	want := bytes.Clone(s.Bytes())
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		most := 1 + r.IntN(1<<r.IntN(18))
		w := newWire(&reads{from: bytes.NewReader(want), next: func() int { return 1 + r.IntN(most) }}, newLimits(0, 0))
		got, calls := readAll(t, w, make([]byte, 1+r.IntN(40<<10)), func(id uint32) methodKind { return methodKind{long: id == 5} })
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: grpc reads other bytes", seed)
		}
		for id, want := range map[uint32]*arrival{
			1: {size: 100, ended: true}, 3: {size: 60_000}, 5: {size: 50_000, left: 50_000 - 95}, 7: {ended: true},
		} {
			a := calls[id]
			if a == nil || a.size != want.size || a.left != want.left || a.ended != want.ended || a.refusal != nil || a.deaf {
				t.Fatalf("seed %d, stream %d: %+v", seed, id, a)
			}
		}
	}
}

// TestWireReadsMore holds that a wire reads more at once behind a read that took all there was room for, and not before.
func TestWireReadsMore(t *testing.T) {
	for atOnce, want := range map[int]int{readAtFirst - 1: readAtFirst, readAtFirst: readLater, 1 << 20: readLater} {
		s := newSent()
		s.open(1, "/short")
		for range 10 {
			s.frames.WriteData(1, false, make([]byte, maxFrame))
		}
		whole, left := bytes.Clone(s.Bytes()), atOnce
		w := newWire(&reads{from: bytes.NewReader(whole), next: func() int { n := left; left = 1000; return n }}, newLimits(0, 0))
		got, _ := readAll(t, w, make([]byte, 32<<10), func(uint32) methodKind { return methodKind{} })
		if len(w.buffer) != want || len(got) != len(whole) {
			t.Errorf("behind a read of %d: room for %d, want %d; %d bytes of %d", atOnce, len(w.buffer), want, len(got), len(whole))
		}
	}
}

// TestWireRefuses sends messages for which there is no memory, and further ones where a call has one.
func TestWireRefuses(t *testing.T) {
	s := newSent()
	for id := uint32(1); id <= 11; id += 2 {
		s.open(id, "/call")
	}
	s.frames.WriteData(1, false, message(80<<10, 0)[:16<<10])  // reserves 192 KiB of the 512 that a client may have, and each other call 32
	s.frames.WriteData(3, false, message(120<<10, 0)[:16<<10]) // is too large
	s.frames.WriteData(5, false, message(2<<20, 0)[:16<<10])   // is larger than any may be: grpc says so
	large := message(120<<10, 0)
	s.frames.WriteData(7, false, large[:4])
	s.frames.WriteData(7, false, large[4:100]) // is too large, and grpc knows a part of its length
	s.frames.WriteData(9, false, message(200, 1))
	s.frames.WriteData(11, false, append(message(10, 0), message(90<<10, 0)[:1000]...)) // a second message
	const forCalls = 2 * 6 * 32 << 10                                                   // each call counts, too
	limits := newLimits(1<<20+forCalls, 0)
	w := newWire(&reads{from: &s.Buffer, next: func() int { return 32 << 10 }}, limits)
	got, calls := readAll(t, w, make([]byte, 32<<10), func(uint32) methodKind { return methodKind{} })
	for id, want := range map[uint32]error{
		1: nil, 3: body.ErrMemory, 5: nil, 7: body.ErrMemory, 9: body.ErrMemory, 11: errMessages,
	} {
		a := calls[id]
		if _, err := a.received(nil); !errors.Is(err, want) {
			t.Errorf("stream %d: %v, want %v", id, err, want)
		}
		if err := a.Err(); err != nil {
			t.Errorf("stream %d is cut: %v", id, err)
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
	for id, want := range map[uint32]uint32{1: 80 << 10, 3: 0, 5: 2 << 20, 7: 0, 9: 0, 11: 10} {
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

// TestUnfinishedCallsCount opens calls whose small messages do not end, until there is no memory for a further one. Calls whose
// client has sent everything cost nothing.
func TestUnfinishedCallsCount(t *testing.T) {
	s := newSent()
	for id := uint32(1); id <= 41; id += 2 {
		s.open(id, "/call")
		s.frames.WriteData(id, false, message(4000, 0)[:3000])
	}
	limits := newLimits(1<<20, 0)
	from := &reads{from: &s.Buffer, next: func() int { return 32 << 10 }}
	w := newWire(from, limits)
	var last error
	calls := 0
	read := func() {
		for {
			if _, err := w.Read(make([]byte, 32<<10)); err != nil {
				break
			}
			if w.newest == nil || w.newest.Context != nil {
				continue
			}
			if _, last = w.claim(context.Background(), "flow", methodKind{}); last == nil {
				w.newest.Done()
				calls++
			}
		}
		w.failed = nil
	}
	read()
	if status.Code(last) != codes.ResourceExhausted || calls < 8 || calls > 16 || countOf(limits, reasonMemory) != float64(21-calls) {
		t.Errorf("%d unfinished calls in 1 MiB, %v were refused: %v", calls, countOf(limits, reasonMemory), last)
	}
	for id, a := range w.arrivals {
		s.frames.WriteData(id, true, make([]byte, 1005))
		a.close()
		w.endAnswer(id)
	}
	for id := uint32(101); id <= 125; id += 2 {
		s.open(id, "/whole")
		s.frames.WriteData(id, true, message(4000, 0))
	}
	calls = 0
	if read(); last != nil || calls != 13 {
		t.Errorf("%d whole calls: %v", calls, last)
	}
	for id, a := range w.arrivals {
		a.close()
		w.endAnswer(id)
	}
	release, err := limits.budget.Reserve("flow", 280<<10)
	must.Succeed(t, err)
	release()
}

// TestUntakenAnswersCount makes calls until there is no memory for a further one. They end, and still count, until grpc writes the
// ends of their answers, in pieces of any size, or their client gives them up, or the connection ends.
func TestUntakenAnswersCount(t *testing.T) {
	for _, end := range []string{"written", "written first", "given up", "closed"} {
		for _, cut := range []int{1, 7, 9, 1000} {
			s := newSent()
			for id := uint32(1); id <= 99; id += 2 {
				s.open(id, "/call")
				s.frames.WriteData(id, true, message(100, 0))
			}
			limits := newLimits(1<<20, 0)
			from := &reads{Conn: sink{}, from: &s.Buffer, next: func() int { return 32 << 10 }}
			w := newWire(from, limits)
			calls := make(map[uint32]*arrival)
			var last error
			for {
				if _, err := w.Read(make([]byte, 32<<10)); err != nil {
					break
				}
				if a := w.newest; a != nil && a.Context == nil {
					if _, last = w.claim(context.Background(), "flow", methodKind{}); last != nil {
						break
					}
					calls[a.stream] = a
					a.Done()
				}
			}
			if status.Code(last) != codes.ResourceExhausted || len(calls) < 8 || len(calls) > 21 {
				t.Fatalf("%d calls are not answered in 1 MiB, then %v", len(calls), last)
			}
			shut := func() {
				for _, a := range calls {
					a.close()
				}
			}
			if end != "written first" {
				if shut(); usedOf(limits) < float64(len(calls)*24<<10) {
					t.Errorf("%d answers wait, and %v bytes are reserved", len(calls), usedOf(limits))
				}
			}
			var out bytes.Buffer
			frames := http2.NewFramer(&out, nil)
			for id := range calls {
				frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("\x88"), EndHeaders: true})
				switch {
				case end == "given up":
					w.dropStream(id)
				case id%4 == 1:
					frames.WriteData(id, false, make([]byte, 300))
					frames.WriteData(id, true, nil)
				default:
					frames.WriteRSTStream(id, http2.ErrCodeCancel)
				}
			}
			switch end {
			case "closed":
				w.Close()
			case "written", "written first":
				for out.Len() > 0 {
					w.Write(out.Next(cut))
				}
			}
			if end == "written first" {
				if usedOf(limits) == 0 {
					t.Error("calls that have not ended count no more")
				}
				shut()
			}
			if n := usedOf(limits); n != 0 || end != "closed" && len(w.arrivals) > 1 {
				t.Errorf("%s, cut to %d: %v bytes stay reserved for %d calls", end, cut, n, len(w.arrivals))
			}
		}
	}
}

// sink takes all that is written.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error) { return len(p), nil }
func (sink) Close() error                { return nil }

// TestLateMessages holds that calls end whose messages do not come, or come in tiny frames, and no others.
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
				kind := func(id uint32) methodKind { return methodKind{long: id == 5 || id == 7 || id == 13, brief: id == 13} }
				if a := claimNewest(w, kind); a != nil {
					contexts[a.stream] = a
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
		s.open(11, "/tiny-frames")
		for i := range 200 {
			s.frames.WriteData(11, false, message(1000, 0)[i:i+1])
		}
		s.open(13, "/brief") // may send several messages, and not wait with them
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
				11: context.DeadlineExceeded, 13: context.DeadlineExceeded}[id]
			if err := ctx.Err(); err != want {
				t.Errorf("stream %d after a while: %v, want %v", id, err, want)
			}
		}
		for reason, want := range map[string]float64{reasonLate: 4, reasonTinyFrames: 1} {
			if n := countOf(limits, reason); n != want {
				t.Errorf("%v messages were counted as %s, want %v", n, reason, want)
			}
		}
	})
}

// TestWholeMessageIsNotLate holds that a call whose message came with its header is not ended as late before grpc has the message.
func TestWholeMessageIsNotLate(t *testing.T) {
	s := newSent()
	s.open(1, "/short")
	s.frames.WriteData(1, true, message(10, 0))
	w := newWire(&reads{from: bytes.NewReader(s.Bytes()), next: s.Len}, newLimits(0, time.Minute))
	if _, err := w.Read(make([]byte, 32<<10)); err != nil {
		t.Fatal(err)
	}
	a := claimNewest(w, func(uint32) methodKind { return methodKind{} })
	if a == nil || !a.waitsForClient() {
		t.Fatalf("the call is %+v", a)
	}
	w.cutLate()
	if a.refusal != nil || a.Err() != nil {
		t.Errorf("the call is ended with %v, %v", a.refusal, a.Err())
	}
	w.watch.Stop()
}

// TestWireForgetsWhatGrpcRefuses sends many calls that grpc does not take on, as it does with those whose time is over when they
// come: none of them is kept.
func TestWireForgetsWhatGrpcRefuses(t *testing.T) {
	s := newSent()
	for id := uint32(1); id < 4000; id += 2 {
		s.open(id, "/call")
		s.frames.WriteData(id, false, message(100, 0))
	}
	w := newWire(&reads{from: &s.Buffer, next: func() int { return 32 << 10 }}, newLimits(0, 0))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		if _, err := w.Read(make([]byte, 32<<10)); err != nil {
			break
		}
		if w.newest != nil {
			w.claim(over, "flow", methodKind{})
		}
		if n := len(w.arrivals); n > 1 {
			t.Fatalf("%d calls are kept", n)
		}
	}
}

// TestWireKeepsGoodMessages sends good messages and then one that is not taken, whose prefix comes at once or in pieces, to a
// handler that has not looked yet. It receives the good ones, and grpc gets nothing behind the other one.
func TestWireKeepsGoodMessages(t *testing.T) {
	const memory = 256 << 10
	for _, large := range []int{200 << 10, 3 << 20, 0xffffff} {
		for cut := range prefixLength {
			s := newSent()
			s.open(1, "/several")
			bad := message(large, 0)
			s.frames.WriteData(1, false, append(bytes.Repeat(message(2000, 0), 5), bad[:cut]...))
			s.frames.WriteData(1, false, bad[cut:1000])
			known := s.Len()
			for at := 1000; at < 100_000; at += 10_000 {
				s.frames.WriteData(1, false, bad[at:at+10_000])
			}
			limits := newLimits(memory, 0)
			w := newWire(&reads{from: bytes.NewReader(s.Bytes()), next: func() int { return 777 }}, limits)
			got, calls := readAll(t, w, make([]byte, 32<<10), func(uint32) methodKind { return methodKind{stream: true, long: true} })
			a := calls[1]
			for i := range 5 {
				if _, err := a.received(nil); err != nil {
					t.Errorf("%d bytes, cut at %d: good message %d: %v", large, cut, i, err)
				}
				checkInvariants(t, w)
			}
			tooLarge := int64(large) > limits.most
			if err := a.whyRefused(); tooLarge != (err == nil) || !tooLarge && err != body.ErrMemory {
				t.Errorf("%d bytes, cut at %d: refused with %v", large, cut, err)
			}
			if !tooLarge {
				if _, err := a.received(nil); err != body.ErrMemory {
					t.Errorf("%d bytes, cut at %d: the message is received with %v", large, cut, err)
				}
			}
			if reason := map[bool]string{true: reasonSize, false: reasonMemory}[tooLarge]; countOf(limits, reason) != 1 {
				t.Errorf("%d bytes, cut at %d: not counted as %s", large, cut, reason)
			}
			if n := a.memory.Bytes(); n != 0 || a.Err() != nil {
				t.Errorf("%d bytes, cut at %d: %d are held, %v", large, cut, n, a.Err())
			}
			for rest := got[known:]; len(rest) > 0; rest = rest[frameHeaderLength+payloadLength(rest):] {
				if streamOf(rest) != noStream {
					t.Errorf("%d bytes, cut at %d: grpc gets %d bytes behind the message", large, cut, payloadLength(rest))
				}
			}
			a.close()
		}
	}
}

// TestWatchesCanBeEnded holds that a call whose client shall read can be ended, even if the client has nothing more to send.
func TestWatchesCanBeEnded(t *testing.T) {
	for _, at := range []int{1 << 20, 9} { // the message comes with the header, or later
		s := newSent()
		s.open(1, "/watch")
		s.frames.WriteData(1, true, message(10, 0))
		w := newWire(&reads{from: &s.Buffer, next: func() int { return at }}, newLimits(0, 0))
		_, calls := readAll(t, w, make([]byte, 32<<10), func(uint32) methodKind { return methodKind{stream: true} })
		calls[1].endUnread()
		if err := calls[1].Err(); err != context.DeadlineExceeded {
			t.Errorf("reads of %d bytes: the call goes on: %v", at, err)
		}
	}
}

// FuzzWire holds that a wire hands on the bytes of any client, whatever they are, but for lengths that it refuses, and data of
// calls that grpc does not have.
func FuzzWire(f *testing.F) {
	s := newSent()
	s.open(1, "/call")
	s.frames.WriteDataPadded(1, false, message(300, 0), make([]byte, 20))
	f.Add(s.Bytes(), uint16(7))
	s.frames.WriteData(1, true, message(200_000, 0)[:1000])
	s.frames.WriteData(1, true, message(200_000, 0)[:1000])
	s.frames.WriteData(5, true, message(200_000, 0)[:1000])
	f.Add(s.Bytes(), uint16(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		limits := newLimits(256<<10, 0)
		w := newWire(&reads{from: bytes.NewReader(in), next: func() int { return 1 + int(cut) }}, limits)
		got, calls := readAll(t, w, make([]byte, 1+int(cut)/2), func(id uint32) methodKind {
			return methodKind{stream: true, long: id%4 == 1}
		})
		if len(got) != len(in) {
			t.Fatalf("%x is read as %x", in, got)
		}
		for i := range got {
			// What a wire may write is 0, or noStream.
			if got[i] != in[i] && got[i] != 0 && got[i] != noStream {
				t.Fatalf("%x is read as %x", in, got)
			}
		}
		for id, a := range calls {
			a.close()
			w.endAnswer(id)
		}
		if used := usedOf(limits); used != 0 || len(w.arrivals) > 1 {
			t.Errorf("%v bytes are reserved when all calls have ended, and %d calls are known", used, len(w.arrivals))
		}
	})
}

// usedOf returns how many bytes are reserved.
func usedOf(limits *arrivals) float64 {
	all := make(chan prometheus.Metric, 3)
	limits.budget.Collect(all)
	var m dto.Metric
	(<-all).Write(&m)
	return m.Gauge.GetValue()
}
