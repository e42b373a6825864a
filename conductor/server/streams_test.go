package server

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"example.com/conductor/internal/must"
)

// streamClient is a client of HTTP/2 that gives no window for answers.
type streamClient struct {
	net.Conn
	frames *http2.Framer
	asked  uint32 // the newest stream

	mu     sync.Mutex
	status map[uint32]string // by stream; guarded by mu
	ended  map[uint32]bool   // streams whose answer is complete; guarded by mu
	reset  int               // streams that the server has reset; guarded by mu
}

func newStreamClient(t *testing.T, c net.Conn) *streamClient {
	s := &streamClient{Conn: c, frames: http2.NewFramer(c, c), status: make(map[uint32]string), ended: make(map[uint32]bool)}
	s.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	go s.read()
	_, err := io.WriteString(c, preface)
	must.Succeed(t, err)
	must.Succeed(t, s.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	synctest.Wait()
	return s
}

// read notes the answers until the connection ends.
func (s *streamClient) read() {
	for {
		f, err := s.frames.ReadFrame()
		if err != nil {
			return
		}
		s.mu.Lock()
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			s.status[id], s.ended[id] = f.PseudoValue("status"), f.StreamEnded()
		case *http2.DataFrame:
			s.ended[id] = f.StreamEnded()
		case *http2.RSTStreamFrame:
			s.reset++
		}
		s.mu.Unlock()
	}
}

// ask asks for /, and returns the status.
func (s *streamClient) ask(t *testing.T) string {
	s.asked = max(s.asked+2, 1) | 1
	must.Succeed(t, s.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: s.asked, BlockFragment: []byte("\x82\x84\x86\x41\x01h"), EndStream: true, EndHeaders: true,
	}))
	synctest.Wait()
	return s.statusOf(s.asked)
}

func (s *streamClient) statusOf(stream uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status[stream]
}

// TestUntakenAnswersCount asks for answers over HTTP/2 and gives no window for them, until there is no memory for a further one.
// A refused request gets its answer without a window. Memory comes free when answers are taken or given up, when a connection ends, and
// never earlier.
func TestUntakenAnswersCount(t *testing.T) {
	const most = 1 << 20
	serve := func(t *testing.T) (*Servers, *pipes, *Budget) {
		budget := NewBudget(most)
		s, p := servePipesWithin(t, budget, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "answer") })
		return s, p, budget
	}
	fill := func(t *testing.T, c *streamClient, budget *Budget) (n int64) {
		for c.ask(t) == "200" {
			if n++; n > most/unfinished {
				t.Fatalf("%d answers are not taken, and %d bytes are reserved", n, budget.bytes.Stats().Used)
			}
		}
		return n
	}
	for _, end := range []string{"taken", "given up", "connection ends"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p, budget := serve(t)
				defer s.stop()
				used := func() int64 { synctest.Wait(); return budget.bytes.Stats().Used }
				c := newStreamClient(t, p.dial("192.0.2.1"))
				defer c.Close()
				n := fill(t, c, budget)
				if got := c.statusOf(c.asked); got != "503" || !c.ended[c.asked] || n < 4 || used() < n*unfinished || used() > most/2 {
					t.Errorf("%d answers wait, %d bytes are reserved, and the next is answered %q", n, used(), got)
				}
				again := newStreamClient(t, p.dial("192.0.2.1"))
				defer again.Close()
				other := newStreamClient(t, p.dial("192.0.2.2"))
				defer other.Close()
				if a, b := again.ask(t), other.ask(t); a != "503" || b != "200" {
					t.Errorf("the address is answered %s on another connection, and another address %s", a, b)
				}
				other.Close()
				switch end {
				case "taken":
					must.Succeed(t, c.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
				case "given up":
					for stream := uint32(1); stream <= c.asked-2; stream += 2 {
						must.Succeed(t, c.frames.WriteRSTStream(stream, http2.ErrCodeCancel))
					}
				default:
					c.Close()
				}
				if used() != 0 || again.ask(t) != "200" {
					t.Errorf("%d bytes stay reserved, and the next is answered %q", used(), again.statusOf(again.asked))
				}
			})
		})
	}
}

// TestUntakenRefusalsAreReset takes nothing that comes on a connection any more: refusals wait there, up to a bound.
func TestUntakenRefusalsAreReset(t *testing.T) {
	s := boundStreams(nil, NewBudget(1)).(*streams)
	closed := make(chan bool)
	ask := func() (reset bool) {
		defer func() { reset = recover() == http.ErrAbortHandler }()
		s.ServeHTTP(closing{closed}, &http.Request{ProtoMajor: 2})
		return false
	}
	synctest.Test(t, func(t *testing.T) {
		closed = make(chan bool)
		for i := range mostRefusals + 10 {
			if ask() != (i >= mostRefusals) {
				t.Fatalf("refusal %d", i)
			}
		}
		close(closed)
		if synctest.Wait(); s.refusals.Load() != 0 || ask() {
			t.Errorf("%d refusals are there after all have been taken", s.refusals.Load())
		}
	})
}

// closing is the writer of a stream.
type closing struct{ closed chan bool }

func (c closing) CloseNotify() <-chan bool        { return c.closed }
func (c closing) Header() http.Header             { return make(http.Header) }
func (c closing) WriteHeader(int)                 {}
func (c closing) Write(p []byte) (n int, e error) { return len(p), nil }

// servePipesWithin is servePipes with a bound of memory.
func servePipesWithin(t *testing.T, budget *Budget, h http.HandlerFunc) (*Servers, *pipes) {
	s, p := preparePipes(h, nil, zerolog.Nop())
	s.Budget = budget
	must.Succeed(t, s.servePorts(s.ports))
	return s, p
}
