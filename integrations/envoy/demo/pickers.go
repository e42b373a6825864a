package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/lab/sim"
)

// address returns the base URL of an instance. Nothing listens there: requests are simulated.
func address(instance int) string {
	return fmt.Sprintf("http://127.1.%d.%d:8000", instance/250, instance%250+1)
}

// conductor is what pickers ask, in simulated time.
type conductor interface {
	pick.Conductor
	// advance ends what simulated time has ended.
	advance(ctx context.Context, now time.Duration)
}

// pickers are some pickers that share a Conductor and take the requests in turn, as they do behind one Envoy.
type pickers struct {
	fleet     sim.Config
	conductor conductor
	all       []*pick.Chooser
	now       atomic.Int64   // simulated time
	places    map[string]int // instance by endpoint
	shared    SharedBy

	stop    context.CancelFunc // of Run of all; nil before the first request
	running sync.WaitGroup

	choices int
	alone   int
	err     error // the first that a picker returned
}

// SharedBy says how many pickers share a Conductor, and how they choose.
type SharedBy struct {
	Pickers int
	Weights pick.Weights
	// Blind lets no picker ask Conductor what engines are to compute for others.
	Blind bool
}

// String names the policy.
func (s SharedBy) String() string {
	name := "picker"
	if s.Pickers > 1 {
		name = fmt.Sprintf("%d pickers", s.Pickers)
	}
	if s.Blind {
		name += ", blind to others"
	}
	if s.Weights != (pick.Weights{}) {
		name += fmt.Sprintf(" {%g %g %g}", s.Weights.Compute, s.Weights.Wait, s.Weights.Load)
	}
	return name
}

// othersEvery is how often pickers ask what others do, in simulated time, as is the default.
const othersEvery = 250 * time.Millisecond

// newPickers returns pickers for a fleet whose instances have an address each.
func newPickers(c sim.Config, s SharedBy, conductor conductor) (*pickers, error) {
	p := &pickers{fleet: c, conductor: conductor, shared: s, places: make(map[string]int)}
	for i := range c.Instances {
		p.places[strings.TrimPrefix(address(i), "http://")] = i
	}
	base := time.Unix(1_800_000_000, 0)
	for range s.Pickers {
		o := pick.Options{Conductor: conductor, Tenant: c.Tenant, Weights: s.Weights, NoFeedback: true,
			Patience: 10 * time.Second, // a busy machine must not change the outcome
			Now:      func() time.Time { return base.Add(time.Duration(p.now.Load())) }}
		if o.OthersEvery = -1; !s.Blind {
			o.OthersEvery = time.Hour // AskOthers is called when simulated time has come
		}
		chooser, err := pick.New(o)
		if err != nil {
			return nil, err
		}
		p.all = append(p.all, chooser)
	}
	return p, nil
}

// policy returns the policy of the pickers.
func (p *pickers) policy(name string) sim.Policy {
	return sim.Policy{
		Name: name, Asks: true, Choose: p.choose, Wait: p.wait, Every: othersEvery, Tick: p.tick, End: p.end,
		Alone: func() int { return p.alone },
	}
}

// wait lets simulated time come, and starts the pickers before the first request: by then the fleet is registered.
func (p *pickers) wait(ctx context.Context, now time.Duration) {
	if p.stop == nil {
		p.start(ctx)
	}
	p.now.Store(int64(now))
	p.conductor.advance(ctx, now)
}

// tick lets the pickers do what they do at regular times.
func (p *pickers) tick(ctx context.Context, _ time.Duration) {
	if p.shared.Blind {
		return
	}
	for _, c := range p.all {
		c.AskOthers(ctx)
	}
}

// readyWithin is how long pickers may take to hear of the fleet.
const readyWithin = 30 * time.Second

