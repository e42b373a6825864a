package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/redact"
)

const (
	// mirroredBytes bounds what waits for one replica: a hundred reports of 8,192 tokens. What comes then is
	// dropped: the replica is slower than the reports, and it is better for it to miss some than to get all of them too late.
	mirroredBytes = 4 << 20
	// mirroredAge is how long a report may wait. After that the engine is about to announce the blocks.
	mirroredAge = time.Second
	// batchBytes bounds the body of one request, unless one report takes more.
	batchBytes = 1 << 20
	// mostAsking is how many calls of TakeBack ask the other replicas at once. Each sends a request to all of them.
	mostAsking = 32
	// unknownPause is how long nothing is sent to a replica that has no /routed: it is of an older version, or another
	// kind of server.
	unknownPause = time.Minute
)

// MirrorConfig is what a Mirror is made of.
type MirrorConfig struct {
	// Me is the id of this replica.
	Me string
	// To sends requests, and authenticates this replica.
	To http.RoundTripper
	// All returns the other replicas that are alive, Serving those of them that serve a shard.
	All     func() []conductor.ReplicaAddress
	Serving func(scope.Shard) []conductor.ReplicaAddress
	// Timeout is how long a replica may take to answer.
	Timeout time.Duration
	// MaxTokens bounds the tokens of one request, as it does here.
	MaxTokens int
	Log       zerolog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Mirror tells other replicas what routers report here. It is a conductor.Mirror and a prometheus.Collector.
//
//	Routed, TakenBack --> queue of each replica --> POST /routed, DELETE /routed/ID, one request after another
//
// A queue keeps the order, so that a report is never behind what takes it back. Reports of one client that wait together
// leave as one batch. A replica that does not answer gets nothing for a while; what would
// go there meanwhile is dropped.
//
// All methods are safe for concurrent use.
type Mirror struct {
	cfg     MirrorConfig
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	sending sync.WaitGroup // queues that are sent
	asking  chan struct{}  // has an element for each TakeBack that is under way
	results *prometheus.CounterVec

	mu     sync.Mutex
	closed bool              // guarded by mu
	queues map[string]*queue // by URL; guarded by mu
}

// queue has the reports that are still to be sent to one replica. Mirror.mu guards it.
type queue struct {
	to      conductor.ReplicaAddress
	waits   []mirrored
	bytes   int
	sending bool      // a goroutine sends what waits
	pause   time.Time // nothing is sent before
	failing bool      // the last request was not answered
}

// mirrored is a report, or what takes one back. Queues share it.
type mirrored struct {
	from   string    // the client, as access.Client.Tell has it
	at     time.Time // when it was reported
	path   string    // of the request that takes a report back, "" of a report
	report []byte    // element of prompts
	tokens int
}

// NewMirror returns a Mirror. Close ends it.
func NewMirror(cfg MirrorConfig) *Mirror {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Mirror{
		cfg: cfg, ctx: ctx, stop: stop, queues: make(map[string]*queue), asking: make(chan struct{}, mostAsking),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_reports_mirrored_total",
			Help: "Reports of routers, and requests that take them back, for other replicas that serve the model, by result.",
		}, []string{"result"}),
	}
}

// Results of a mirrored report.
const (
	delivered = "delivered"
	refused   = "refused" // the replica does not know the target, or does not serve the model any more
	failed    = "failed"  // no answer
	dropped   = "dropped" // it has not left: too much waits, or the replica does not answer
)

// Close ends the requests that are under way.
func (m *Mirror) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	m.sending.Wait()
}

// Describe implements prometheus.Collector.
func (m *Mirror) Describe(ch chan<- *prometheus.Desc) { m.results.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Mirror) Collect(ch chan<- prometheus.Metric) {
	for _, result := range []string{delivered, refused, failed, dropped} {
		m.results.WithLabelValues(result) // a rate needs the zero
	}
	m.results.Collect(ch)
}

// Me implements conductor.Mirror.
func (m *Mirror) Me() string { return m.cfg.Me }

