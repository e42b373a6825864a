package pick

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/guard"
	"example.com/conductor/integrations/envoy/prompt"
	"example.com/conductor/integrations/envoy/tokens"
)

// Reasons of a choice, besides those of package prompt: what decided where a request goes.
const (
	reasonPrefix    = "prefix"            // the engine has, or soon has, a part of the prompt
	reasonNoPrefix  = "no_prefix"         // Conductor answered, and the chosen engine has nothing of the prompt
	reasonTokenizer = "tokenizer_failed"  // load alone, because nobody made tokens of the prompt
	reasonConductor = "conductor_down"    // load alone, because Conductor did not answer, or not sensibly
	reasonRefused   = "conductor_refused" // load alone, because Conductor refused the query
	reasonModel     = "unknown_model"     // load alone, because no engine is registered for the model
)

// Headers that engines and their proxies read.
const (
	// rankHeader chooses the data-parallel rank in vLLM and in SGLang.
	rankHeader = "x-data-parallel-rank"
	// prefillHeader names the engine that computes the prompt, as "ip:port", to the routing sidecar of llm-d in front of an engine
	// that decodes.
	prefillHeader = "x-prefiller-host-port"
)

const (
	// maxAsked bounds the tokens that Conductor is asked about for one request, once for each prompt and block size. Of a longer prompt the
	// first ones are asked about, and the others count as not cached.
	maxAsked = 1 << 20
	// patienceTokens is for how many tokens a request waits Options.Patience; for more it waits in proportion. If Conductor is late with
	// an answer about more, that says nothing of Conductor.
	patienceTokens = 64 << 10
)

