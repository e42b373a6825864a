package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
	"example.com/conductor/redact"
)

const (
	// shunning is how long a replica that failed is asked after the others. It is a beat.
	shunning = time.Second
	// copyBuffer fits an answer of hundreds of rows.
	copyBuffer = 32 << 10
	// idempotencyKey is the header of requests that may be sent twice, in the form of a key of http.Header.
	idempotencyKey = "Idempotency-Key"
)

// ForwarderConfig is what a Forwarder is made of.
type ForwarderConfig struct {
	// Me is the id of this replica.
	Me string
	// To sends requests, and authenticates this replica. See NewTransport.
	To http.RoundTripper
	// Timeout is how long a replica may take until its answer begins. Then the next one is asked.
	Timeout time.Duration
	// Failed is called after no replica has answered: those that serve may be others by now.
	Failed func()
	Log    zerolog.Logger
}

// NewTransport returns what carries requests to other replicas, over HTTP/1.1.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: shunning, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: shunning,
		MaxIdleConnsPerHost: 256, // more queries at once than that open a connection each
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // replicas are near, and an answer is passed on as it came
		// Most requests leave in one write.
		WriteBufferSize: 64 << 10, ReadBufferSize: 16 << 10,
		MaxResponseHeaderBytes: 64 << 10, // replicas send less than 1 KiB
	}
}

// Forwarder sends queries to the replicas that serve their shards. It is a prometheus.Collector.
type Forwarder struct {
	cfg     ForwarderConfig
	results *prometheus.CounterVec
	faults  *prometheus.CounterVec
	seconds prometheus.Histogram

	mu      sync.Mutex
	shunned map[string]time.Time // until when, by id; guarded by mu
}

// NewForwarder returns a Forwarder. It asks nothing.
func NewForwarder(cfg ForwarderConfig) *Forwarder {
	return &Forwarder{
		cfg: cfg, shunned: make(map[string]time.Time),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_cluster_forwarded_total",
			Help: "Queries, calls of gRPC, reports and parts of batches for other replicas, by result.",
		}, []string{"result"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_cluster_forward_failures_total",
			Help: "Replicas that did not answer a forwarded query, by reason. The next one was asked.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "conductor_cluster_forward_seconds", Help: "Time until a replica began to answer a forwarded query.",
			Buckets: []float64{50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 500e-3, 2.5},
		}),
	}
}

