package server

import (
	"io"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/body"
)

// free is how many bytes of a request whose body is there, and of its answer, are not counted: usual queries hold nothing while
// they wait and are worked on.
const free = 64 << 10

// unfinished is how much a request takes besides its bytes while it waits for its client, to send the body or to take the
// answer: a goroutine, and what net/http and grpc keep for a stream, without which one connection of HTTP/2 holds 256 requests
// for the price of none. With a body of 4 KB we measured 28 KB a request over HTTP/2, and 18 KB over gRPC.
const unfinished = 24 << 10

// grain is what reservations are rounded up to, so that not each piece of a body takes the lock.
const grain = 16 << 10

// perByte is how much a byte of a body takes: itself, and the numbers that are read from it. A byte
// of another replica's answer takes as much: it is copied into the answer of the request. So does a
// byte of a body that is sent to another replica.
const perByte = 2

// A Budget bounds the bytes of request bodies and answers that are in flight, over all
// clients, by the shares of bounds.Bytes. A request that does not fit is refused with 503.
//
// A nil Budget is no bound. A Budget is a prometheus.Collector.
type Budget struct{ bytes *bounds.Bytes }

// NewBudget returns a Budget of some bytes; 0 is no bound.
func NewBudget(most int64) *Budget { return &Budget{bounds.NewBytes(most)} }

// SetBound replaces the bound, in bytes; 0 is no bound.
func (b *Budget) SetBound(most int64) { b.bytes.SetMost(most) }

// Refused returns how many requests did not fit since the start.
func (b *Budget) Refused() uint64 { return b.bytes.Stats().Refused }

// Reserve reserves memory for n bytes that a flow has sent, and for the numbers in them. It returns a function that gives
// the memory back, or body.ErrMemory if they do not fit.
func (b *Budget) Reserve(flow string, n int64) (release func(), err error) {
	if perByte*n <= free {
		return func() {}, nil
	}
	h := b.NewHold(flow)
	return h.Free, h.Add(n)
}

// Hold is what one request has reserved of a Budget. It is not safe for concurrent use.
type Hold struct {
	budget   *Budget
	flow     string
	bytes    int64 // of bodies and answers
	arriving bool  // the server waits for the client
	reserved int64 // for them
}

// NewHold returns a Hold of a flow, of no bytes.
func (b *Budget) NewHold(flow string) Hold { return Hold{budget: b, flow: flow} }

// Bytes returns how many bytes are held.
func (h *Hold) Bytes() int64 { return h.bytes }

// Await reserves memory for a request that waits for its client, to send the body or to take the answer. It returns
// body.ErrMemory if there is none.
func (h *Hold) Await() error { return h.change(h.bytes, true) }

// Arrived tells that the body is there, or that the server does not wait for it any more.
func (h *Hold) Arrived() {
	if h.arriving {
		h.change(h.bytes, false)
	}
}

// Add reserves memory for n further bytes, as Reserve does. It returns body.ErrMemory, and changes nothing, if they do not fit.
func (h *Hold) Add(n int64) error { return h.change(h.bytes+n, h.arriving) }

// Drop gives memory for n bytes back.
func (h *Hold) Drop(n int64) { h.change(h.bytes-n, h.arriving) }

// Free gives all memory back.
func (h *Hold) Free() { h.change(0, false) }

// change holds other bytes. What takes less memory than before always succeeds.
func (h *Hold) change(bytes int64, arriving bool) error {
	if h.budget == nil {
		h.bytes = bytes
		return nil
	}
	want := perByte*bytes - free
	if arriving {
		want = perByte*bytes + unfinished
	}
	want = (max(want, 0) + grain - 1) / grain * grain
	if want > h.reserved && h.budget.bytes.Reserve(h.flow, want-h.reserved) != nil {
		return body.ErrMemory
	}
	if want < h.reserved {
		h.budget.bytes.Release(h.flow, h.reserved-want)
	}
	h.bytes, h.arriving, h.reserved = bytes, arriving, want
	return nil
}

