package pick

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/breaker"
)

// report is one prompt that this picker has sent to an engine. Conductor hears of it by the id of its answer, which is short, or
// with the prompt if that is forgotten.
type report struct {
	client.Routed        // with the tokens of the prompt
	context       string // what besides the tokens decides whether prompts have blocks in common
	// replaces says that one of the same name was sent before, to another engine.
	replaces bool

	// Guarded by Chooser.mu.
	dropped  bool      // the prompt went elsewhere, or Conductor does not know of it
	done     time.Time // when Conductor answered; zero before
	computed time.Time // when the first token came; zero before

	// Guarded by reporter.mu.
	sent      bool
	withdrawn bool // before it was sent
}

// Bounds of the reporter.
const (
	// maxReports is how many reports may wait for Conductor. Further ones are dropped, and their prefixes may be computed twice. The queue
	// has room for as many reports that are taken back, and so has reporter.computed.
	maxReports = 4096
	// reportBatch is how many reports go in one request, at most, and batchTokens how many tokens their prompts have together,
	// unless one prompt alone has more.
	reportBatch = 256
	batchTokens = 1 << 20
	// maxQueuedTokens bounds the prompts of reports that wait: 64 MiB.
	maxQueuedTokens = 16 << 20
	// reportPause is how long reports wait for others, because a request for each would cost Conductor as much as the question. It is
	// short, so that other pickers soon know; this one knows its own choices.
	reportPause = 2 * time.Millisecond
	// reportTimeout is how long Conductor may take for a batch. Requests do not wait for it.
	reportTimeout = time.Second
	// maxFeedback is how many pieces of feedback may wait.
	maxFeedback = 1024
	// keptRecent is how many of the last reports are compared with the next prompts, and keptTokens how many tokens they have together
	// unless one alone has more: 64 MiB.
	keptRecent = 64
	keptTokens = 16 << 20
	// keptComputed is how long after the first token a report is compared: longer than an engine's events are on their way.
	keptComputed = time.Second
)

// reporter tells Conductor in the background, in the order of the choices.
type reporter struct {
	c        *Chooser
	max      int           // maxReports
	wake     chan struct{} // has room for one
	feedback chan feedback
	sending  sync.Mutex // held by flush

	mu     sync.Mutex
	queue  []operation
	tokens int // of the prompts in queue
	// computed are taken back when nothing else waits: other pickers need reports sooner than they need to know that these are over.
	computed []computed
}

// operation is a report, or takes one back.
type operation struct {
	report   *report
	takeBack bool
}

type feedback struct {
	instance        string
	matched, cached int
}

func newReporter(c *Chooser) *reporter {
	return &reporter{c: c, max: maxReports, wake: make(chan struct{}, 1), feedback: make(chan feedback, maxFeedback)}
}

// add queues a report. If there is no room it is dropped, which costs no more than that the prefix may be computed twice.
func (p *reporter) add(r *report) bool { return p.enqueue(operation{report: r}) }

// withdraw keeps a report from being sent, and reports false if it has been.
func (p *reporter) withdraw(r *report) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.withdrawn = !r.sent
	return r.withdrawn
}

// takeBack takes a report back, and withdraws it if Conductor need not hear of it.
func (p *reporter) takeBack(r *report) {
	if !p.withdraw(r) || r.replaces {
		name := &report{Routed: client.Routed{Query: client.Query{Tenant: r.Tenant}, RequestID: r.RequestID}} // without the prompt
		p.enqueue(operation{name, true})
	}
}

// takeBackComputed takes reports back whose prompts are computed, as soon as nothing else waits. What there is no room for ends by itself
// when its time is over.
func (p *reporter) takeBackComputed(some []computed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	room := max(0, p.max-len(p.computed))
	if len(some) > room {
		p.c.metrics.reports.WithLabelValues("dropped").Add(float64(len(some) - room))
		some = some[:room]
	}
	p.computed = append(p.computed, some...)
	p.wakeUp()
}

// wakeUp has run send what waits.
func (p *reporter) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *reporter) enqueue(o operation) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= 2*p.max || !o.takeBack && (len(p.queue) >= p.max || p.tokens > maxQueuedTokens) {
		p.c.metrics.reports.WithLabelValues("dropped").Inc()
		return false
	}
	p.queue = append(p.queue, o)
	p.tokens += len(o.report.Tokens)
	p.wakeUp()
	return true
}