// Routed implements conductor.Mirror.
func (m *Mirror) Routed(from conductor.Teller, r *match.Routed) {
	tenant := r.Tenant
	if tenant == "" {
		tenant = scope.DefaultTenant
	}
	if to := m.selectReady(m.cfg.Serving(scope.Shard{Tenant: tenant, Model: r.Model})); len(to) > 0 {
		m.queueReport(to, mirrored{from: describeClient(from), report: reportOf(r), tokens: len(r.Tokens) + len(r.Hashes)})
	}
}

// TakenBack implements conductor.Mirror.
func (m *Mirror) TakenBack(from conductor.Teller, tenant, requestID string) {
	if to := m.selectReady(m.cfg.All()); len(to) > 0 {
		m.queueReport(to, mirrored{from: describeClient(from), path: takeBackPath(tenant, requestID)})
	}
}

// TakeBack implements conductor.Mirror.
func (m *Mirror) TakeBack(from conductor.Teller, tenant, requestID string) bool {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Timeout)
	defer cancel()
	select {
	case m.asking <- struct{}{}:
		defer func() { <-m.asking }()
	case <-ctx.Done():
		return false
	}
	to, _ := m.selectOpen(m.cfg.All())
	had := make(chan bool, len(to))
	for _, by := range to {
		go func() {
			status, _, err := m.sendRequest(ctx, by, http.MethodDelete, takeBackPath(tenant, requestID), nil, describeClient(from), false)
			if err != nil && ctx.Err() != context.Canceled { // the others had not had it yet
				m.recordOutcome(m.queueOf(by), shunning, err)
			}
			had <- err == nil && status == http.StatusNoContent
		}()
	}
	for range to {
		if <-had {
			return true // the replica lets the others take it back
		}
	}
	return false
}

// describeClient describes a client for another replica; "" for a client with every role.
func describeClient(from conductor.Teller) string {
	if from == nil {
		return ""
	}
	return from.Tell()
}

func takeBackPath(tenant, requestID string) string {
	return "/conductor/v1/routed/" + url.PathEscape(requestID) + "?tenant_id=" + url.QueryEscape(tenant)
}

// selectReady returns the replicas that may be sent to now. Reports for the others count as dropped.
func (m *Mirror) selectReady(to []conductor.ReplicaAddress) []conductor.ReplicaAddress {
	open, shut := m.selectOpen(to)
	if shut > 0 {
		m.results.WithLabelValues(dropped).Add(float64(shut))
	}
	return open
}

// selectOpen returns the replicas that answered the last request, or whose pause is over, and how many others there are.
func (m *Mirror) selectOpen(to []conductor.ReplicaAddress) (open []conductor.ReplicaAddress, shut int) {
	if len(to) == 0 {
		return nil, 0
	}
	now := m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	isShut := func(a conductor.ReplicaAddress) bool {
		q := m.queues[a.URL]
		return m.closed || q != nil && now.Before(q.pause)
	}
	if !slices.ContainsFunc(to, isShut) {
		return to, 0
	}
	open = slices.DeleteFunc(slices.Clone(to), isShut)
	return open, len(to) - len(open)
}

// queueReport puts a report into the queues of some replicas.
func (m *Mirror) queueReport(to []conductor.ReplicaAddress, x mirrored) {
	x.at = m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range to {
		q := m.queueLocked(a)
		if m.closed || q.bytes > 0 && q.bytes+len(x.report) > mirroredBytes {
			m.results.WithLabelValues(dropped).Inc()
			continue
		}
		q.waits = append(q.waits, x)
		if q.bytes += x.size(); !q.sending {
			q.sending = true
			m.sending.Go(func() { m.sendQueue(q) })
		}
	}
}

// queueOf returns the queue of a replica.
func (m *Mirror) queueOf(a conductor.ReplicaAddress) *queue {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.queueLocked(a)
}

// queueLocked does what queueOf does, with m.mu held.
func (m *Mirror) queueLocked(a conductor.ReplicaAddress) *queue {
	q := m.queues[a.URL]
	if q == nil {
		q = &queue{to: a}
		m.queues[a.URL] = q
	}
	return q
}

// size is about what a report takes while it waits.
func (x *mirrored) size() int { return len(x.report) + len(x.path) + 100 }

