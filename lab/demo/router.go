package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	kv "example.com/conductor/client"
	"example.com/conductor/examples/router"
	"example.com/conductor/lab/sim"
	"example.com/conductor/lab/sim/workload"
)

// Router is a comparison of the example router with policies that know no cache, and with one that
// knows everything.
type Router struct {
	Trace    string // file, "" for generated requests
	Requests int    // of each comparison; 0 for all of the trace, or as many as are usual
	Seed     uint64
}

// InBursts is how many requests come in bursts, unless their number is given.
const InBursts = 120 * workload.BurstSize

// Fleets returns fleets like those of the demo, one with the requests of the trace or of a generator, and one with bursts of equal
// prompts. The policies ask the server at a URL. A configuration can be compared once, because its requests are used up.
func (d Router) Fleets(server string) (requests, bursts sim.Config, err error) {
	source, err := workload.Open(d.Trace, "mixed", d.Seed)
	if err != nil {
		return requests, bursts, err
	}
	c := sim.Config{
		Server: server, Tenant: demoTenant, Model: "simulated",
		Instances: len(sim.Families), Ranks: sources / len(sim.Families), Families: sim.Families,
		BlockSize: 16, Device: 8192, Host: 4096, Disk: 16384, Chunk: 2048, Running: 1,
		Source: source, Requests: d.Requests, QPS: demoRate, Clients: 1, Seed: d.Seed,
		SettleTimeout: 30 * time.Second, Ring: 10000, Queue: 100000,
	}
	bursts = c
	bursts.Source, bursts.Requests = workload.NewBursts(cmp.Or(d.Requests, InBursts), d.Seed), 0
	if d.Trace != "" {
		c.BlockSize = TraceBlock
		c.Chunk = max(c.Chunk, c.BlockSize)
	} else if c.Requests == 0 {
		c.Requests = workload.Generated
	}
	return c, bursts, nil
}

// Run routes the same requests by each policy and compares the outcomes: first those of the trace or the generator, then the bursts.
func (d Router) Run(ctx context.Context, server string, progress io.Writer) (*RouterReport, error) {
	requests, bursts, err := d.Fleets(server)
	if err != nil {
		return nil, err
	}
	report := new(RouterReport)
	if report.Requests, err = compare(ctx, requests, progress); err != nil {
		return nil, err
	}
	if report.Bursts, err = compare(ctx, bursts, progress); err != nil {
		return nil, err
	}
	return report, nil
}

// RouterReport has the comparisons of a Router.
type RouterReport struct {
	Requests *sim.Comparison `json:"requests"`
	Bursts   *sim.Comparison `json:"bursts"`
}

// Table writes the report for people.
func (r *RouterReport) Table(w io.Writer) {
	r.Requests.Table(w)
	r.Bursts.Table(w)
}

const demoTenant = "default"

// demoRate is how many requests a second a generator makes: two thirds of what the ranks compute
// if they find nothing cached.
const demoRate = 12

// compare tries all policies on the requests of a configuration.
func compare(ctx context.Context, c sim.Config, progress io.Writer) (*sim.Comparison, error) {
	conductor, err := kv.New(c.Server, kv.WithMsgpack(), kv.WithRetries(0))
	if err != nil {
		return nil, err
	}
	policies := []sim.Policy{
		sim.RoundRobin(c.Instances * c.Ranks),
		routing("least loaded", newRouters(c, 1, nil, false)),
		routing("events only, 1 router", newRouters(c, 1, conductor, true)),
		routing("events only, 3 routers", newRouters(c, 3, conductor, true)),
		Sharing(c, 1, conductor),
		Sharing(c, 3, conductor),
		Oracle(c),
	}
	return sim.Compare(ctx, c, policies, func(text string) { fmt.Fprintln(progress, text) })
}

// Sharing returns the policy of n example routers that take the requests of a fleet in turn, and share a Conductor.
func Sharing(c sim.Config, n int, conductor *kv.Client) sim.Policy {
	plural := "s"
	if n == 1 {
		plural = ""
	}
	return routing(fmt.Sprintf("expectations, %d router%s", n, plural), newRouters(c, n, &aging{Client: conductor}, false))
}