// Describe implements prometheus.Collector.
func (f *Forwarder) Describe(ch chan<- *prometheus.Desc) {
	f.results.Describe(ch) // by their collectors, because results and faults have no series before the first query
	f.faults.Describe(ch)
	f.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (f *Forwarder) Collect(ch chan<- prometheus.Metric) {
	f.results.Collect(ch)
	f.faults.Collect(ch)
	f.seconds.Collect(ch)
}

// Mounted says what a path without the prefix of a dialect means on a listener.
type Mounted struct {
	Prefix string // of the dialect on every listener
	Query  string // what asks for the dialect there, "" for nothing
	Type   string // media type of the body there, "" for that of the request
}

// At returns a middleware that lets the requests of a listener be sent on.
func (f *Forwarder) At(m Mounted) gin.HandlerFunc {
	var here forward.Forwarder = &mountedForwarder{f, m}
	return func(g *gin.Context) { g.Set(forward.Key, here) }
}

// mountedForwarder is a Forwarder on one listener.
type mountedForwarder struct {
	forwarder *Forwarder
	at        Mounted
}

// targetOf returns the path and query by which any listener of another replica answers a request.
func (f *mountedForwarder) targetOf(g *gin.Context) (target string, root bool) {
	path, query := g.Request.URL.EscapedPath(), g.Request.URL.RawQuery
	root = !strings.HasPrefix(path, "/conductor/v1/") && !strings.HasPrefix(path, "/dynamo/v1/") && !strings.HasPrefix(path, "/admin/")
	if root {
		path = f.at.Prefix + path
		if f.at.Query != "" {
			query = strings.TrimPrefix(query+"&"+f.at.Query, "&")
		}
	}
	if query != "" {
		path += "?" + query
	}
	return path, root
}

// Forward implements forward.Forwarder. With Prefer: redirect the client is sent to the replica.
func (f *mountedForwarder) Forward(g *gin.Context, src []byte, to *conductor.UnservedError) error {
	if prefersRedirect(g.Request.Header) {
		path, _ := f.targetOf(g)
		g.Header("Location", strings.TrimSuffix(redact.WithoutUser(f.forwarder.orderReplicas(to.Serving)[0].URL), "/")+path)
		g.Header("Preference-Applied", "redirect")
		server.Send(g, http.StatusTemporaryRedirect, "text/plain; charset=utf-8", nil)
		f.forwarder.results.WithLabelValues("redirected").Inc()
		return nil
	}
	out, err := f.prepareRequest(g, src)
	if err != nil {
		return err
	}
	return f.forwarder.sendToAny(out, to, func(resp *http.Response, by conductor.ReplicaAddress) error {
		h := g.Writer.Header()
		for name, values := range resp.Header {
			if !hopByHop[name] {
				h[name] = values
			}
		}
		h.Set(forward.ReplicaHeader, by.ID)
		g.Status(resp.StatusCode)
		buffer := buffers.Get().(*[copyBuffer]byte)
		defer buffers.Put(buffer)
		if _, err := io.CopyBuffer(writerOnly{g.Writer}, resp.Body, buffer[:]); err != nil {
			panic(http.ErrAbortHandler) // the client sees that its answer is cut off
		}
		return nil
	})
}

// writerOnly hides the ReadFrom of a writer, which has a buffer of its own.
type writerOnly struct{ io.Writer }

var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// maxPart bounds the answer of a part of a batch, in bytes.
const maxPart = 64 << 20

// Ask implements forward.Forwarder.
func (f *mountedForwarder) Ask(g *gin.Context, src []byte, to *conductor.UnservedError) (answer []byte, err error) {
	out, err := f.prepareRequest(g, src)
	if err != nil {
		return nil, err
	}
	err = f.forwarder.sendToAny(out, to, func(resp *http.Response, by conductor.ReplicaAddress) error {
		answer, err = io.ReadAll(server.Held(g, io.LimitReader(resp.Body, maxPart+1)))
		switch {
		case err != nil:
			return fmt.Errorf("%w: replica %s: %w", forward.ErrReplicas, by.ID, err)
		case len(answer) > maxPart:
			return fmt.Errorf("%w: the answer of replica %s is larger than %d bytes", forward.ErrReplicas, by.ID, maxPart)
		case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
			return fmt.Errorf("%w: replica %s answers %s: %.200s", forward.ErrReplicas, by.ID, resp.Status, answer)
		}
		return nil
	})
	return answer, err
}

// Carry implements rpc.Forwarder. The message is not changed any more.
func (f *Forwarder) Carry(ctx context.Context, client, path, mediaType string, message []byte, to *conductor.UnservedError,
	use func(*http.Response, conductor.ReplicaAddress) error) error {
	h := http.Header{"Content-Type": {mediaType}}
	h.Set(forward.ForwardedHeader, f.cfg.Me)
	h.Set(forward.ClientHeader, client)
	return f.sendToAny(&outgoing{ctx, path, h, message}, to, use)
}

// outgoing is a request that a replica sends on.
type outgoing struct {
	ctx    context.Context
	target string // path and query, by which any listener answers it
	header http.Header
	body   []byte // a transport may read it for a while after the request has ended
}

// prepareRequest returns the request of g as it is sent to other replicas, with a copy of its body. It returns body.ErrMemory
// if there is no room for the copy.
func (f *mountedForwarder) prepareRequest(g *gin.Context, src []byte) (*outgoing, error) {
	body := make([]byte, len(src))
	if _, err := io.ReadFull(server.Held(g, bytes.NewReader(src)), body); err != nil {
		return nil, err
	}
	path, root := f.targetOf(g)
	h := make(http.Header, len(g.Request.Header)+2)
	for name, values := range g.Request.Header {
		if !hopByHop[name] && !ownHeaders[name] {
			h[name] = values
		}
	}
	if root && f.at.Type != "" {
		h["Content-Type"] = []string{f.at.Type}
	}
	h.Set(forward.ForwardedHeader, f.forwarder.cfg.Me)
	h.Set(forward.ClientHeader, access.Of(g).Tell())
	return &outgoing{g.Request.Context(), path, h, body}, nil
}

// sendToAny sends a request to one replica after another until one answers, and passes its answer to use.
func (f *Forwarder) sendToAny(out *outgoing, to *conductor.UnservedError, use func(*http.Response, conductor.ReplicaAddress) error) error {
	// A transport sends a request again if the connection that it took was closed meanwhile, but a POST only if
	// it has this header. Without a value the header stays here.
	if _, given := out.header[idempotencyKey]; !given {
		out.header[idempotencyKey] = []string{}
	}
	var last error
	for _, by := range f.orderReplicas(to.Serving) {
		if last != nil && out.ctx.Err() != nil {
			break
		}
		reason, err := f.sendTo(out, by, use)
		if reason == "" {
			answered := err == nil || out.ctx.Err() != nil // a client may leave in the middle of its answer
			f.results.WithLabelValues(map[bool]string{true: "answered", false: "failed"}[answered]).Inc()
			return err
		}
		if out.ctx.Err() == nil {
			f.shunReplica(by.ID)
			f.faults.WithLabelValues(reason).Inc()
			f.cfg.Log.Debug().Str("replica", by.ID).Str("url", redact.URL(by.URL)).Str("reason", reason).Err(err).Msg(
				"a forwarded query is not answered")
		}
		last = fmt.Errorf("%w: replica %s: %w", forward.ErrReplicas, by.ID, err)
	}
	f.results.WithLabelValues("failed").Inc()
	f.cfg.Failed()
	return last
}

// sendTo asks one replica. reason is why the next one is to be asked, "" if use was called.
func (f *Forwarder) sendTo(out *outgoing, by conductor.ReplicaAddress,
	use func(*http.Response, conductor.ReplicaAddress) error) (reason string, err error) {
	ctx, cancel := context.WithCancel(out.ctx)
	defer cancel()
	late := time.AfterFunc(f.cfg.Timeout, cancel)
	defer late.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(by.URL, "/")+out.target, bytes.NewReader(out.body))
	if err != nil {
		return "url", redact.Error(err)
	}
	req.Header = out.header
	start := time.Now()
	resp, err := f.cfg.To.RoundTrip(req)
	switch {
	case err != nil && !late.Stop() && out.ctx.Err() == nil:
		return "timeout", fmt.Errorf("no answer within %s", f.cfg.Timeout)
	case err != nil:
		return "connection", redact.Error(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, which no context ends
		return "status", errors.New(resp.Status)
	}
	if reason := refusedBy(resp.StatusCode); reason != "" {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return reason, fmt.Errorf("%s: %s", resp.Status, strings.ToValidUTF8(string(text), "?"))
	}
	if !late.Stop() {
		return "timeout", fmt.Errorf("no answer within %s", f.cfg.Timeout)
	}
	f.seconds.Observe(time.Since(start).Seconds())
	return "", use(resp, by)
}

// refusedBy returns why an answer with a status is not passed on to the client, "" if it is passed on.
func refusedBy(status int) string {
	switch {
	case status == http.StatusMisdirectedRequest:
		return "misdirected"
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests:
		return "refused" // this replica, whose client may ask
	case status >= http.StatusInternalServerError:
		return "status"
	}
	return ""
}

// hopByHop are the headers of one connection.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true,
	"Upgrade": true, "Date": true,
}