// sendQueue sends what waits in a queue until nothing does.
func (m *Mirror) sendQueue(q *queue) {
	for {
		batch := m.takeBatch(q)
		if len(batch) == 0 {
			return
		}
		counts, pause, err := m.deliverBatch(q.to, batch)
		for result, n := range counts {
			m.results.WithLabelValues(result).Add(float64(n))
		}
		m.recordOutcome(q, pause, err)
	}
}

// takeBatch takes what the next request sends out of a queue: one report to take back, or reports of one client.
func (m *Mirror) takeBatch(q *queue) (batch []mirrored) {
	now := m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	old := 0
	for _, x := range q.waits {
		if now.Sub(x.at) < mirroredAge && m.ctx.Err() == nil {
			break
		}
		old++
	}
	if old > 0 {
		m.results.WithLabelValues(dropped).Add(float64(old))
		q.dropFirst(old)
	}
	n, size, tokens := 0, 0, 0
	for ; n < len(q.waits) && n < body.MaxItems; n++ {
		x, first := &q.waits[n], &q.waits[0]
		size, tokens = size+len(x.report), tokens+x.tokens
		if n > 0 && (x.path != "" || first.path != "" || x.from != first.from || size > batchBytes || tokens > m.cfg.MaxTokens) {
			break
		}
	}
	batch = slices.Clone(q.waits[:n])
	if q.dropFirst(n); n == 0 {
		q.sending = false
	}
	return batch
}

// dropFirst removes the first n reports of a queue.
func (q *queue) dropFirst(n int) {
	for i := range q.waits[:n] {
		q.bytes -= q.waits[i].size()
	}
	q.waits = slices.Delete(q.waits, 0, n)
	if len(q.waits) == 0 {
		q.waits = nil
	}
}

// recordOutcome records how a request to the replica of a queue has ended. If err is not nil, what waits is dropped, and
// nothing is sent to the replica for the pause.
func (m *Mirror) recordOutcome(q *queue, pause time.Duration, err error) {
	if m.ctx.Err() != nil {
		return
	}
	now := m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	was := q.failing
	if q.failing = err != nil; !q.failing {
		if was {
			m.cfg.Log.Info().Str("replica", redact.URL(q.to.ID)).Str("url", redact.URL(q.to.URL)).Msg(
				"a replica takes reports of routers again")
		}
		return
	}
	if !was {
		m.cfg.Log.Warn().Str("replica", redact.URL(q.to.ID)).Str("url", redact.URL(q.to.URL)).Err(err).Msg(
			"a replica does not take the reports of routers that other replicas have got")
	}
	q.pause = now.Add(pause)
	if n := len(q.waits); n > 0 {
		m.results.WithLabelValues(dropped).Add(float64(n))
		q.dropFirst(n)
	}
	maps.DeleteFunc(m.queues, func(_ string, other *queue) bool { // of replicas that are gone
		return other != q && !other.sending && now.Sub(other.pause) > unknownPause
	})
}

// deliverBatch sends one request, and returns how many of its reports had which result. After an error, nothing is to be sent
// to the replica for the pause.
func (m *Mirror) deliverBatch(to conductor.ReplicaAddress, batch []mirrored) (counts map[string]int, pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Timeout)
	defer cancel()
	method, path, text := http.MethodDelete, batch[0].path, []byte(nil)
	if path == "" {
		method, path, text = http.MethodPost, "/conductor/v1/routed", encodeReports(batch)
	}
	status, answer, err := m.sendRequest(ctx, to, method, path, text, batch[0].from, true)
	n := len(batch)
	switch reason := refusedBy(status); {
	case err != nil:
		return map[string]int{failed: n}, shunning, err
	case status == http.StatusNoContent || method == http.MethodDelete && isReason(answer, "not_found"): // it has expired
		return map[string]int{delivered: n}, 0, nil
	case status == http.StatusOK:
		kept := keptOf(answer, n)
		return map[string]int{delivered: kept, refused: n - kept}, 0, nil
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return map[string]int{failed: n}, unknownPause, fmt.Errorf("it has no %s %s: it is of an older version, or another kind of server",
			method, path)
	case reason == "" || reason == "misdirected":
		return map[string]int{refused: n}, 0, nil
	default:
		return map[string]int{failed: n}, shunning, fmt.Errorf("it answers %d %s: %.200q", status, http.StatusText(status), answer)
	}
}

