package pick

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
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.com/conductor/client"
)

const block = 4 // tokens, of all engines in these tests

// fakeConductor answers queries as Conductor does: by the prompts that engines have announced and that reports say they will have.
type fakeConductor struct {
	mu        sync.Mutex
	instances []client.Instance
	announced map[rankOf][][]uint32
	expected  map[string]client.Routed                              // by request id
	answers   map[string]client.Query                               // by id
	forgets   bool                                                  // ids of answers
	said      []string                                              // what it was told, in order
	feedback  []string                                              //
	asked     int                                                   // queries
	failing   func(ctx context.Context) (*client.Candidates, error) // in place of an answer; nil for none
	before    func()                                                // called between the computation of an answer and its return
	refuses   error                                                 // of reports
	watches   chan error                                            // ends WatchInstances
	services  []client.Service
	silent    error // in place of services
}

func (f *fakeConductor) announce(instance string, rank int, tokens []uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announced[rankOf{instance, rank}] = append(f.announced[rankOf{instance, rank}], tokens)
}

func (f *fakeConductor) Candidates(ctx context.Context, q client.Query) (client.Candidates, error) {
	f.mu.Lock()
	f.asked++
	if f.failing != nil {
		failing := f.failing
		f.mu.Unlock()
		answer, err := failing(ctx)
		if answer == nil {
			answer = new(client.Candidates)
		}
		return *answer, err
	}
	answer := client.Candidates{Model: q.Model, BlockSize: cmp.Or(q.BlockSize, block)}
	for _, i := range f.instances {
		if i.BlockSize != answer.BlockSize {
			continue
		}
		k := client.Candidate{Row: client.Row{Instance: i.Instance}, Address: i.Address, State: "synced"}
		for _, rank := range i.Ranks {
			row := client.Rank{Rank: rank}
			for _, tokens := range f.announced[rankOf{i.Instance, rank}] {
				row.GPU = max(row.GPU, commonPrefix(tokens, q.Tokens)/answer.BlockSize*answer.BlockSize)
			}
			row.CPU, row.Disk, row.Expected = row.GPU, row.GPU, row.GPU
			for _, r := range f.expected {
				if r.Target == i.Instance && (r.Rank == rank || r.Rank == client.AnyRank) && r.Salt == q.Salt {
					row.Expected = max(row.Expected, commonPrefix(r.Tokens, q.Tokens)/answer.BlockSize*answer.BlockSize)
				}
			}
			k.Longest, k.Expected = max(k.Longest, row.Disk), max(k.Expected, row.Expected)
			k.Ranks = append(k.Ranks, row)
		}
		if k.Expected >= q.MinMatched {
			answer.Rows = append(answer.Rows, k)
		}
	}
	answer.ID = "answer-" + strconv.Itoa(len(f.answers))
	f.answers[answer.ID] = q
	before := f.before
	f.mu.Unlock()
	if before != nil {
		before()
	}
	return answer, nil
}

func (f *fakeConductor) RoutedBatch(_ context.Context, all []client.Routed) (client.RoutedAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses != nil {
		return client.RoutedAnswer{}, f.refuses
	}
	answer := client.RoutedAnswer{Errors: make([]error, len(all))}
	for i, r := range all {
		by := "prompt"
		if r.AnswerID != "" {
			if len(r.Tokens) > 0 {
				answer.Errors[i] = &client.Error{Status: 400, Reason: "invalid_value", Message: "both an answer and a prompt"}
				continue
			}
			q, ok := f.answers[r.AnswerID]
			if by = "answer"; !ok || f.forgets {
				answer.Errors[i] = &client.Error{Status: 404, Reason: "unknown_answer", Message: "unknown answer"}
				continue
			}
			r.Tokens = q.Tokens
		}
		f.expected[r.RequestID] = r
		id, _, _ := strings.Cut(r.RequestID, "/")
		f.said = append(f.said, fmt.Sprintf("%s to %s/%d by %s", id, r.Target, r.Rank, by))
	}
	return answer, nil
}

func (f *fakeConductor) TakeBack(_ context.Context, _, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.expected[id]; !ok {
		return &client.Error{Status: 404, Reason: "not_found", Message: "no such report"}
	}
	delete(f.expected, id)
	id, _, _ = strings.Cut(id, "/")
	f.said = append(f.said, id+" back")
	return nil
}

func (f *fakeConductor) WatchInstances(ctx context.Context, use func([]client.Instance), failed func(error)) error {
	for {
		f.mu.Lock()
		all := slices.Clone(f.instances)
		f.mu.Unlock()
		use(all)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-f.watches:
			if refused := (*client.Error)(nil); errors.As(err, &refused) {
				return err
			}
			failed(err)
		}
		<-time.After(time.Second) // in a bubble
	}
}

