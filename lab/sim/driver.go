package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/truth"
	"example.com/conductor/lab/sim/workload"
)

// driver sends the workload through the server and the fleet.
type driver struct {
	fleet  *Fleet
	client *client
	router *router
	tally  *tally
	outage outage
	head   []byte // of every query

	registered []registration

	// publishing is held while a rank works, and while a client waits for a
	// settled answer, so that nothing new is published meanwhile.
	publishing sync.Mutex

	mu      sync.Mutex // guards the rest; not Fleet.mu
	started time.Time
	drawn   int
	failing int // queries failed in a row
	err     error
	// Some of the prompts, each with the same chance, to ask again at the end.
	earlier []workload.Request
	dice    *rand.Rand
	// How long the next wait for a settled state may take.
	patience time.Duration
}

// audited is the number of a request that is asked again.
const audited = -1

// giveUp is how many queries may fail in a row.
const giveUp = 20

// scratch is the memory of one client.
type scratch struct {
	tokens []uint32
	body   []byte
	path   []truth.ID
	rows   []truth.Row // by instance
	lives  []int64     // by instance: its restarts when the query began
}

func (f *Fleet) newScratch() *scratch {
	s := &scratch{rows: make([]truth.Row, len(f.instances)), lives: make([]int64, len(f.instances))}
	for i, in := range f.instances {
		s.rows[i].Ranks = make([]truth.Rank, len(in.ranks))
	}
	return s
}

func newDriver(f *Fleet, c *client) *driver {
	return &driver{
		fleet:    f,
		client:   c,
		router:   newRouter(len(f.ranks), f.Seed),
		tally:    &tally{},
		head:     f.queryHead(),
		dice:     rand.New(rand.NewPCG(f.Seed, 0x6175646974)),
		patience: f.SettleTimeout,
	}
}

// total returns how many requests will be asked about, -1 if only time ends them.
func (f *Fleet) total() int {
	n := f.Source.Len()
	if f.Requests > 0 && (n < 0 || f.Requests < n) {
		n = f.Requests
	}
	if n >= 0 {
		n = max(n-f.Warm, 0)
	}
	return n
}

// warm runs requests before the server knows of the fleet.
func (d *driver) warm() error {
	s := d.fleet.newScratch()
	for i := range d.fleet.Warm {
		_, req, ok := d.next()
		if !ok {
			return nil
		}
		s.tokens = req.AppendTokens(s.tokens[:0])
		if err := d.fleet.submit(d.fleet.ranks[i%len(d.fleet.ranks)], s.tokens, req.PromptLen()); err != nil {
			return err
		}
	}
	return nil
}

// drive runs all clients until the workload, the time or ctx ends.
func (d *driver) drive(ctx context.Context) error {
	if d.fleet.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.fleet.Duration)
		defer cancel()
	}
	d.started = time.Now()
	var clients sync.WaitGroup
	for range d.fleet.Clients {
		clients.Go(func() {
			s := d.fleet.newScratch()
			for d.turn(ctx, s) {
			}
		})
	}
	clients.Wait()
	return d.err
}

// next draws a request from the source.
func (d *driver) next() (int, workload.Request, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil || d.fleet.Requests > 0 && d.drawn >= d.fleet.Requests {
		return 0, workload.Request{}, false
	}
	req, ok := d.fleet.Source.Next()
	if !ok {
		return 0, workload.Request{}, false
	}
	n := d.drawn
	d.drawn++
	if len(d.earlier) < d.fleet.Audit {
		d.earlier = append(d.earlier, req)
	} else if at := d.dice.IntN(d.drawn); at < d.fleet.Audit {
		d.earlier[at] = req
	}
	return n, req, true
}

// turn is one request of one client: ask, compare, choose, run. It returns
// false when there are no more.
func (d *driver) turn(ctx context.Context, s *scratch) bool {
	n, req, ok := d.next()
	if !ok || !d.pace(ctx, n) {
		return false
	}
	prompt := req.PromptLen()
	s.tokens = req.AppendTokens(s.tokens[:0])

	settle := d.fleet.SettleEvery > 0 && n%d.fleet.SettleEvery == 0
	if settle {
		d.publishing.Lock()
		d.settle(ctx)
	}
	rows := d.ask(ctx, s, n, s.tokens[:prompt])
	if settle {
		d.publishing.Unlock()
	}
	if ctx.Err() != nil {
		return false
	}

	r := d.router.pick(d.fleet, rows, prompt)
	d.publishing.Lock()
	err := d.fleet.submit(r, s.tokens, prompt)
	d.publishing.Unlock()
	if err != nil {
		d.fail(err)
		return false
	}
	d.tally.routed(prompt, len(s.tokens)-prompt)
	if rows != nil {
		d.tally.matched(s.rows[r.instance.first/d.fleet.Ranks], rows[r.instance.id])
	}
	wrong, behind, failed := d.tally.brief()
	d.fleet.Progress.add(wrong, behind, failed)
	return true
}