// Pick implements Picker.
func (c *Chooser) Pick(ctx context.Context, r *Request) (Flight, error) {
	ctx = context.WithValue(ctx, traceKey{}, r.Traceparent)

	// 1. What is asked for, and who may do it.
	asked := prompt.Read(r.Method, r.Path, r.Body)
	engines, served, refusal := c.eligible(&asked, r.Eligible)
	if refusal != nil {
		c.metrics.refusals.WithLabelValues(strconv.Itoa(refusal.Status)).Inc()
		return nil, refusal
	}

	// 2. The tokens of the prompt, or why the load alone decides.
	reason := asked.Without
	if reason == "" && !served {
		reason = reasonModel
	}
	var prompts [][]uint32
	if reason == "" {
		prompts, reason = c.tokens(ctx, &asked, engines)
	}

	// 3. Who has how much of it cached.
	var asks []*ask
	if reason == "" {
		asks, reason = c.ask(ctx, &asked, prompts, engines)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// 4. The choice.
	f, refusal := c.choose(r, &asked, prompts, asks, reason, engines)
	if refusal != nil {
		c.metrics.refusals.WithLabelValues(strconv.Itoa(refusal.Status)).Inc()
		return nil, refusal
	}
	return f, nil
}

type traceKey struct{}

// Traceparent returns the W3C trace context of the request for which a Conductor is asked, "" for none. An HTTP client of Conductor
// can send it on, so that the spans of both are in one trace.
func Traceparent(ctx context.Context) string {
	text, _ := ctx.Value(traceKey{}).(string)
	return text
}

// eligible returns the engines that a request may go to, together with those that compute prompts for others, and whether they
// serve its model. If a request names no model and there is only one, it is for that, because engines read it so.
//
// A request for a model that no engine is registered for may go to any engine. That engine answers 404 and says which models it has,
// which is what the client expects, or it has just loaded an adapter that Conductor has not heard of yet.
func (c *Chooser) eligible(asked *prompt.Request, endpoints []string) (engines []*engine, served bool, refusal *Refusal) {
	c.mu.Lock()
	f := c.fleet
	c.mu.Unlock()
	if f == nil || len(f.all) == 0 {
		return nil, false, &Refusal{http.StatusServiceUnavailable, "no engine is registered with Conductor, or none with an address"}
	}
	asked.Model = cmp.Or(asked.Model, f.onlyModel)
	engines = f.byModel[asked.Model]
	if served = len(engines) > 0; !served {
		engines = f.all
	}
	allowed := make(map[string]bool, len(endpoints))
	for _, e := range endpoints {
		allowed[endpointOf(e)] = true
	}
	left, takes, seen := make([]*engine, 0, len(engines)), false, make(map[string]bool)
	for _, e := range engines {
		if seen[e.endpoint] {
			continue // the same engine, registered for another model
		}
		seen[e.endpoint] = true
		if e.Role == "prefill" {
			left = append(left, e) // the data plane sends it nothing, so its subset does not name it
		} else if endpoints == nil || allowed[e.endpoint] {
			left, takes = append(left, e), true
		}
	}
	if !takes {
		return nil, served, &Refusal{http.StatusServiceUnavailable,
			"none of the endpoints that the data plane allows is an engine for the request"}
	}
	return left, served, nil
}

// tokens returns the tokens of all prompts, or why there are none.
func (c *Chooser) tokens(ctx context.Context, asked *prompt.Request, engines []*engine) (prompts [][]uint32, reason string) {
	prompts = make([][]uint32, len(asked.Prompts))
	c.mu.Lock()
	var bases []string
	for _, e := range c.alive(engines, c.Now()) {
		bases = append(bases, e.base)
	}
	c.mu.Unlock()
	errs := make([]error, len(prompts))
	var calls sync.WaitGroup
	for i, p := range asked.Prompts {
		if prompts[i] = p.Tokens; p.Text == nil {
			continue
		}
		one := func() {
			began := time.Now()
			var cached bool
			prompts[i], cached, errs[i] = c.tokenizer.Tokens(ctx, p.Text, bases)
			c.metrics.tokenized(cached, errs[i], time.Since(began))
		}
		if len(prompts) == 1 {
			one()
		} else {
			calls.Go(one)
		}
	}
	calls.Wait()
	for _, err := range errs {
		if failure := (*tokens.Error)(nil); errors.As(err, &failure) && failure.Reason == tokens.Unsupported {
			return nil, prompt.Unsupported
		}
		if err != nil {
			c.logPanic(err)
			c.Log.Debug().Err(err).Msg("a prompt goes by load alone")
			return nil, reasonTokenizer
		}
	}
	return prompts, ""
}

// ask is a question to Conductor about one prompt and one block size, and its answer.
type ask struct {
	prompt    int // of the request
	query     client.Query
	began     time.Time
	id        string
	context   string // model, adapter and salt, as the answer has them
	blockSize int
	rows      map[rankOf]client.Rank // tokens; rank AnyRank is for ranks that have no row
	uncertain map[string]bool        // instances whose rows may be longer or shorter than what they have
}

type rankOf struct {
	instance string
	rank     int
}

// ask asks Conductor about all prompts at once, for at most the patience. It asks once for each block size, so that engines
// with different ones can be compared: an instance is in the answer for its own.
//
// The breaker of Conductor is for all clients, so one whose prompts take long to answer must not open it: only lateness with what
// every healthy Conductor answers in time counts.
func (c *Chooser) ask(ctx context.Context, asked *prompt.Request, prompts [][]uint32, engines []*engine) (asks []*ask, reason string) {
	ticket, ok := c.breaker.Allow(c.Now())
	if !ok {
		return nil, reasonConductor
	}
	var sizes []int
	for _, e := range engines {
		if e.BlockSize > 0 && !slices.Contains(sizes, e.BlockSize) {
			sizes = append(sizes, e.BlockSize)
		}
	}
	if sizes == nil {
		sizes = []int{0} // Conductor may have learned it meanwhile
	}
	now, total := c.Now(), 0
	for i, ids := range prompts {
		ids = firstTokens(ids, maxAsked/(len(prompts)*len(sizes)))
		for _, size := range sizes {
			total += len(ids)
			asks = append(asks, &ask{prompt: i, began: now, query: client.Query{Model: asked.Model, BlockSize: size, Tenant: c.Tenant,
				Salt: asked.Salt, Tokens: ids, MinMatched: 1}}) // no row says the same as one of zeros
		}
	}
	asking, cancel := context.WithTimeout(ctx, c.patience(total))
	defer cancel()
	type result struct {
		*ask
		answer client.Candidates
		err    error
	}
	results := make(chan result, len(asks))
	for _, a := range asks {
		go func() {
			answer, err := c.candidates(asking, a.query)
			results <- result{a, answer, err}
		}()
	}
	began, err := time.Now(), error(nil)
	for range asks {
		select {
		case r := <-results:
			if r.err == nil {
				r.err = r.ask.read(r.answer)
			}
			err = cmp.Or(err, r.err)
		case <-asking.Done(): // also if the client does not heed it
			err = cmp.Or(err, asking.Err())
		}
		if err != nil {
			break
		}
	}
	c.metrics.asked.Observe(time.Since(began).Seconds())

	var refused *client.Error
	switch {
	case ctx.Err() != nil:
		c.breaker.Cancel(ticket) // the client left, which says nothing of Conductor
		return nil, reasonConductor
	case errors.Is(err, context.DeadlineExceeded) && total > patienceTokens:
		c.breaker.Cancel(ticket)
		return nil, reasonConductor
	case errors.As(err, &refused) && isAnswer(refused.Status):
		err, reason = nil, reasonRefused
		if refused.Reason == "unknown_model" {
			reason = reasonModel
		}
	case err != nil:
		c.logPanic(err)
		reason = reasonConductor
	}
	if changed := c.breaker.Done(ticket, c.Now(), err == nil); changed && err == nil {
		c.Log.Info().Msg("Conductor answers again")
	} else if changed {
		c.Log.Warn().Err(err).Msg("Conductor does not answer; the load alone decides until it does")
	}
	if reason != "" {
		return nil, reason
	}
	return asks, ""
}

// candidates asks Conductor. A panic is an error.
func (c *Chooser) candidates(ctx context.Context, q client.Query) (_ client.Candidates, err error) {
	defer guard.Recover(&err)
	return c.Conductor.Candidates(ctx, q)
}

// logPanic says so if an error was a panic, which is a defect of the picker.
func (c *Chooser) logPanic(err error) {
	if p := (*guard.Panic)(nil); errors.As(err, &p) {
		c.Log.Error().Interface("panic", p.Value).Bytes("stack", p.Stack).
			Msg("a defect of the picker; requests go by load alone because of it")
	}
}

// patience returns how long a request waits for answers about so many tokens.
func (c *Chooser) patience(tokens int) time.Duration {
	return max(c.Patience, time.Duration(float64(c.Patience)*float64(tokens)/patienceTokens))
}

// firstTokens returns the first tokens of a prompt, without the memory of the others.
func firstTokens(ids []uint32, most int) []uint32 {
	if len(ids) > most {
		return slices.Clone(ids[:most])
	}
	return ids
}

// isAnswer reports whether a status is what a healthy Conductor says of a query, and not that it takes none now.
func isAnswer(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// read takes over an answer. If a row cannot be right, the whole answer is an error, because an engine that is judged by its cache
// and one that is not cannot be compared.
func (a *ask) read(answer client.Candidates) error {
	a.id, a.blockSize = answer.ID, cmp.Or(answer.BlockSize, a.query.BlockSize)
	if answer.Model != "" {
		a.query.Model, a.query.Adapter = answer.Model, answer.Adapter // what reports with the prompt name
	}
	if a.blockSize <= 0 {
		return fmt.Errorf("the answer says that a block has %d tokens", a.blockSize)
	}
	a.query.BlockSize = a.blockSize
	a.context = fmt.Sprintf("%q %q %q %d", a.query.Model, a.query.Adapter, a.query.Salt, a.blockSize)
	a.rows, a.uncertain = make(map[rankOf]client.Rank), make(map[string]bool)
	for _, k := range answer.Rows {
		if k.Approximate || k.UpperBound || k.Truncated || k.State != "synced" {
			a.uncertain[k.Instance] = true
		}
		whole := client.Rank{Rank: client.AnyRank, GPU: k.Longest, CPU: k.Longest, Disk: k.Longest, Expected: k.Expected}
		all := append([]client.Rank{whole}, k.Ranks...)
		for i, row := range all {
			row.Expected = max(row.Expected, row.Disk)
			if k.Approximate { // its engine announces nothing, so it may have computed them long ago
				row.GPU, row.CPU, row.Disk = row.Expected, row.Expected, row.Expected
			}
			ordered := 0 <= row.GPU && row.GPU <= row.CPU && row.CPU <= row.Disk && row.Disk <= row.Expected
			if !ordered || row.Expected > len(a.query.Tokens) {
				return fmt.Errorf("instance %q has a row that cannot be right: %+v of %d tokens", k.Instance, row, len(a.query.Tokens))
			}
			if i == 0 && len(k.Ranks) > 0 {
				row = client.Rank{Rank: client.AnyRank} // a rank that is missing has nothing
			}
			a.rows[rankOf{k.Instance, row.Rank}] = row
		}
	}
	return nil
}

// target is a rank of an engine, with what it has of the prompts of a request, and what it costs to send them there.
type target struct {
	*engine
	rank      int
	row       client.Rank // sums over the prompts
	uncertain bool
	compute   float64 // tokens
	cost      float64
}

// String names the target in Choice.Why.
func (t *target) String() string {
	return fmt.Sprintf("%s/%d at %s", t.Instance.Instance, t.rank, t.endpoint)
}

// choose takes the engine that costs least. Without an answer of Conductor no engine counts as having any of the prompt, so the
// load decides.
func (c *Chooser) choose(r *Request, asked *prompt.Request, prompts [][]uint32, asks []*ask, reason string, engines []*engine) (
	*flight, *Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	size := c.size(asked, prompts)
	for _, a := range asks {
		c.underWay(a)
	}

	// Engines that take the request, and engines that compute prompts for others.
	var takers, prefillers []*engine
	for _, e := range engines {
		if e.Role == "prefill" {
			prefillers = append(prefillers, e)
		} else {
			takers = append(takers, e)
		}
	}
	apart := len(prefillers) > 0 && size > 0
	calm := slices.DeleteFunc(slices.Clone(c.alive(takers, now)), c.overloaded(now))
	prefillers = slices.DeleteFunc(slices.Clone(c.alive(prefillers, now)), c.overloaded(now))
	if apart && len(prefillers) == 0 {
		calm = slices.DeleteFunc(calm, func(e *engine) bool { return e.Role == "decode" })
	}
	if len(calm) == 0 {
		return nil, &Refusal{http.StatusTooManyRequests, fmt.Sprintf(
			"all %d engines are at the limit of queued prompt tokens or waiting requests; retry later", len(engines))}
	}
	targets := c.targets(calm, size, asks, now)
	best := targets[0]

	f := &flight{c: c, at: best, computing: best, began: now, size: size, single: len(prompts) == 1, known: len(asks) > 0}
	for _, a := range asks {
		if a.blockSize == best.BlockSize || best.BlockSize == 0 {
			// Engines compute at least the last token themselves.
			f.reusable += max(0, (len(prompts[a.prompt])-1)/a.blockSize*a.blockSize)
		}
	}
	f.choice.Headers = make(map[string]string)
	if best.Role == "decode" && apart {
		f.computing = c.targets(partners(best.engine, prefillers), size, asks, now)[0]
		f.choice.Headers[prefillHeader] = f.computing.endpoint
	}
	// The sidecar of an engine that decodes would hand its rank to both engines.
	ranked := len(best.ranks) > 1 && f.computing == best
	if ranked {
		f.choice.Headers[rankHeader] = strconv.Itoa(best.rank)
	}
	for _, t := range targets {
		if len(f.targets) > c.Fallbacks {
			break
		}
		if ranked && t.rank != best.rank { // the header has one rank for all
			if !slices.Contains(t.ranks, best.rank) {
				continue // it would refuse the header
			}
			t = c.target(t.engine, best.rank, size, asks, now)
		}
		f.targets = append(f.targets, t)
		f.choice.Endpoints = append(f.choice.Endpoints, t.endpoint)
	}

	// The load that the choice adds.
	c.choices++
	best.load.rank(best.rank).chosen = c.choices
	c.probe(best.engine, now)
	c.probe(f.computing.engine, now)
	f.charge(f.computing)
	f.computing.load.rank(f.computing.rank).send(f.computing.compute, now)
	f.at.inFlight++
	if f.computing != f.at {
		f.computing.inFlight++
	}
	if size > 0 {
		c.typical += (f.computing.compute - c.typical) / 64
	}

	// What others are to know of it.
	if reason == "" {
		if reason = reasonNoPrefix; f.computing.row.Expected > 0 {
			reason = reasonPrefix
		}
		c.metrics.picked.WithLabelValues("prompt").Add(float64(size))
		c.metrics.picked.WithLabelValues("predicted").Add(float64(f.computing.row.Expected))
	}
	c.metrics.choices.WithLabelValues(reason).Inc()
	if reason != reasonRefused { // Conductor would refuse the report too
		f.reported = c.report(r.ID, f.computing, asked, prompts, asks)
	}
	if r.Explain {
		f.choice.Why = why(f, reason, targets)
	}
	return f, nil
}

// partners returns the engines that may compute a prompt for another engine. One that has failed of late works with one that has not,
// if there is one, so that the request tells which of the two has failed. The caller holds mu.
func partners(e *engine, prefillers []*engine) []*engine {
	if e.failures == 0 {
		return prefillers
	}
	sound := slices.DeleteFunc(slices.Clone(prefillers), func(p *engine) bool { return p.failures > 0 })
	if len(sound) == 0 {
		return prefillers
	}
	return sound
}

// size returns how many tokens a request has. Without tokens it guesses from the bytes of the text, which is good enough for a
// load. What is no text counts as a typical request, because the bytes of an image say nothing. The caller holds mu.
func (c *Chooser) size(asked *prompt.Request, prompts [][]uint32) (size int) {
	for _, ids := range prompts {
		size += len(ids)
	}
	switch {
	case size > 0 && asked.BytesRead > 0:
		return int(float64(size) * float64(asked.Bytes) / float64(asked.BytesRead))
	case size > 0:
		return size
	case asked.Without == prompt.NoPrompt && asked.Bytes == 0:
		return 0
	case asked.Without == prompt.NoPrompt || asked.Without == prompt.BadBody || asked.Without == prompt.Media:
		return int(c.typical)
	case asked.IDs:
		return (asked.Bytes + 5) / 6 // with the comma
	}
	return (asked.Bytes + 3) / 4
}

// overloaded reports whether an engine has as much to do as it may. One that has nothing to do takes a prompt of any length. The
// caller holds mu.
func (c *Chooser) overloaded(now time.Time) func(*engine) bool {
	return func(e *engine) bool {
		return c.MaxTokensInFlight > 0 && e.queued() >= float64(c.MaxTokensInFlight) ||
			c.MaxWaiting > 0 && !c.stale(e.load, now) && e.waiting >= float64(c.MaxWaiting)
	}
}

// targets returns the best rank of each engine, those that cost least first. Of equal ones the one comes first that was chosen
// longest ago, so that they take turns. The caller holds mu.
func (c *Chooser) targets(engines []*engine, size int, asks []*ask, now time.Time) []*target {
	before := func(a, b *target) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost),
			cmp.Compare(a.load.rank(a.rank).chosen, b.load.rank(b.rank).chosen))
	}
	all := make([]*target, 0, len(engines))
	for _, e := range engines {
		var best *target
		for _, rank := range e.ranks {
			t := c.target(e, rank, size, asks, now)
			if best == nil || before(t, best) < 0 {
				best = t
			}
		}
		all = append(all, best)
	}
	slices.SortStableFunc(all, before)
	return all
}