// run sends what is queued until ctx ends.
func (p *reporter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reportPause):
			p.flush(ctx)
		}
	}
}

// FlushReports sends all reports that wait. Run does so by itself within milliseconds; a caller whose clock is not the machine's calls
// FlushReports after a choice.
func (c *Chooser) FlushReports(ctx context.Context) { c.reporter.flush(ctx) }

// flush sends all that is queued.
func (p *reporter) flush(ctx context.Context) {
	p.sending.Lock()
	defer p.sending.Unlock()
	for ctx.Err() == nil {
		batch, takeBack := p.next()
		switch {
		case takeBack != nil:
			p.sendTakeBack(ctx, takeBack)
		case len(batch) > 0:
			p.sendReports(ctx, batch)
		default:
			return
		}
	}
}

// next takes the first operations that go in one request: reports of different requests, or one that is taken back.
func (p *reporter) next() (batch []*report, takeBack *report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tokens, ids := 0, make(map[string]bool)
	for len(p.queue) > 0 {
		o := p.queue[0]
		if o.takeBack && len(batch) > 0 || ids[o.report.RequestID] || len(batch) == reportBatch ||
			len(batch) > 0 && tokens+len(o.report.Tokens) > batchTokens {
			break
		}
		p.queue = p.queue[1:]
		p.tokens -= len(o.report.Tokens)
		if o.takeBack {
			return nil, o.report
		}
		if o.report.withdrawn {
			p.c.metrics.reports.WithLabelValues("withdrawn").Inc()
			continue
		}
		o.report.sent = true
		ids[o.report.RequestID] = true
		tokens += len(o.report.Tokens)
		batch = append(batch, o.report)
	}
	if len(p.queue) > 0 {
		return batch, nil
	}
	p.queue = nil // of the array that it was
	if len(batch) == 0 && len(p.computed) > 0 {
		c := p.computed[0]
		p.computed = p.computed[1:]
		return nil, &report{Routed: client.Routed{Query: client.Query{Tenant: c.tenant}, RequestID: c.id}}
	}
	return batch, nil
}

// sendReports sends reports by the ids of answers, and those again with their prompts whose answer is forgotten.
func (p *reporter) sendReports(ctx context.Context, batch []*report) {
	errs := p.send(ctx, batch, true)
	var again []*report
	var places []int
	for i, err := range errs {
		var refused *client.Error
		if errors.As(err, &refused) && refused.Reason == "unknown_answer" {
			again, places = append(again, batch[i]), append(places, i)
		}
	}
	if len(again) > 0 {
		for i, err := range p.send(ctx, again, false) {
			errs[places[i]] = err
			if err == nil {
				p.c.metrics.reports.WithLabelValues("with_prompt").Inc()
			}
		}
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	now := p.c.Now()
	for i, r := range batch {
		var refused *client.Error
		outcome := "kept"
		switch {
		case errors.As(errs[i], &refused) && refused.Status < 500 && refused.Status != 429:
			outcome = "refused"
		case errs[i] != nil:
			outcome = "failed"
		}
		p.c.metrics.reports.WithLabelValues(outcome).Inc()
		r.done, r.dropped = now, r.dropped || errs[i] != nil
	}
}

// send sends reports, and returns the error of each.
func (p *reporter) send(ctx context.Context, batch []*report, byAnswer bool) []error {
	errs := make([]error, len(batch))
	all := make([]client.Routed, len(batch))
	for i, r := range batch {
		all[i] = r.Routed
		if byAnswer && r.AnswerID != "" {
			all[i].Tokens = nil
		} else {
			all[i].AnswerID = ""
		}
	}
	var answer client.RoutedAnswer
	err := p.tell(ctx, func(ctx context.Context) (err error) {
		answer, err = p.c.Conductor.RoutedBatch(ctx, all)
		return err
	})
	for i := range errs {
		switch {
		case err != nil:
			errs[i] = err
		case i < len(answer.Errors):
			errs[i] = answer.Errors[i]
		}
	}
	return errs
}

func (p *reporter) sendTakeBack(ctx context.Context, r *report) {
	outcome := "taken_back"
	err := p.tell(ctx, func(ctx context.Context) error { return p.c.Conductor.TakeBack(ctx, r.Tenant, r.RequestID) })
	if refused := (*client.Error)(nil); errors.As(err, &refused) && refused.Status == 404 {
		outcome = "taken_back_late" // its time was over, or all of it has been announced
	} else if err != nil {
		outcome = "failed"
	}
	p.c.metrics.reports.WithLabelValues(outcome).Inc()
}

var errAway = errors.New("Conductor does not answer")

// tell calls Conductor, unless its breaker is open.
func (p *reporter) tell(ctx context.Context, call func(context.Context) error) error {
	if p.c.breaker.State(p.c.Now()) == breaker.Open {
		return errAway
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return call(ctx)
}

// runFeedback sends feedback until ctx ends.
func (p *reporter) runFeedback(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-p.feedback:
			outcome := "sent"
			if err := p.tell(ctx, func(ctx context.Context) error {
				return p.c.Conductor.Feedback(ctx, f.instance, p.c.Tenant, "", f.matched, f.cached)
			}); err != nil {
				outcome = "failed"
			}
			p.c.metrics.feedback.WithLabelValues(outcome).Inc()
		}
	}
}

