package pick

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/conductor/client"
)

// TestOtherEndpoint holds that load and reports follow a request that the data plane sends to a fallback, and that the engines
// that it passed over leave.
func TestOtherEndpoint(t *testing.T) {
	prompt := tokensOf(1, 16)
	for _, sent := range []bool{false, true} {
		g := newRig(t, Options{}, "a", "b", "c")
		g.conductor.announce("b", 0, prompt[:8])
		g.conductor.announce("c", 0, prompt[:4])
		f := g.send("r", prompt, "b")
		var want []string
		if sent {
			want = []string{"r to c/0 by answer"}
			g.said("r to b/0 by answer")
		} else {
			want = []string{"r to c/0 by answer"} // the first report is not sent at all
		}
		f.Answered("10.0.0.3:8000", 200)
		g.said(want...)
		if len(g.conductor.expected) != 1 {
			t.Errorf("%d prompts are expected", len(g.conductor.expected))
		}
		b, c := g.fleet.byEndpoint["10.0.0.2:8000"], g.fleet.byEndpoint["10.0.0.3:8000"]
		if b.inFlight != 0 || b.queued() != 0 || c.inFlight != 1 || c.queued() != 12 || !b.until.After(g.clock) {
			t.Errorf("%d requests and %f tokens are left, %d and %f are where it went", b.inFlight, b.queued(), c.inFlight, c.queued())
		}
		f.FirstToken()
		f.Usage(16, 4)
		f.End()
		g.idle()
		if got := <-g.reporter.feedback; got != (feedback{"c", 4, 4}) {
			t.Errorf("the feedback is %v", got)
		}
		g.send("next", prompt, "c")
	}

	// To an engine that was not named, and to an address of no engine.
	g := newRig(t, Options{Fallbacks: 1}, "a", "b", "c")
	f := g.send("r", prompt, "a")
	g.said("r to a/0 by answer")
	f.Answered("[::ffff:10.0.0.3]:8000", 200)
	g.said("r to c/0 by answer")
	f.End()
	g.said("r back")
	f = g.send("s", tokensOf(2, 16), "b")
	g.said("s to b/0 by answer")
	f.Answered("10.9.9.9:1", 503)
	f.FirstToken()
	f.End()
	g.said("s back")
	f = g.pick(request("t", tokensOf(3, 16)))
	g.reporter.flush(t.Context())
	g.conductor.said = nil
	f.Answered("10.9.9.9:1", 200)
	f.FirstToken()
	f.Usage(16, 12)
	f.End()
	if len(g.reporter.feedback) > 0 {
		t.Errorf("what an unknown engine had cached is fed back: %v", <-g.reporter.feedback)
	}
	g.said("t back")
	g.idle()
	for _, e := range g.fleet.all {
		if !e.until.IsZero() {
			t.Errorf("%s is left out", e.endpoint)
		}
	}
}

// TestTakenBack holds when a report is taken back: the engine refused, or the client left before the first token.
func TestTakenBack(t *testing.T) {
	f := func(life func(*flight), want ...string) {
		t.Helper()
		g := newRig(t, Options{}, "a")
		flight := g.send("r", tokensOf(1, 16), "a")
		g.said("r to a/0 by answer")
		life(flight)
		flight.End()
		flight.End() // has no effect
		g.said(want...)
		g.idle()
	}
	f(func(f *flight) { f.Answered("10.0.0.1:8000", 200); f.FirstToken() })
	f(func(f *flight) { f.FirstToken() }) // the data plane did not tell the headers
	f(func(*flight) {}, "r back")
	f(func(f *flight) { f.Answered("", 200) }, "r back")
	f(func(f *flight) { f.Answered("", 400); f.FirstToken() }, "r back")
	f(func(f *flight) { f.Answered("", 503) }, "r back")
	g := newRig(t, Options{}, "a")
	g.send("r", tokensOf(1, 16), "a").End()
	g.said() // one that was not sent yet is not sent at all
	g.counted(g.metrics.reports, "withdrawn", 1)
}

