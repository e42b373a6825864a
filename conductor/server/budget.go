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

// Bytes that a request and its answer may take without asking the Budget: usual queries pass
// without a lock.
const free = 64 << 10

// grain is how much a body reserves at once.
const grain = 64 << 10

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
	want := b.reserved(n)
	if want == 0 {
		return func() {}, nil
	}
	if b.bytes.Reserve(flow, want) != nil {
		return nil, body.ErrMemory
	}
	return func() { b.bytes.Release(flow, want) }, nil
}

// Hold is what one call has reserved of a Budget, and changes by differences. It is not safe for concurrent use.
type Hold struct {
	budget *Budget
	flow   string
	bytes  int64
}

// NewHold returns a Hold of a flow, of no bytes.
func (b *Budget) NewHold(flow string) Hold { return Hold{budget: b, flow: flow} }

// Bytes returns how many bytes are held.
func (h *Hold) Bytes() int64 { return h.bytes }

// Add reserves memory for n further bytes, as Reserve does. It returns body.ErrMemory, and changes nothing, if they do not fit.
func (h *Hold) Add(n int64) error {
	if more := h.budget.reserved(h.bytes+n) - h.budget.reserved(h.bytes); more > 0 && h.budget.bytes.Reserve(h.flow, more) != nil {
		return body.ErrMemory
	}
	h.bytes += n
	return nil
}

// Drop gives memory for n bytes back.
func (h *Hold) Drop(n int64) {
	if less := h.budget.reserved(h.bytes) - h.budget.reserved(h.bytes-n); less > 0 {
		h.budget.bytes.Release(h.flow, less)
	}
	h.bytes -= n
}

// reserved returns how much memory n bytes reserve.
func (b *Budget) reserved(n int64) int64 {
	if b == nil {
		return 0
	}
	return max(perByte*n-free, 0)
}

// Bound is the middleware that counts bodies and answers. It runs behind Decoded: the bytes of
// a body are the decoded ones.
func (b *Budget) Bound(g *gin.Context) {
	if b == nil {
		return
	}
	x := exchanges.Get().(*exchange)
	x.ResponseWriter, x.request, x.sent, x.budget, x.flow = g.Writer, g.Request, g.Request.Body, b, FlowOf(g).Name
	g.Writer = x
	g.Set(boundKey, x)
	if x.sent != nil && x.sent != http.NoBody {
		g.Request.Body = x
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
	x.budget.bytes.Release(x.flow, x.held)
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

	mu   sync.Mutex
	read int64 // bytes of the body, and of what other replicas send and get; guarded by mu
	held int64 // reserved for them; guarded by mu
	lent bool  // readers of Held have it; guarded by mu
}

// reserveRead reserves memory for what a Read has returned. It returns ErrMemory in its place if that does not fit.
func (x *exchange) reserveRead(n int, err error) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.read += int64(n)
	if want := perByte*x.read - free; want > x.held {
		more := want - x.held + grain
		if x.budget.bytes.Reserve(x.flow, more) != nil {
			return 0, body.ErrMemory
		}
		x.held += more
	}
	return n, err
}

// Read reads the body and reserves memory for it. It returns ErrMemory.
func (x *exchange) Read(p []byte) (int, error) { return x.reserveRead(x.sent.Read(p)) }

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
		"Bytes that request bodies and answers in flight have reserved; small ones do not.", nil, nil)
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