// Bound is the middleware that counts bodies and answers. It runs behind Decoded: the bytes of
// a body are the decoded ones, and those that are decoded.
func (b *Budget) Bound(g *gin.Context) {
	if b == nil {
		return
	}
	x := exchanges.Get().(*exchange)
	x.ResponseWriter, x.request, x.sent, x.budget, x.flow = g.Writer, g.Request, g.Request.Body, b, FlowOf(g).Name
	x.memory = b.NewHold(x.flow)
	g.Writer = x
	g.Set(boundKey, x)
	if x.sent != nil && x.sent != http.NoBody {
		g.Request.Body = x
	}
	if packed, ok := x.sent.(*codedBody); ok {
		packed.reserve = func(n int) error {
			_, err := x.reserveRead(n, nil)
			return err
		}
	}
	defer x.releaseMemory(g)
	g.Next()
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// releaseMemory gives back what the exchange has reserved. Another request gets x, unless requests to other replicas may
// still read through it.
func (x *exchange) releaseMemory(g *gin.Context) {
	g.Writer, x.request.Body = x.ResponseWriter, x.sent // for the middlewares before this one, and net/http
	x.mu.Lock()
	x.memory.Free()
	lent := x.lent
	x.mu.Unlock()
	if !lent {
		*x = exchange{}
		exchanges.Put(x)
	}
}

// boundKey is the name of the exchange among the values of a request.
const boundKey = "conductor.bound"

// Held returns a reader that reserves memory for what it reads, the answer of another replica or
// the body that is sent to it, until the request is over. It returns body.ErrMemory. Several goroutines may each read one.
func Held(g *gin.Context, from io.Reader) io.Reader {
	v, _ := g.Get(boundKey)
	if x, ok := v.(*exchange); ok {
		x.mu.Lock()
		x.lent = true
		x.mu.Unlock()
		return &heldReader{x, from}
	}
	return from
}

// heldReader is a reader of Held.
type heldReader struct {
	of   *exchange // reserves the memory
	from io.Reader
}

func (r *heldReader) Read(p []byte) (int, error) { return r.of.reserveRead(r.from.Read(p)) }

// exchange is the body and the writer of one request. Only one goroutine uses it, except for reserveRead.
type exchange struct {
	gin.ResponseWriter
	request *http.Request
	sent    io.ReadCloser // its body
	budget  *Budget
	flow    string

	begun bool // the handler has asked for the body

	mu     sync.Mutex
	memory Hold // for the body, and for what other replicas send and get; guarded by mu
	lent   bool // readers of Held have it; guarded by mu
}

// reserveRead reserves memory for what a Read has returned. It returns ErrMemory in its place if that does not fit.
func (x *exchange) reserveRead(n int, err error) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.memory.Add(int64(n)) != nil {
		return 0, body.ErrMemory
	}
	return n, err
}

// Read reads the body and reserves memory for it. It returns ErrMemory.
func (x *exchange) Read(p []byte) (n int, err error) {
	if !x.begun {
		x.begun = true
		err = x.await(true)
	}
	if err == nil {
		n, err = x.reserveRead(x.sent.Read(p))
	}
	if err != nil {
		x.await(false)
	}
	if err == body.ErrMemory && x.request.ProtoMajor == 1 {
		x.Header().Set("Connection", "close") // else net/http waits for the rest of the body before it answers
	}
	return n, err
}

// await reserves memory for a body that is on its way, or gives it back once nobody waits for more.
func (x *exchange) await(more bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if more {
		return x.memory.Await()
	}
	x.memory.Arrived()
	return nil
}

// Close closes the body. It puts the body of net/http back into the request, because net/http knows only of its own bodies
// that they have been read.
func (x *exchange) Close() error {
	x.request.Body = x.sent
	return x.sent.Close()
}

// Write reserves memory for what a handler writes at once: the handler has it in a buffer until
// the client has taken it. In place of an answer that does not fit it sends 503.
func (x *exchange) Write(p []byte) (int, error) {
	n := int64(len(p))
	if n <= free {
		return x.ResponseWriter.Write(p)
	}
	if x.budget.bytes.Reserve(x.flow, n) != nil {
		if x.Written() {
			return 0, body.ErrMemory
		}
		x.sendNoMemory()
		return len(p), nil
	}
	defer x.budget.bytes.Release(x.flow, n)
	return x.ResponseWriter.Write(p)
}

// sendNoMemory sends 503.
func (x *exchange) sendNoMemory() {
	e := body.Encoder{}
	e.Map(2)
	e.TextField("error", body.ErrMemory.Error())
	e.TextField("reason", body.NoMemory)
	e.EndMap()
	h := x.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", e.Codec.ContentType())
	h.Set("Retry-After", "1") // seconds
	x.WriteHeader(http.StatusServiceUnavailable)
	x.ResponseWriter.Write(e.Out)
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

var (
	descUsed = prometheus.NewDesc("conductor_request_bytes",
		"Bytes that request bodies and answers in flight have reserved; of a request whose body has arrived, only what is beyond 64 KiB.",
		nil, nil)
	descMost = prometheus.NewDesc("conductor_request_bytes_limit",
		"Bytes that request bodies and answers in flight may reserve (limits.memory).", nil, nil)
	descUnmatched = prometheus.NewDesc("conductor_requests_without_memory_total",
		"Requests refused because their body or answer did not fit into limits.memory.", nil, nil)
)

// Describe implements prometheus.Collector.
func (b *Budget) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, ch) }

// Collect implements prometheus.Collector.
func (b *Budget) Collect(ch chan<- prometheus.Metric) {
	st := b.bytes.Stats()
	ch <- prometheus.MustNewConstMetric(descUsed, prometheus.GaugeValue, float64(st.Used))
	ch <- prometheus.MustNewConstMetric(descMost, prometheus.GaugeValue, float64(st.Most))
	ch <- prometheus.MustNewConstMetric(descUnmatched, prometheus.CounterValue, float64(st.Refused))
}