// target returns a rank with what it has of a request's prompts, and what it costs to send them there. The caller holds mu.
func (c *Chooser) target(e *engine, rank, size int, asks []*ask, now time.Time) *target {
	t := &target{engine: e, rank: rank, uncertain: e.Approximate}
	for _, a := range asks {
		row, ok := a.rows[rankOf{e.Instance.Instance, rank}]
		if !ok {
			row = a.rows[rankOf{e.Instance.Instance, client.AnyRank}]
		}
		t.row.GPU, t.row.CPU, t.row.Disk = t.row.GPU+row.GPU, t.row.CPU+row.CPU, t.row.Disk+row.Disk
		t.row.Expected += row.Expected
		t.uncertain = t.uncertain || a.uncertain[e.Instance.Instance]
	}
	t.compute = Compute(size, t.row)
	l := c.loadOf(e, rank, now)
	if size == 0 {
		l.Recent = 0 // such requests take turns
	}
	t.cost = Cost(c.Weights, size, t.row, l)
	return t
}

// loadOf returns the load of a rank. Engines tell their load as a whole, and so does Conductor, so each rank gets an equal part of
// it. Requests of this picker that wait in the engine are left out of Waiting, because their tokens are in Queued. The caller holds mu.
func (c *Chooser) loadOf(e *engine, rank int, now time.Time) Load {
	l := Load{Queued: e.load.rank(rank).queued, Running: float64(e.started), Typical: c.typical,
		Recent: e.load.rank(rank).recent(now)}
	if !c.stale(e.load, now) {
		l.Waiting = max(0, e.waiting-float64(e.inFlight-e.started))
		l.Running = max(l.Running, e.running)
		l.CacheUse = e.cacheUse
	}
	ranks := float64(len(e.ranks))
	if now.Before(c.othersUntil) {
		l.Others = e.others / ranks
	}
	l.Waiting, l.Running = l.Waiting/ranks, l.Running/ranks
	return l
}

