package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/workload"
)

// What a rank needs for a token of a prompt: about that of a model with 70 billion parameters and
// 320 KB of KV cache a token, which computes 8,000 tokens/s, reads its host's memory at 50 GB/s and
// its disk at 5 GB/s.
const (
	computeToken = 125 * time.Microsecond
	hostToken    = 6 * time.Microsecond
	diskToken    = 64 * time.Microsecond
)

// Target is a rank that a policy may choose.
type Target struct {
	Instance string
	Rank     int
}

// Targets returns the ranks of the fleet, instance by instance.
func (c *Config) Targets() (all []Target) {
	for i := range c.Instances {
		for n := range c.Ranks {
			all = append(all, Target{c.instanceID(i), n})
		}
	}
	return all
}

// Policy is a way to choose the rank of each request.
type Policy struct {
	Name string
	// Asks says that the policy asks the server, which has to follow the fleet.
	Asks bool
	// Choose returns the place of a rank in Config.Targets. The simulation calls computed when the
	// rank has computed the prompt.
	Choose func(ctx context.Context, prompt []uint32) (rank int, computed func())
	// Alone returns how many choices were made without an answer of the server; nil for none.
	Alone func() int
	// Wait, if it is set, is called with the simulated time at which the next request comes, before
	// the server has caught up: it returns once the server has all that the policy tells it.
	Wait func(ctx context.Context, now time.Duration)
	// Begin, if it is set, is called before the first request, with a function that looks into the
	// fleet: it returns what each rank has of a prompt now, and will have once it has computed what
	// was sent to it. The policy is then the oracle that others are compared with.
	Begin func(look func(prompt []uint32) []Cached)
	// Tick, if it is set, is called each time that Every of simulated time has gone by, once the server has caught up.
	Every time.Duration
	Tick  func(ctx context.Context, now time.Duration)
	// End, if it is set, is called once all requests are computed, or the comparison has failed.
	End func()
}

// RoundRobin returns the policy that takes the ranks in turn.
func RoundRobin(ranks int) Policy {
	next := -1
	return Policy{Name: "round robin", Choose: func(context.Context, []uint32) (int, func()) {
		next++
		return next % ranks, func() {}
	}}
}

// Compare runs the same requests through one fleet for each policy, and reports what the choices
// cost. Time is simulated: a rank computes one prompt after the other, and announces the blocks of
// a prompt when it has computed it; the next request comes when its time has come. The fleets
// publish on real sockets. Before a policy asks the server, the
// server has applied all events, as it has a millisecond after them in real time. Requests of a
// source without times come c.QPS a second, at random.
func Compare(ctx context.Context, c Config, policies []Policy, say harness.Progress) (*Comparison, error) {
	c.Running, c.ClearEvery = 1, 0
	if c.Pool || c.Faults || c.Restarts.Times > 0 || c.Requests == 0 && c.Source.Len() < 0 {
		return nil, errors.New("policies are compared without a pool, faults and restarts, by a number of requests")
	}
	requests := c.arrivals()
	report := &Comparison{
		Source: c.Source.String(), Seed: c.Seed, BlockSize: c.BlockSize, Ranks: c.Instances * c.Ranks,
		Requests: len(requests), Span: requests[len(requests)-1].At,
	}
	for _, r := range requests {
		report.PromptTokens += r.PromptLen()
	}
	for _, p := range policies {
		began := time.Now()
		o, err := c.try(ctx, p, requests)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		say.Say("%s: %s requests in %.1f s", p.Name, thousands(len(requests)), time.Since(began).Seconds())
		report.Outcomes = append(report.Outcomes, o)
		if p.Begin != nil {
			report.Oracle = o.Policy
		}
	}
	report.measure()
	return report, nil
}

// arrivals returns the requests with their times.
func (c *Config) arrivals() (all []workload.Request) {
	dice := rand.New(rand.NewPCG(c.Seed, 0x61727269766573))
	var at time.Duration
	for c.Requests == 0 || len(all) < c.Requests {
		r, ok := c.Source.Next()
		if !ok {
			break
		}
		if c.QPS > 0 && c.Source.Len() < 0 {
			at += time.Duration(dice.ExpFloat64() / c.QPS * float64(time.Second))
			r.At = at
		}
		all = append(all, r)
	}
	return all
}

// trial is one policy at work on a fleet of its own.
type trial struct {
	driver   *driver
	policy   Policy
	stations []station // by rank
	scratch  *scratch
	settled  bool // the server has applied what was published
	ticked   time.Duration

	hits       hits
	recomputed int
	decisions  harness.Latencies
	ttft       harness.Latencies
	waited     time.Duration // the sum of all times to the first token
	work       []time.Duration
}

// try runs the requests through a new fleet.
func (c Config) try(ctx context.Context, p Policy, requests []workload.Request) (o *Outcome, failed error) {
	f, err := newFleet(c)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if p.End != nil {
		defer p.End()
	}
	cl, err := newClient(&f.Config, 1)
	if err != nil {
		return nil, err
	}
	t := &trial{driver: newDriver(f, cl), policy: p, stations: make([]station, len(f.ranks)), scratch: f.newScratch(),
		work: make([]time.Duration, len(f.ranks))}
	if err := f.start(); err != nil {
		return nil, err
	}
	if p.Begin != nil {
		p.Begin(func(prompt []uint32) []Cached { return t.cached(prompt, true) })
	}
	if p.Asks {
		defer func() { failed = errors.Join(failed, t.driver.unregister()) }()
		for _, r := range f.ranks {
			if err := t.driver.register(ctx, t.driver.fleet.registration(r)); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range requests {
		if err := t.arrive(ctx, r); err != nil {
			return nil, err
		}
	}
	for n := range t.stations {
		if err := t.advance(n, 1<<62); err != nil {
			return nil, err
		}
	}
	return t.outcome(requests), nil
}

// arrive lets the fleet work until a request comes, and queues the request where the policy says.
func (t *trial) arrive(ctx context.Context, r workload.Request) error {
	for t.policy.Tick != nil && t.ticked+t.policy.Every <= r.At && ctx.Err() == nil {
		t.ticked += t.policy.Every
		if err := t.proceed(ctx, t.ticked); err != nil {
			return err
		}
		t.policy.Tick(ctx, t.ticked)
	}
	if err := t.proceed(ctx, r.At); err != nil {
		return err
	}
	j := &job{at: r.At, tokens: r.AppendTokens(nil), length: r.PromptLen()}
	began := time.Now()
	n, computed := t.policy.Choose(ctx, j.prompt())
	t.decisions.Add(time.Since(began))
	if err := ctx.Err(); err != nil {
		return err
	}
	j.computed = computed
	t.stations[n].jobs = append(t.stations[n].jobs, j)
	return t.advance(n, r.At)
}

// proceed lets the fleet work until a time, and the server follow it if the policy asks the server.
func (t *trial) proceed(ctx context.Context, until time.Duration) error {
	for n := range t.stations {
		if err := t.advance(n, until); err != nil {
			return err
		}
	}
	if t.policy.Wait != nil {
		t.policy.Wait(ctx, until)
	}
	if t.policy.Asks && !t.settled {
		if err := t.driver.await(ctx, t.driver.fleet.SettleTimeout, true); err != nil {
			return fmt.Errorf("the server does not keep up: %w", err)
		}
		t.settled = true
	}
	return nil
}

// InstanceID names an instance of the fleet.
func (c *Config) instanceID(i int) string { return fmt.Sprintf("%s-%d", cmp.Or(c.Name, "inst"), i) }
