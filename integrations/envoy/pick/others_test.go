package pick

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/client"
)

// expecting returns what Conductor says of an instance with two ranks that is expected to compute some tokens.
func expecting(instance string, tokens uint64) []client.Service {
	s := client.Service{InstanceID: instance, TenantID: "default", Expected: &client.ServiceExpectations{Pending: tokens}}
	return []client.Service{s, s}
}

// TestOthers holds that what other pickers have sent to an engine counts until it is stale, and what this one has sent counts once.
func TestOthers(t *testing.T) {
	g := newRig(t, Options{}, "a@2", "b")
	f := func(instance int, want float64) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if got := g.loadOf(g.fleet.all[instance], 0, g.clock).Others; got != want {
			t.Errorf("others have %v at %s, want %v", got, g.fleet.all[instance].Instance.Instance, want)
		}
	}
	f(0, 0)
	g.conductor.services = expecting("a", 100)
	g.AskOthers(t.Context())
	f(0, 50) // half at each rank
	f(1, 0)
	sent := g.send("1", tokensOf(1, 40), "b/0")

	g.conductor.services = append(g.conductor.services, expecting("b", 60)...)
	g.conductor.services = append(g.conductor.services, client.Service{InstanceID: "b", TenantID: "other",
		Expected: &client.ServiceExpectations{Pending: 1000}}, client.Service{InstanceID: "gone"})
	g.AskOthers(t.Context())
	f(1, 20)
	sent.End()
	f(1, 20)
	g.conductor.services = expecting("b", 0) // what this picker has sent is not known yet
	g.send("2", tokensOf(2, 40), "b/0")
	g.AskOthers(t.Context())
	f(1, 0)
	f(0, 0)

	g.conductor.services = expecting("a", 100)
	g.AskOthers(t.Context())
	g.conductor.silent = errors.New("down")
	g.AskOthers(t.Context())
	f(0, 50)
	g.clock = g.clock.Add(time.Second)
	f(0, 0)
}

// TestOthersAreFollowed holds that a picker asks by itself, unless that is turned off.
func TestOthersAreFollowed(t *testing.T) {
	for every, want := range map[time.Duration]float64{0: 100, -1: 0} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, Options{OthersEvery: every}, "a")
			g.conductor.services = expecting("a", 100)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan bool)
			go func() { g.Run(ctx); close(ended) }()
			defer func() { cancel(); <-ended }()
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			if got := g.fleet.all[0].others; got != want {
				t.Errorf("asked every %v others have %v, want %v", every, got, want)
			}
		})
	}
}

// TestSharedPrefixDrawsFewPrompts holds that a short prefix that most prompts share does not keep new conversations at the engine that has
// it, and that a long one still decides.
func TestSharedPrefixDrawsFewPrompts(t *testing.T) {
	g := newRig(t, Options{OthersEvery: -1}, "a", "b")
	g.conductor.announce("a", 0, tokensOf(1, 8))
	long := append(tokensOf(1, 8), tokensOf(99, 4000)...)
	g.conductor.announce("a", 0, long)
	taken := make(map[string]int)
	for i := range 20 {
		f := g.pick(request("r", append(tokensOf(1, 8), tokensOf(uint32(100+i), 4000)...)))
		taken[f.at.Instance.Instance]++
		g.conductor.announce(f.at.Instance.Instance, 0, tokensOf(1, 8))
		f.Answered("", 200)
		f.FirstToken()
		f.End()
		g.clock = g.clock.Add(time.Second)
	}
	if taken["a"] != 10 {
		t.Errorf("of 20 new conversations a and b take %v", taken)
	}
	for range 20 {
		f := g.send("r", long, "a")
		f.FirstToken()
		f.End()
	}
	g.clock = g.clock.Add(100 * recentTime)
	if got := g.fleet.all[0].load.rank(0).recent(g.clock); got > 1 {
		t.Errorf("long after the last request %.1f tokens a second count", got)
	}
}

// TestComputedReportsAreTakenBack holds that a report is taken back whose prompt has its first token while more is expected of its engine
// than is queued, and only then.
func TestComputedReportsAreTakenBack(t *testing.T) {
	g := newRig(t, Options{}, "a")
	first := g.send("1", tokensOf(1, 40), "a")
	g.said("1 to a/0 by answer")
	first.FirstToken()
	g.clock = g.clock.Add(time.Second)
	g.conductor.services = expecting("a", 0) // all of it was announced
	g.AskOthers(t.Context())
	g.conductor.services = expecting("a", 24) // of another picker
	g.AskOthers(t.Context())
	g.said()

	second := g.send("2", tokensOf(2, 40), "a")
	g.said("2 to a/0 by answer")
	second.FirstToken()
	g.AskOthers(t.Context()) // the events may be on their way
	g.said()
	g.clock = g.clock.Add(announcedWithin)
	g.AskOthers(t.Context())
	g.AskOthers(t.Context())
	g.said("2 back")

	// Reports of new choices come first, because other pickers wait for them.
	third, fourth := g.send("3", tokensOf(3, 40), "a"), g.send("4", tokensOf(4, 40), "a")
	g.said("3 to a/0 by answer", "4 to a/0 by answer")
	third.FirstToken()
	fourth.FirstToken()
	g.clock = g.clock.Add(announcedWithin)
	g.AskOthers(t.Context())
	g.send("5", tokensOf(5, 40), "a")
	g.said("5 to a/0 by answer", "3 back", "4 back")

	for i := range 2 * maxComputed {
		f := g.send("r", tokensOf(uint32(3+i), 8), "a")
		g.reporter.flush(t.Context())
		f.FirstToken()
	}
	if n := len(g.fleet.all[0].computed); n != maxComputed {
		t.Errorf("%d reports are kept", n)
	}
}