// report queues the reports of a choice, one for each prompt, and returns them. Their request ids are made unique, because clients
// make up the id of a request and may use one twice. The caller holds mu.
func (c *Chooser) report(id string, to *target, asked *prompt.Request, prompts [][]uint32, asks []*ask) (all []*report) {
	name := strings.ToValidUTF8(id[:min(len(id), 64)], "") + "/" + rand.Text()
	rank := to.rank
	if to.Role == "prefill" && len(to.ranks) > 1 {
		rank = client.AnyRank // nothing tells the engine
	}
	for i, ids := range prompts {
		r := &report{Routed: client.Routed{Query: client.Query{Model: asked.Model, BlockSize: to.BlockSize, Tenant: c.Tenant,
			Salt:   asked.Salt,
			Tokens: firstTokens(ids, maxAsked/len(prompts))}, Target: to.Instance.Instance, Rank: rank, RequestID: name}}
		if i > 0 {
			r.RequestID += "/" + strconv.Itoa(i)
		}
		for _, a := range asks {
			if a.prompt == i && (a.blockSize == to.BlockSize || to.BlockSize == 0) {
				r.Query, r.AnswerID, r.context = a.query, a.id, a.context
			}
		}
		if r.Query.BlockSize == 0 || len(r.Query.Tokens) < r.Query.BlockSize {
			continue // only whole blocks are expected
		}
		if c.reporter.add(r) {
			c.remember(r)
			all = append(all, r)
		}
	}
	return all
}

// why explains a choice in one line.
func why(f *flight, reason string, targets []*target) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d tokens", reason, f.size)
	if f.computing != f.at {
		fmt.Fprintf(&b, ", computed by %s (has %d, soon %d)", f.computing, f.computing.row.Disk, f.computing.row.Expected)
	}
	for i, t := range targets[:min(len(targets), 4)] {
		link := []string{", to", "; before"}[min(i, 1)]
		fmt.Fprintf(&b, "%s %s (has %d, soon %d, cost %.0f)", link, t, t.row.Disk, t.row.Expected, t.cost)
	}
	return b.String()
}