// TestLiveness holds which ends of a request make an engine leave, for how long, and what brings it back.
func TestLiveness(t *testing.T) {
	var g *rig
	left := func() bool { return g.clock.Before(g.fleet.all[0].until) }
	f := func(want bool, statuses ...int) { // 0 is a client that leaves, -1 one that leaves after long
		t.Helper()
		g = newRig(t, Options{}, "a")
		for _, status := range statuses {
			flight := g.pick(request("r", tokensOf(1, 8)))
			switch status {
			case 0:
			case -1:
				g.clock = g.clock.Add(silentAfter)
			default:
				flight.Answered("", status)
			}
			flight.End()
		}
		if left() != want {
			t.Errorf("after %v the engine has left: %t", statuses, left())
		}
	}
	f(true, 502)
	f(true, 503)
	f(false, 500, 500, 500, 500, 400, 404, 429)
	f(false, 504, 504)
	f(true, 504, 504, 504)
	f(true, 504, -1, 504)
	f(false, 504, 504, 200, 504, 504)
	f(false, 0, 0, 0, 0, 0, 0)
	f(true, -1, -1, -1)

	g = newRig(t, Options{}, "a", "b")
	prompt := tokensOf(1, 40)
	g.conductor.announce("a", 0, prompt)
	before := g.send("before", prompt, "a")
	fail := func(want time.Duration) {
		t.Helper()
		flight := g.send("r", prompt, "a")
		flight.Answered("", 503)
		flight.End()
		e := g.fleet.all[0]
		if got := e.until.Sub(g.clock); got != want {
			t.Errorf("the engine leaves for %s, want %s", got, want)
		}
		g.send("s", prompt, "b").End()
		g.clock = e.until
	}
	for _, want := range []time.Duration{5, 10, 20, 40, 40} {
		fail(want * time.Second)
	}
	before.Answered("", 200) // it shuts down: it answers what it has, and takes nothing new
	before.FirstToken()
	before.End()
	fail(40 * time.Second)
	back := g.send("back", prompt, "a")
	back.Answered("", 200)
	back.FirstToken()
	back.End()
	fail(5 * time.Second)

	// The next one probes, and keeps others away until it has an answer.
	probe := g.send("probe", prompt, "a")
	g.send("other", prompt, "b").End()
	probe.Answered("", 200)
	probe.FirstToken()
	probe.End()
	g.send("other", prompt, "a").End()

	// If all have left, all may be chosen.
	for _, name := range []string{"a", "b"} {
		flight := g.send("r", prompt, name)
		flight.Answered("", 503)
		flight.End()
	}
	g.send("r", prompt, "a").End()
	g.idle()
}

// TestLivenessApart holds that of an engine for prefill and one for decode the one leaves that fails, and that the other comes back.
func TestLivenessApart(t *testing.T) {
	for _, dead := range []string{"p", "d"} {
		g := newRig(t, Options{}, "p:prefill", "q:prefill", "d:decode", "e:decode")
		failed, late := 0, 0
		for i := range 200 {
			f := g.pick(request("r", tokensOf(uint32(i), 16)))
			if f.at.Instance.Instance == dead || f.computing.Instance.Instance == dead {
				f.Answered("", 502)
				if failed++; i >= 100 {
					late++
				}
			} else {
				f.Answered("", 200)
				f.FirstToken()
			}
			f.End()
			g.clock = g.clock.Add(time.Second)
		}
		if failed > 9 || late > 3 { // then it is tried every 40 s
			t.Errorf("with %s dead, %d of 200 requests fail, %d of the last 100", dead, failed, late)
		}
		for _, e := range g.fleet.all {
			if got := e.failures > 0; got != (e.Instance.Instance == dead) {
				t.Errorf("with %s dead, %s has %d failures", dead, e.Instance.Instance, e.failures)
			}
		}
		g.idle()
	}
}

// TestTakenBackWithFullQueue holds that reports are taken back although there is no room for more of them.
func TestTakenBackWithFullQueue(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	g.reporter.max = 3
	var sent []*flight
	for i := range 3 {
		sent = append(sent, g.pick(request(fmt.Sprint("r", i), tokensOf(uint32(10+i), 8))))
	}
	g.reporter.flush(t.Context())
	for i := range 3 { // whose reports fill the queue while the others are taken back
		g.pick(request(fmt.Sprint("s", i), tokensOf(uint32(20+i), 8)))
	}
	for _, f := range sent {
		f.Answered("", 400)
		f.End()
	}
	g.conductor.said = nil
	g.reporter.flush(t.Context())
	if back := strings.Join(g.conductor.said[3:], ", "); back != "r0 back, r1 back, r2 back" {
		t.Errorf("with a full queue Conductor is told %q", g.conductor.said)
	}
}