func (f *fakeConductor) Services(context.Context) ([]client.Service, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services, f.silent
}

func (f *fakeConductor) Feedback(_ context.Context, instance, _, _ string, matched, cached int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.feedback = append(f.feedback, fmt.Sprintf("%s %d %d", instance, matched, cached))
	return nil
}

// rig is a Chooser with a fake Conductor and a clock that the test moves.
type rig struct {
	testing.TB
	*Chooser
	conductor *fakeConductor
	clock     time.Time
}

// newRig returns a rig of engines, each "name" or "name:role" with ranks after an @: "a", "b@4", "p:prefill". Engine i has the
// endpoint 10.0.0.i:8000.
func newRig(t testing.TB, o Options, engines ...string) *rig {
	t.Helper()
	g := &rig{TB: t, clock: time.Unix(1_800_000_000, 0), conductor: &fakeConductor{announced: make(map[rankOf][][]uint32),
		expected: make(map[string]client.Routed), answers: make(map[string]client.Query), watches: make(chan error)}}
	for i, text := range engines {
		text, ranks, _ := strings.Cut(text, "@")
		name, role, _ := strings.Cut(text, ":")
		in := client.Instance{Model: "m", Aliases: []string{"alias"}, Adapters: []string{"lora"}, Instance: name,
			Address: fmt.Sprintf("http://10.0.0.%d:8000", i+1), BlockSize: block, Role: role}
		n, _ := strconv.Atoi(ranks)
		for rank := range max(n, 1) {
			in.Ranks = append(in.Ranks, rank)
		}
		g.conductor.instances = append(g.conductor.instances, in)
	}
	o.Conductor, o.Now = g.conductor, func() time.Time { return g.clock }
	o.Patience = cmp.Or(o.Patience, time.Hour) // no test waits for it
	var err error
	if g.Chooser, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.tokenizer.Close)
	g.setInstances(t.Context(), g.conductor.instances, false)
	return g
}

// prompt returns n tokens that no prompt of another kind begins with.
func tokensOf(kind uint32, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = kind*1_000_000 + uint32(i)
	}
	return ids
}

// request returns a completion of tokens.
func request(id string, tokens []uint32) *Request {
	body := strings.ReplaceAll(fmt.Sprintf(`{"model":"m","prompt":%v}`, tokens), " ", ",")
	return &Request{Method: http.MethodPost, Path: "/v1/completions", ID: id, Body: []byte(body), Explain: true}
}

// pick returns the flight of a request.
func (g *rig) pick(r *Request) *flight {
	g.Helper()
	f, err := g.Pick(g.Context(), r)
	if err != nil {
		g.Fatal(err)
	}
	return f.(*flight)
}

// send picks for tokens and returns the flight, whose engine is to be want.
func (g *rig) send(id string, tokens []uint32, want string) *flight {
	g.Helper()
	f := g.pick(request(id, tokens))
	if got := fmt.Sprintf("%s/%d", f.at.Instance.Instance, f.at.rank); got != want && f.at.Instance.Instance != want {
		g.Errorf("request %s goes to %s, want %s: %s", id, got, want, f.choice.Why)
	}
	return f
}

// refused picks for a request that is refused with a status.
func (g *rig) refused(r *Request, status int) {
	g.Helper()
	f, err := g.Pick(g.Context(), r)
	refusal, ok := err.(*Refusal)
	if !ok || refusal.Status != status || refusal.Message == "" {
		g.Errorf("the request ends with %v and %v, want %d", f, err, status)
	}
}

// said flushes the reports, and compares what Conductor was told since.
func (g *rig) said(want ...string) {
	g.Helper()
	g.reporter.flush(g.Context())
	g.conductor.mu.Lock()
	defer g.conductor.mu.Unlock()
	if !slices.Equal(g.conductor.said, want) {
		g.Errorf("Conductor is told %q, want %q", g.conductor.said, want)
	}
	g.conductor.said = nil
}

// idle fails if something is still in flight.
func (g *rig) idle() {
	g.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for endpoint, l := range g.loads {
		if l.inFlight != 0 || l.started != 0 || l.queued() != 0 {
			g.Errorf("%s still has %d requests, %d started, %f tokens", endpoint, l.inFlight, l.started, l.queued())
		}
	}
}

// counted returns a counter.
func counted(t testing.TB, v *prometheus.CounterVec, label string) float64 {
	t.Helper()
	var m dto.Metric
	if err := v.WithLabelValues(label).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func (g *rig) counted(v *prometheus.CounterVec, label string, want float64) {
	g.Helper()
	if got := counted(g.TB, v, label); got != want {
		g.Errorf("%s is counted %v times, want %v", label, got, want)
	}
}