// pace waits until request n is due.
func (d *driver) pace(ctx context.Context, n int) bool {
	if d.fleet.QPS <= 0 {
		return ctx.Err() == nil
	}
	due := d.started.Add(time.Duration(float64(n-d.fleet.Warm) / d.fleet.QPS * float64(time.Second)))
	return harness.Wait(ctx, time.Until(due))
}

// ask queries the server and compares the row of every instance with the truth, which it
// leaves in s.rows. It returns the rows of the answer, nil if there is none.
func (d *driver) ask(ctx context.Context, s *scratch, n int, prompt []uint32) map[string]*row {
	s.body = appendQuery(append(s.body[:0], d.head...), prompt)
	for i, in := range d.fleet.instances {
		s.lives[i] = in.restarts.Load()
	}
	began, edges := time.Now(), d.outage.edges.Load()
	got, err := d.client.query(ctx, s.body)
	took := time.Since(began)
	switch {
	case err != nil && d.outage.during(edges):
		d.tally.unanswered()
		harness.Wait(ctx, lastPoll) // the fleet works on, but does not race
	case d.fleet.Servers != nil && unserved(err):
		d.tally.unserved()
		harness.Wait(ctx, lastPoll)
	case err == nil || ctx.Err() == nil:
		d.tally.query(took, err)
		d.answered(err)
	}
	if err != nil {
		return nil
	}

	rows := got[d.fleet.Tenant]
	if rows == nil {
		rows = map[string]*row{}
	}
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	named := d.fleet.pool == nil || d.fleet.announced(rows)
	for _, tree := range d.fleet.trees {
		s.path = tree.Walk(prompt, s.path[:0])
		for i, in := range d.fleet.instances {
			if in.tree == tree {
				s.rows[i] = tree.Row(s.path, in.first, s.rows[i].Ranks)
				same := s.lives[i] == in.restarts.Load()
				d.judge(in, n, len(prompt), named, same, s.rows[i], rows[in.id])
			}
		}
	}
	return rows
}

// judge counts the comparison of one row. named is true if the answer was made after the
// batches that name the pool's blocks, same if no rank of the instance was restarted since the
// query began: sequences repeat after a restart. Fleet.mu is held.
func (d *driver) judge(in *instance, n, prompt int, named, same bool, want truth.Row, got *row) {
	settled, incomplete, note := in.settled(got)
	settled = settled && same
	if d.fleet.pooled(in) && got != nil {
		whole, lost, pooled := d.fleet.pool.settled(got)
		settled, incomplete = settled && whole && named, incomplete || lost
		note += ", " + pooled
	}
	diffs := compare(want, got)
	truncated := got != nil && got.Truncated
	if truncated {
		d.tally.truncated()
	}
	if len(diffs) == 0 {
		d.tally.row(settled && !truncated, incomplete, nil)
		return
	}
	f := finding{
		verdict: wrong, request: n, prompt: prompt,
		instance: in.id, family: in.family, differences: diffs, note: note,
	}
	switch {
	case incomplete:
		f.verdict = partial
	case !settled:
		f.verdict = behind
	case truncated && !f.over():
		d.tally.row(false, incomplete, nil) // it says so
		return
	}
	d.tally.row(settled, incomplete, &f)
}

// audit asks earlier prompts again while no rank publishes. Blocks evicted long ago must
// be gone from the answers.
func (d *driver) audit(ctx context.Context) {
	s := d.fleet.newScratch()
	d.mu.Lock()
	earlier := slices.Clone(d.earlier)
	d.mu.Unlock()
	for _, req := range earlier {
		if ctx.Err() != nil {
			return
		}
		prompt := req.PromptLen()
		s.tokens = req.AppendTokens(s.tokens[:0])
		d.ask(ctx, s, audited, s.tokens[:prompt])
	}
}

// answered notes the error of a query, nil for an answer. The driver gives up after too
// many errors in a row.
func (d *driver) answered(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.failing = 0
	} else if d.failing++; d.failing >= giveUp && d.err == nil {
		d.err = fmt.Errorf("%d queries failed in a row, the last with: %w", d.failing, err)
	}
}

func (d *driver) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = errors.Join(d.err, err)
}