func (p *pickers) start(ctx context.Context) {
	ctx, p.stop = context.WithCancel(ctx)
	for _, c := range p.all {
		p.running.Go(func() { c.Run(ctx) })
	}
	deadline := time.Now().Add(readyWithin)
	for _, c := range p.all {
		for !c.Ready() {
			if time.Now().After(deadline) || ctx.Err() != nil {
				p.fail(errors.New("a picker knows no engine"))
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// end stops the pickers.
func (p *pickers) end() {
	if p.stop != nil {
		p.stop()
		p.running.Wait()
	}
}

func (p *pickers) fail(err error) { p.err = cmp.Or(p.err, err) }

// choose has the next picker choose a rank. A report is with Conductor before the next request comes, as it is some hundred
// microseconds after the choice in real time.
func (p *pickers) choose(ctx context.Context, prompt []uint32) (rank int, computed func()) {
	c := p.all[p.choices%len(p.all)]
	p.choices++
	flight, err := c.Pick(ctx, &pick.Request{Method: http.MethodPost, Path: "/v1/completions", ID: strconv.Itoa(p.choices),
		Body: completion(p.fleet.Model, prompt), Explain: true})
	if err != nil {
		p.fail(err)
		return 0, func() {}
	}
	choice := flight.Choice()
	if why := choice.Why; !strings.HasPrefix(why, "prefix:") && !strings.HasPrefix(why, "no_prefix:") {
		p.alone++
	}
	c.FlushReports(ctx)
	if rank, err = p.rank(choice); err != nil {
		p.fail(err)
	}
	return rank, func() {
		flight.Answered(choice.Endpoints[0], http.StatusOK)
		flight.FirstToken()
		flight.End() // decoding takes no time in the simulation
	}
}

// rank returns the place of the chosen rank in Config.Targets.
func (p *pickers) rank(choice *pick.Choice) (int, error) {
	instance, ok := p.places[choice.Endpoints[0]]
	if !ok {
		return 0, fmt.Errorf("a picker chose %s, where no engine is", choice.Endpoints[0])
	}
	rank, err := 0, error(nil)
	if text := choice.Headers["x-data-parallel-rank"]; text != "" || p.fleet.Ranks > 1 {
		if rank, err = strconv.Atoi(text); err != nil || rank < 0 || rank >= p.fleet.Ranks {
			return 0, fmt.Errorf("a picker chose rank %q of %d", text, p.fleet.Ranks)
		}
	}
	return instance*p.fleet.Ranks + rank, nil
}

// completion returns the body of a request.
func completion(model string, prompt []uint32) []byte {
	text := append(make([]byte, 0, 64+6*len(prompt)), `{"model":`...)
	text = strconv.AppendQuote(text, model)
	text = append(text, `,"prompt":[`...)
	for i, token := range prompt {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, uint64(token), 10)
	}
	return append(text, "]}"...)
}

// server is a Conductor whose expectations end in simulated time, as in the comparison of the example router.
type server struct {
	*client.Client
	fleet sim.Config

	mu      sync.Mutex // guards the rest
	now     time.Duration
	reports []reported // by when they end
}

type reported struct {
	id   string
	ends time.Duration
}

// How long expectations last: forever by the clock, because simulated time is many times faster; and in simulated time as long as
// Conductor expects the blocks of an engine that it knows nothing of yet.
const (
	realTTL      = 10 * time.Minute
	simulatedTTL = 10 * time.Second
)

func newServer(c *client.Client, fleet sim.Config) *server {
	return &server{Client: c, fleet: fleet}
}

// WatchInstances implements pick.Conductor. It leaves out the first lists, in which ranks that have just been registered are missing.
func (s *server) WatchInstances(ctx context.Context, use func([]client.Instance), failed func(error)) error {
	return s.Client.WatchInstances(ctx, func(all []client.Instance) {
		ranks := 0
		for _, i := range all {
			if i.Tenant == s.fleet.Tenant {
				ranks += len(i.Ranks)
			}
		}
		if ranks == s.fleet.Instances*s.fleet.Ranks {
			use(all)
		}
	}, failed)
}

// RoutedBatch implements pick.Conductor.
func (s *server) RoutedBatch(ctx context.Context, all []client.Routed) (client.RoutedAnswer, error) {
	for i := range all {
		all[i].TTL = realTTL
	}
	answer, err := s.Client.RoutedBatch(ctx, all)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range all {
		if i < len(answer.Errors) && isUnknownAnswer(answer.Errors[i]) {
			continue // it comes again, with its prompt
		}
		s.reports = append(s.reports, reported{r.RequestID, s.now + simulatedTTL})
	}
	return answer, err
}

func isUnknownAnswer(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Reason == "unknown_answer"
}

func (s *server) advance(ctx context.Context, now time.Duration) {
	s.mu.Lock()
	s.now = now
	ended := 0
	for ended < len(s.reports) && s.reports[ended].ends <= now {
		ended++
	}
	over := slices.Clone(s.reports[:ended])
	s.reports = s.reports[ended:]
	s.mu.Unlock()
	for _, r := range over {
		_ = s.TakeBack(ctx, s.fleet.Tenant, r.id) // most are over: their blocks were announced
	}
}

// fleetItself is a Conductor that is never wrong: it answers from the simulated fleet, which knows where all prompts went.
type fleetItself struct {
	fleet sim.Config
	look  func(prompt []uint32) []sim.Cached
}

// Candidates implements pick.Conductor.
func (f *fleetItself) Candidates(_ context.Context, q client.Query) (client.Candidates, error) {
	answer := client.Candidates{Model: f.fleet.Model, BlockSize: f.fleet.BlockSize}
	targets := f.fleet.Targets()
	for n, c := range f.look(q.Tokens) {
		t := targets[n]
		if t.Rank == 0 {
			answer.Rows = append(answer.Rows, client.Candidate{Row: client.Row{Instance: t.Instance}, State: "synced"})
		}
		row := &answer.Rows[len(answer.Rows)-1]
		row.Longest, row.Expected = max(row.Longest, c.Disk), max(row.Expected, c.Expected)
		row.Ranks = append(row.Ranks, client.Rank{Rank: t.Rank, GPU: c.GPU, CPU: c.CPU, Disk: c.Disk, Expected: c.Expected})
	}
	return answer, nil
}

// WatchInstances implements pick.Conductor.
func (f *fleetItself) WatchInstances(ctx context.Context, use func([]client.Instance), _ func(error)) error {
	var all []client.Instance
	for _, t := range f.fleet.Targets() {
		if t.Rank == 0 {
			all = append(all, client.Instance{Tenant: f.fleet.Tenant, Model: f.fleet.Model, BlockSize: f.fleet.BlockSize,
				Instance: t.Instance, Address: address(len(all)), State: "synced"})
		}
		i := &all[len(all)-1]
		i.Ranks = append(i.Ranks, t.Rank)
	}
	use(all)
	<-ctx.Done()
	return ctx.Err()
}

// RoutedBatch implements pick.Conductor.
func (f *fleetItself) RoutedBatch(context.Context, []client.Routed) (client.RoutedAnswer, error) {
	return client.RoutedAnswer{}, nil
}

// TakeBack implements pick.Conductor.
func (f *fleetItself) TakeBack(context.Context, string, string) error { return nil }

// Feedback implements pick.Conductor.
func (f *fleetItself) Feedback(context.Context, string, string, string, int, int) error { return nil }

// Services implements pick.Conductor.
func (f *fleetItself) Services(context.Context) ([]client.Service, error) { return nil, nil }

func (f *fleetItself) advance(context.Context, time.Duration) {}