// maxAnswer bounds how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// sendRequest sends a request of a client to another replica. all says that this replica tells the others itself.
func (m *Mirror) sendRequest(ctx context.Context, to conductor.ReplicaAddress, method, path string, text []byte, from string,
	all bool) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(to.URL, "/")+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, redact.Error(err)
	}
	h := req.Header
	h["Accept"] = []string{body.JSON.ContentType()}
	if method == http.MethodPost {
		h["Content-Type"] = []string{body.Msgpack.ContentType()}
	}
	h[idempotencyKey] = []string{} // see Forwarder.sendToAny
	h.Set(forward.ForwardedHeader, m.cfg.Me)
	if from != "" {
		h.Set(forward.ClientHeader, from)
	}
	if all {
		h.Set(forward.MirroredHeader, "1")
	}
	resp, err := m.cfg.To.RoundTrip(req)
	if err != nil {
		return 0, nil, redact.Error(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, answer, err
}

// keptOf returns how many of n reports a replica has kept, by its answer.
func keptOf(answer []byte, n int) int {
	var said struct{ Kept *int }
	if json.Unmarshal(answer, &said) != nil || said.Kept == nil {
		return n // it warns of something
	}
	return min(max(*said.Kept, 0), n)
}

func isReason(answer []byte, reason string) bool {
	var said struct{ Reason string }
	return json.Unmarshal(answer, &said) == nil && said.Reason == reason
}

// encodeReports returns the body of a request with reports.
func encodeReports(batch []mirrored) []byte {
	e := body.Encoder{Codec: body.Msgpack}
	e.Map(1)
	e.Name("prompts")
	e.List(len(batch))
	for _, x := range batch {
		e.Raw(x.report)
	}
	return e.Out
}

// reportOf returns a report as an element of prompts, in msgpack.
func reportOf(r *match.Routed) []byte {
	texts := [...]struct{ name, value string }{
		{"model", r.Model}, {"tenant_id", r.Tenant}, {"lora_name", r.Lora}, {"cache_salt", r.Salt}, {"instance_id", r.Target},
		{"request_id", r.RequestID},
		{"ttl", ""}, {"hash", ""},
	}
	if r.TTL > 0 {
		texts[6].value = r.TTL.String()
	}
	if r.ByHash {
		texts[7].value = r.HashKind.String()
	}
	pairs := 3
	for _, x := range texts {
		if x.value != "" {
			pairs++
		}
	}
	e := body.Encoder{Codec: body.Msgpack, Out: make([]byte, 0, 4*len(r.Tokens)+8*len(r.Hashes)+256)}
	e.Map(pairs)
	for _, x := range texts {
		if x.value != "" {
			e.Key(x.name)
			e.Text(x.value)
		}
	}
	e.IntField("block_size", r.BlockSize)
	if e.Name("dp_rank"); r.Rank == match.AnyRank {
		e.Null()
	} else {
		e.Int(r.Rank)
	}
	if r.ByHash {
		e.Name("seq_hashes")
		e.Out = appendBin(e.Out, 8*len(r.Hashes))
		for _, h := range r.Hashes {
			e.Out = binary.LittleEndian.AppendUint64(e.Out, h)
		}
		return e.Out
	}
	e.Name("token_ids")
	e.Out = appendBin(e.Out, 4*len(r.Tokens))
	for _, id := range r.Tokens {
		e.Out = binary.LittleEndian.AppendUint32(e.Out, id)
	}
	return e.Out
}

// appendBin appends the head of a bin of some bytes.
func appendBin(dst []byte, size int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, 0xc6), uint32(size))
}

// Others returns the other replicas of a group, as of the last beat. A process that was here before
// this one may still have its lease, and so may one whose successor beats already.
func Others(g *membership.Group) (all []conductor.ReplicaAddress) {
	st := g.Status()
	seen := []string{""}
	for _, r := range st.Replicas {
		if r.ID == g.ID() {
			seen = append(seen, r.URL)
		}
	}
	for _, r := range st.Replicas {
		if !slices.Contains(seen, r.URL) {
			seen = append(seen, r.URL)
			all = append(all, conductor.ReplicaAddress{ID: r.ID, URL: r.URL})
		}
	}
	return all
}
