package pick

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/breaker"
	"example.com/conductor/integrations/envoy/tokens"
)

// Chooser is a Picker that asks Conductor. choose.go has its decisions from top to bottom, cost.go the formula.
//
//	Pick ─ prompt.Read ─ tokens.Tokenizer ─ Conductor.Candidates ─ choose ─▶ Flight
//	                        (engines)          (breaker)             │
//	WatchInstances ─▶ fleet ─────────────────────────────────────────┤
//	GET /metrics   ─▶ load  ─────────────────────────────────────────┘──▶ reporter ─▶ Conductor.RoutedBatch
//
// mu is never held during a call over the network.
type Chooser struct {
	Options
	tokenizer *tokens.Tokenizer
	breaker   *breaker.Breaker // of Conductor
	metrics   *metrics
	reporter  *reporter
	keeper    fleetKeeper

	mu      sync.Mutex // guards the rest, and every load
	fleet   *fleet     // nil before the first list
	loads   map[string]*load
	choices uint64  // made so far
	typical float64 // what a request computes, in tokens: a moving average
	recent  []*report
	// othersUntil is how long load.others count.
	othersUntil time.Time
}

var _ Picker = (*Chooser)(nil)

// Of the breaker of Conductor: how many late or wrong answers in a row open it, and how long it stays open.
const (
	conductorFailures = 5
	conductorWait     = time.Second
	conductorLongest  = 30 * time.Second
)

// firstTypical is what a request is taken to compute before there was one, in tokens.
const firstTypical = 512

// New returns a Chooser that knows no engine until Run runs.
func New(o Options) (*Chooser, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Chooser{Options: o, loads: make(map[string]*load), typical: firstTypical,
		breaker: &breaker.Breaker{Threshold: conductorFailures, Wait: conductorWait, Longest: conductorLongest}}
	c.keeper.missing, c.keeper.addresses = make(map[instanceKey]missing), make(map[string]netip.Addr)
	if c.tokenizer, err = tokens.New(o.Tokenizer); err != nil {
		return nil, err
	}
	if c.metrics, err = newMetrics(c, o.Metrics); err != nil {
		c.tokenizer.Close()
		return nil, err
	}
	c.reporter = newReporter(c)
	return c, nil
}

// Run follows the fleet, reports choices, and scrapes engines, until ctx ends. It is called once. Pick must not be called
// after it has returned.
func (c *Chooser) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { c.watch(ctx) })
	work.Go(func() { every(ctx, resolveEvery, c.resolveAgain) })
	work.Go(func() { c.reporter.run(ctx) })
	work.Go(func() { c.reporter.runFeedback(ctx) })
	if c.OthersEvery > 0 {
		work.Go(func() { c.followOthers(ctx) })
	}
	if c.ScrapeEvery > 0 {
		work.Go(func() { every(ctx, c.ScrapeEvery, c.scrape) })
	}
	work.Wait()
	c.tokenizer.Close()
}

// Ready reports whether Conductor has named an engine that can be chosen.
func (c *Chooser) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet != nil && len(c.fleet.all) > 0
}

// watchAgain is how long a watch that Conductor has refused for good waits, such as for other credentials.
const watchAgain = 5 * time.Second

// watch follows the instances that Conductor has. The last list stays while it is away.
func (c *Chooser) watch(ctx context.Context) {
	away := false
	failed := func(err error) {
		if !away && ctx.Err() == nil {
			c.Log.Warn().Err(err).Msg("cannot watch Conductor's instances; keeping the last list")
			away = true
		}
	}
	use := func(all []client.Instance) {
		if away {
			c.Log.Info().Msg("watching Conductor's instances again")
		}
		c.setInstances(ctx, all, away)
		away = false
	}
	for ctx.Err() == nil {
		failed(c.Conductor.WatchInstances(ctx, use, failed))
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// every calls do again and again until ctx ends.
func every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(ctx)
		}
	}
}