// addFeedback queues feedback, or drops it if too much waits.
func (p *reporter) addFeedback(f feedback) {
	select {
	case p.feedback <- f:
	default:
		p.c.metrics.feedback.WithLabelValues("dropped").Inc()
	}
}

// remember keeps a report for choices whose answers from Conductor do not know of it, or do not know that its prompt is computed. An
// answer is never older than the longest patience. The caller holds mu.
func (c *Chooser) remember(r *report) {
	now := c.Now()
	c.recent = slices.DeleteFunc(c.recent, func(old *report) bool {
		return old == r || old.dropped || !old.done.IsZero() && now.Sub(old.done) > c.patience(maxAsked) &&
			(old.computed.IsZero() || now.Sub(old.computed) > keptComputed)
	})
	c.recent = append(c.recent, r)
	kept, tokens := len(c.recent)-1, len(r.Tokens)
	for kept > 0 && len(c.recent)-kept < keptRecent && tokens+len(c.recent[kept-1].Tokens) <= keptTokens {
		kept--
		tokens += len(c.recent[kept].Tokens)
	}
	c.recent = slices.Delete(c.recent, 0, kept)
}

// underWay adds to an answer what this picker's own reports make expected and Conductor may not have known yet: reports that it has
// not answered, or has answered since it was asked. So of equal prompts that come at once, the second finds the first one expected,
// and no request has to wait for the report of another. What is expected of a prompt whose first token has come is there, although
// the engine's events may be on their way still: nobody has to wait for it. The caller holds mu.
func (c *Chooser) underWay(a *ask) {
	for _, r := range c.recent {
		told := !r.done.IsZero() && r.done.Before(a.began) // the answer has what is expected of it
		if r.dropped || told && r.computed.IsZero() || r.context != a.context {
			continue
		}
		at := rankOf{r.Target, r.Rank}
		row, ok := a.rows[at]
		if !ok {
			row = a.rows[rankOf{r.Target, client.AnyRank}]
		}
		most := min(len(r.Tokens), len(a.query.Tokens)) / a.blockSize * a.blockSize
		if row.Expected >= most && (r.computed.IsZero() || row.GPU >= most) {
			continue // of many equal prompts only the first few have to be compared
		}
		common := commonPrefix(r.Tokens, a.query.Tokens) / a.blockSize * a.blockSize
		if common == 0 {
			continue
		}
		before := row
		if row.Rank = r.Rank; !told {
			row.Expected = max(row.Expected, common)
		}
		if !r.computed.IsZero() {
			// No more than Conductor expects: it expects nothing of what has been announced, which may be evicted again by now.
			there := min(common, row.Expected)
			row.GPU, row.CPU, row.Disk = max(row.GPU, there), max(row.CPU, there), max(row.Disk, there)
		}
		if row.Disk > before.Disk {
			a.uncertain[r.Target] = true // Conductor did not say this, so it is not fed back
		}
		if row.Expected > before.Expected || row.GPU > before.GPU {
			a.rows[at] = row
		}
	}
}

func commonPrefix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