// ownHeaders are headers of a client that are for this replica alone: its credentials among them.
var ownHeaders = map[string]bool{
	"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Content-Length": true, "Content-Encoding": true,
	"Accept-Encoding": true, "Expect": true,
	"Prefer": true, "Host": true, forward.ForwardedHeader: true, forward.MirroredHeader: true, forward.ClientHeader: true, "Range": true,
	"Origin": true, "Sec-Fetch-Site": true, // this replica has compared them with its own name
}

// prefersRedirect reports whether a client asks to be sent to the replica that serves it.
func prefersRedirect(h http.Header) bool {
	for _, line := range h["Prefer"] {
		for p := range strings.SplitSeq(line, ",") {
			if name, _, _ := strings.Cut(p, ";"); strings.EqualFold(strings.TrimSpace(name), "redirect") {
				return true
			}
		}
	}
	return false
}

// orderReplicas returns replicas in the order in which they are asked: it begins with a random one, and those that failed
// lately come last.
func (f *Forwarder) orderReplicas(all []conductor.ReplicaAddress) []conductor.ReplicaAddress {
	if len(all) < 2 {
		return all
	}
	first := rand.IntN(len(all))
	out := append(slices.Clone(all[first:]), all[:first]...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.shunned) == 0 {
		return out
	}
	now := time.Now()
	for id, until := range f.shunned {
		if now.After(until) {
			delete(f.shunned, id)
		}
	}
	slices.SortStableFunc(out, func(a, b conductor.ReplicaAddress) int {
		return f.shunned[a.ID].Compare(f.shunned[b.ID])
	})
	return out
}

// shunReplica lets a replica be asked last for a while.
func (f *Forwarder) shunReplica(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shunned[id] = time.Now().Add(shunning)
}