// TestReports holds that reports go in order and in lists, and what becomes of those that Conductor does not keep.
func TestReports(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	g.reporter.max = 3
	for i := range 5 {
		g.send(fmt.Sprint(i), tokensOf(uint32(i), 8), []string{"a", "b"}[i%2])
	}
	g.said("0 to a/0 by answer", "1 to b/0 by answer", "2 to a/0 by answer")
	g.counted(g.metrics.reports, "dropped", 2)
	g.counted(g.metrics.reports, "kept", 3)
	g.reporter.max = maxReports

	g.conductor.forgets = true
	g.send("5", tokensOf(5, 8), "b")
	g.said("5 to b/0 by prompt")
	g.counted(g.metrics.reports, "with_prompt", 1)
	g.counted(g.metrics.reports, "kept", 4)

	g.conductor.refuses = &client.Error{Status: 404, Reason: "not_found", Message: "no such instance"}
	g.send("6", tokensOf(6, 8), "a")
	g.said()
	g.counted(g.metrics.reports, "refused", 1)
	g.conductor.refuses = errors.New("connection refused")
	dead := g.send("7", tokensOf(7, 8), "b")
	g.said()
	g.counted(g.metrics.reports, "failed", 1)
	g.conductor.refuses = nil
	dead.End() // was sent, for all we know
	g.said()
	g.counted(g.metrics.reports, "taken_back_late", 1)

	for range conductorFailures { // while the breaker is open nobody hears anything
		ticket, _ := g.breaker.Allow(g.clock)
		g.breaker.Done(ticket, g.clock, false)
	}
	g.send("8", tokensOf(8, 8), "b")
	g.said()
	g.counted(g.metrics.reports, "failed", 2)
}

// TestReportsAreBounded holds that long prompts that wait are bounded by their tokens.
func TestReportsAreBounded(t *testing.T) {
	g := newRig(t, Options{}, "a")
	long := &report{Routed: client.Routed{Query: client.Query{Tokens: make([]uint32, batchTokens)}}}
	for i := range 20 {
		r := *long
		r.RequestID = fmt.Sprint(i)
		if kept := g.reporter.add(&r); kept != (i <= maxQueuedTokens/batchTokens) {
			t.Errorf("report %d is kept: %t", i, kept)
		}
	}
	if batch, _ := g.reporter.next(); len(batch) != 1 {
		t.Errorf("%d prompts of a million tokens go at once", len(batch))
	}
	g.reporter.flush(t.Context())
	if g.reporter.tokens != 0 || g.reporter.queue != nil {
		t.Errorf("%d tokens are left", g.reporter.tokens)
	}
	// Two reports of one request do not go at once, so that they keep their order.
	for range 2 {
		g.reporter.add(&report{Routed: client.Routed{RequestID: "r"}})
	}
	if batch, _ := g.reporter.next(); len(batch) != 1 {
		t.Errorf("%d reports of one request go at once", len(batch))
	}
}

// TestRequestIDs holds that reports of requests with one id, which the client makes up, do not mix.
func TestRequestIDs(t *testing.T) {
	g := newRig(t, Options{}, "a")
	id := strings.Repeat("\xff", 3) + strings.Repeat("x", 500)
	g.send(id, tokensOf(1, 8), "a")
	g.send(id, tokensOf(2, 8), "a")
	g.reporter.flush(t.Context())
	if len(g.conductor.expected) != 2 {
		t.Errorf("%d reports are kept", len(g.conductor.expected))
	}
	for id := range g.conductor.expected {
		if len(id) > 128 || !strings.HasPrefix(id, "xxx") {
			t.Errorf("the id is %q", id)
		}
	}
}