// Oracle returns the policy of the example router with a Conductor that knows everything which the ranks of a fleet hold, and
// everything that was sent to them.
func Oracle(c sim.Config) sim.Policy {
	all := new(oracle)
	p := routing("oracle", newRouters(c, 1, all, false))
	p.Asks, p.Begin = false, func(look func([]uint32) []sim.Cached) { all.targets, all.look = c.Targets(), look }
	return p
}

// newRouters returns example routers over the ranks of a fleet.
func newRouters(c sim.Config, n int, conductor router.Conductor, eventsOnly bool) (all []*router.Router) {
	for range n {
		r := &router.Router{
			Conductor:  conductor,
			Query:      kv.Query{Model: c.Model, BlockSize: c.BlockSize, Tenant: c.Tenant},
			Patience:   5 * time.Second, // a busy machine must not change the outcome
			EventsOnly: eventsOnly,
			TTL:        realTTL,
		}
		for _, t := range c.Targets() {
			r.Workers = append(r.Workers, router.Worker{Instance: t.Instance, Rank: t.Rank})
		}
		all = append(all, r)
	}
	return all
}

// routing returns the policy of example routers that take the requests in turn. Each knows the load
// that it makes itself.
func routing(name string, routers []*router.Router) sim.Policy {
	next := -1
	return sim.Policy{
		Name: name,
		Asks: routers[0].Conductor != nil,
		Choose: func(ctx context.Context, prompt []uint32) (rank int, computed func()) {
			next++
			rank, end := routers[next%len(routers)].Choose(ctx, prompt)
			return rank, func() { end(true) }
		},
		Alone: func() (n int) {
			for _, r := range routers {
				n += r.Alone()
			}
			return n
		},
		Wait: func(ctx context.Context, now time.Duration) {
			for _, r := range routers {
				r.Wait()
			}
			if a, ok := routers[0].Conductor.(*aging); ok {
				a.advance(ctx, now)
			}
		},
	}
}

// How long expectations last. Conductor ends them by the clock, and the fleet works in simulated time,
// mostly in a hundredth of it. So the clock must not end any, because this machine may be slow, and
// what simulated time would have ended must not stay: reports have the longest ttl there is, and
// are taken back when their simulated time is over. That is as long as Conductor expects the blocks of
// an engine that it knows nothing of yet.
const (
	realTTL      = 10 * time.Minute
	simulatedTTL = 10 * time.Second
)

// aging is a Conductor whose expectations end in simulated time.
type aging struct {
	*kv.Client

	mu      sync.Mutex // guards the rest
	now     time.Duration
	reports []reported // by when they end
}

type reported struct {
	id   string
	ends time.Duration
}

// Routed reports a prompt.
func (a *aging) Routed(ctx context.Context, r kv.Routed) error {
	a.mu.Lock()
	a.reports = append(a.reports, reported{r.RequestID, a.now + simulatedTTL})
	a.mu.Unlock()
	return a.Client.Routed(ctx, r)
}

// advance takes reports back whose simulated time is over.
func (a *aging) advance(ctx context.Context, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = now
	for ; len(a.reports) > 0 && a.reports[0].ends <= now; a.reports = a.reports[1:] {
		_ = a.TakeBack(ctx, demoTenant, a.reports[0].id) // most are over: their blocks were announced
	}
}

// oracle answers from the fleet itself.
type oracle struct {
	targets []sim.Target
	look    func(prompt []uint32) []sim.Cached
}

// Candidates returns what each rank has of a prompt.
func (o *oracle) Candidates(_ context.Context, q kv.Query) (answer kv.Candidates, err error) {
	for n, c := range o.look(q.Tokens) {
		t := o.targets[n]
		answer.Rows = append(answer.Rows, kv.Candidate{Row: kv.Row{Instance: t.Instance,
			Ranks: []kv.Rank{{Rank: t.Rank, GPU: c.GPU, CPU: c.CPU, Disk: c.Disk, Expected: c.Expected}}}})
	}
	return answer, nil
}

// Routed does nothing: the fleet knows where prompts go.
func (o *oracle) Routed(context.Context, kv.Routed) error { return nil }

// TakeBack does nothing: each prompt is computed.
func (o *oracle) TakeBack(context.Context, string, string) error { return nil }