// TestLives plays random lives of requests, and holds that nothing stays in flight, that Conductor expects exactly the prompts
// whose engine has begun to answer, each at the engine that did, and that every choice was allowed.
func TestLives(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 57))
		g := newRig(t, Options{LeaveFor: time.Second}, "a", "b@3", "c", "d")
		prompts := make([][]uint32, 6)
		for i := range prompts {
			prompts[i] = append(tokensOf(uint32(i/3), 20), tokensOf(uint32(i+10), 20)...)
		}
		type life struct {
			*flight
			id    string
			stage int
		}
		var alive []*life
		want := make(map[string]string) // by id, where its prompt is
		for step := range 300 {
			switch what := random.IntN(10); {
			case what < 3:
				id := fmt.Sprint(step)
				left := make(map[string]bool)
				for _, e := range g.fleet.all {
					if g.clock.Before(e.until) {
						left[e.endpoint] = true
					}
				}
				f := g.pick(request(id, prompts[random.IntN(len(prompts))]))
				if left[f.at.endpoint] && len(left) < len(g.fleet.all) {
					t.Fatalf("seed %d: %s is chosen, which has left", seed, f.at)
				}
				if len(f.choice.Endpoints) == 0 || f.choice.Endpoints[0] != f.at.endpoint {
					t.Fatalf("seed %d: the endpoints are %q", seed, f.choice.Endpoints)
				}
				alive = append(alive, &life{flight: f, id: id})
				want[id] = f.at.Instance.Instance
			case what == 3:
				g.reporter.flush(t.Context())
			case what == 4:
				g.clock = g.clock.Add(300 * time.Millisecond)
			case len(alive) > 0:
				i := random.IntN(len(alive))
				l := alive[i]
				switch l.stage++; {
				case l.stage == 1 && random.IntN(4) > 0:
					status := []int{200, 200, 200, 200, 400, 503, 504}[random.IntN(7)]
					l.Answered(l.choice.Endpoints[random.IntN(len(l.choice.Endpoints))], status)
					if want[l.id] = l.at.Instance.Instance; status >= 400 {
						delete(want, l.id)
						l.stage = 2
					}
				case l.stage == 2 && random.IntN(4) > 0:
					l.FirstToken()
				default:
					if !l.started {
						delete(want, l.id)
					}
					l.End()
					alive = slices.Delete(alive, i, i+1)
				}
			}
		}
		for _, l := range alive {
			if !l.started {
				delete(want, l.id)
			}
			l.End()
		}
		g.reporter.flush(t.Context())
		g.idle()
		got := make(map[string]string)
		for id, r := range g.conductor.expected {
			id, _, _ = strings.Cut(id, "/")
			got[id] = r.Target
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: Conductor expects %v, want %v", seed, got, want)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestConcurrentLives lets requests come while the fleet changes, reports are sent and metrics are read; the race detector judges.
func TestConcurrentLives(t *testing.T) {
	g := newRig(t, Options{}, "a", "b@2", "c")
	all := g.conductor.instances
	ctx, end := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Go(func() { g.reporter.run(ctx) })
	background.Go(func() { g.reporter.runFeedback(ctx) })
	background.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			g.setInstances(ctx, all[i%2:], false)
			_ = gathered(t, g)
		}
	})
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			for i := range 50 {
				f, err := g.Pick(ctx, request(fmt.Sprint(n), tokensOf(uint32(i%5), 40)))
				if err != nil {
					t.Error(err)
					return
				}
				f.Answered(f.Choice().Endpoints[0], []int{200, 500}[i%7/6])
				f.FirstToken()
				f.Usage(40, 36)
				f.End()
			}
		})
	}
	clients.Wait()
	end()
	background.Wait()
	g.idle()
}

// TestLargePrompts holds that a request waits in proportion to its tokens, that all its prompts together are bounded, and that an answer
// that is late for so many does not open the breaker.
func TestLargePrompts(t *testing.T) {
	g := newRig(t, Options{Patience: time.Hour}, "a")
	var mu sync.Mutex
	var longest time.Duration
	g.conductor.failing = func(ctx context.Context) (*client.Candidates, error) {
		deadline, _ := ctx.Deadline()
		mu.Lock()
		defer mu.Unlock()
		longest = time.Until(deadline)
		return nil, context.DeadlineExceeded
	}
	large := request("r", nil)
	large.Body = []byte(`{"model":"m","prompt":[1` + strings.Repeat(",1", 3*patienceTokens-1) + `]}`)
	for range 2 * conductorFailures {
		g.pick(large).End()
	}
	if longest <= 2*time.Hour || longest > 3*time.Hour {
		t.Errorf("a prompt of three times the tokens waits %s, want 3 h", longest)
	}
	g.conductor.mu.Lock()
	if g.conductor.asked != 2*conductorFailures {
		t.Errorf("Conductor is asked %d times: large prompts have opened its breaker", g.conductor.asked)
	}
	g.conductor.failing = nil
	g.conductor.mu.Unlock()

	one := "[" + strings.Repeat("1,", maxAsked/4) + "1]"
	large.Body = []byte(`{"model":"m","prompt":[` + strings.Repeat(one+",", 15) + one + `]}`)
	g.pick(large)
	tokens := 0
	for _, q := range g.conductor.answers {
		tokens += len(q.Tokens)
	}
	if len(g.conductor.answers) != 16 || tokens != maxAsked {
		t.Errorf("Conductor is asked about %d prompts with %d tokens, want 16 with %d", len(g.conductor.answers), tokens, maxAsked)
	}
}

// TestPatience holds that a request waits for Conductor no longer than the patience, whose time is that of the context.
func TestPatience(t *testing.T) {
	g := newRig(t, Options{Patience: 7 * time.Minute}, "a")
	g.conductor.failing = func(ctx context.Context) (*client.Candidates, error) {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left > 7*time.Minute || Traceparent(ctx) != "00-trace" {
			t.Errorf("a query has %s, and the trace %q", left, Traceparent(ctx))
		}
		return nil, errors.New("no")
	}
	r := request("r", tokensOf(1, 8))
	r.Traceparent = "00-trace"
	g.pick(r)
	if _, err := New(Options{}); err == nil {
		t.Error("a Chooser without a Conductor is made")
	}
	if _, err := New(Options{Conductor: g.conductor, Patience: -1}); err == nil {
		t.Error("a negative patience is taken")
	}
	if _, err := New(Options{Conductor: g.conductor, HTTP: http.DefaultClient, Weights: Weights{Load: -1}}); err == nil {
		t.Error("a negative weight is taken")
	}
}
