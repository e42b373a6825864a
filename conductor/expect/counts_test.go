package expect

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// counter makes prompts that have nothing in common.
type counter struct {
	*clock
	t     *testing.T
	table *Table
	space *Space
	n     uint64
}

func newCounter(t *testing.T) *counter {
	c := &counter{clock: newClock(), t: t}
	c.table = New(1<<30, c.now)
	c.space = c.table.NewSpace("a", 16)
	return c
}

// prompt returns a prompt of some blocks.
func (c *counter) prompt(blocks int) (all keys) {
	for range blocks {
		c.n++
		all = append(all, c.n)
	}
	return all
}

func (c *counter) pass(d time.Duration) {
	c.at = c.at.Add(d)
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.table.expireReports(c.at.UnixNano())
}

// serve reports prompts for a rank and announces each of them some time later.
func (c *counter) serve(rank int32, prompts, blocks int, took time.Duration) {
	for range prompts {
		p := c.prompt(blocks)
		c.space.Target(0, rank, Options{}).Add(Report{Keys: p})
		c.pass(took)
		c.space.Announced(0, rank, p, 1)
	}
}

func (c *counter) ttl(rank int32, want time.Duration) {
	c.t.Helper()
	if got := time.Duration(c.space.Target(0, rank, Options{}).ttl()); got != want {
		c.t.Errorf("rank %d: ttl %s, want %s", rank, got, want)
	}
}

// TestLearnedTTL lets the delays of confirmations decide how long reports last that do not say it.
func TestLearnedTTL(t *testing.T) {
	c := newCounter(t)
	c.ttl(0, FirstTTL)
	c.serve(0, 1, 63, 100*time.Millisecond)
	c.ttl(0, FirstTTL)
	c.serve(0, 1, 1, 100*time.Millisecond)
	c.ttl(0, LeastTTL)
	c.ttl(1, FirstTTL)
	// Events come later than the ttl, which one step of delays after another follows.
	before := int64(LeastTTL)
	for range 200 {
		c.serve(0, 1, 100, 4*time.Second)
	}
	if now := c.space.Target(0, 0, Options{}).ttl(); now < int64(4*time.Second) || now > int64(5*time.Second) {
		t.Errorf("ttl %s after late events of 4 s, from %s", time.Duration(now), time.Duration(before))
	}
	if s := c.space.States()[0]; s.Ended[Confirmed] == 0 || s.Ended[Expired] < 16*100 {
		t.Errorf("%+v", s.Ended)
	}
	for range 200 {
		c.serve(0, 1, 500, 29*time.Second)
	}
	c.ttl(0, MostTTL)
	for range 300 {
		c.serve(0, 1, 500, 20*time.Millisecond)
	}
	c.ttl(0, LeastTTL)
	// Blocks that are never announced teach nothing.
	for range 200 {
		c.space.Target(0, 1, Options{}).Add(Report{Keys: c.prompt(10)})
		c.pass(time.Second)
	}
	c.pass(time.Minute)
	c.ttl(1, FirstTTL)
	// Nor what comes later than any ttl that may be learned.
	c.serve(2, 100, 10, 31*time.Second)
	c.ttl(2, FirstTTL)
	if n := len(c.space.findTarget(0, 2).late); n > 2 {
		t.Errorf("%d late blocks are kept", n)
	}
}

// TestLateAtAnyPace learns delays that are far longer than the pause between reports.
func TestLateAtAnyPace(t *testing.T) {
	c := newCounter(t)
	c.serve(0, 100, 4, 10*time.Millisecond)
	c.ttl(0, LeastTTL)
	var sent []keys
	for range 20_000 { // 100 a second, each announced after 5 s
		p := c.prompt(4)
		c.space.Target(0, 0, Options{}).Add(Report{Keys: p})
		if sent = append(sent, p); len(sent) > 500 {
			c.space.Announced(0, 0, sent[0], 1)
			sent = sent[1:]
		}
		c.pass(10 * time.Millisecond)
	}
	if got := time.Duration(c.space.findTarget(0, 0).ttl()); got < 5*time.Second || got > 7*time.Second {
		t.Errorf("ttl %s", got)
	}
}

// TestLateParts learns how long the end of a prompt takes that an engine announces in parts.
func TestLateParts(t *testing.T) {
	c := newCounter(t)
	for range 3 {
		p := c.prompt(100)
		c.space.Target(0, 0, Options{}).Add(Report{Keys: p, TTL: time.Second})
		c.pass(2 * time.Second)
		c.space.Announced(0, 0, p[:50], 1)
		c.pass(2 * time.Second)
		c.space.Announced(0, 0, p[50:], 1)
	}
	s := c.space.States()[0]
	if p50 := s.Delay(0.5); p50 < 4*time.Second || p50 > 5*time.Second {
		t.Errorf("p50 %s", p50)
	}
	if blocks, all := s.Waited(); blocks != 300 || all != 3*(2+99*4)*time.Second {
		t.Errorf("%d blocks in %s", blocks, all)
	}
}

// TestQuantiles compares quantiles with sorted delays: they are rounded up, by a quarter at most.
func TestQuantiles(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 39))
	for n := 1; n < 2000; n = n*3/2 + 1 {
		var d delays
		var all []time.Duration
		for range n {
			took := time.Duration(1<<dice.IntN(20))*time.Millisecond + time.Duration(dice.IntN(1000))*time.Millisecond
			all = append(all, took)
			d.add(int64(took), 1)
		}
		slices.Sort(all)
		for _, part := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
			at := 0
			for float64(at+1) < part*float64(n) {
				at++
			}
			if got, want := d.quantile(part), all[at]; got < want || float64(got) > 1.25*float64(want)+float64(2*time.Millisecond) {
				t.Errorf("%d delays, %v: %s, want %s", n, part, got, want)
			}
		}
	}
	var d delays
	if d.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	d.add(-5, 1) // the clock was set back
	d.add(int64(time.Hour), 1)
	if d.quantile(0.1) > 2*time.Millisecond || d.quantile(1) < 15*time.Minute {
		t.Error(d.quantile(0.1), d.quantile(1))
	}
}

// TestCounts ends blocks in each way. What was reported has ended or is pending; counts never go back while the
// instance stays, those of the table not afterwards either.
func TestCounts(t *testing.T) {
	c := newCounter(t)
	check := func(want string) {
		t.Helper()
		text := func(s *State) string {
			out := fmt.Sprintf("%d reports, %d pending", s.Reports, s.Pending/16)
			for why := range Endings {
				if n := s.Ended[why]; n > 0 {
					out += fmt.Sprintf(", %d %s", n/16, why)
				}
			}
			return out
		}
		sum := new(State)
		for _, s := range c.space.States() {
			sum.Add(s)
		}
		if got := text(sum); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if totals := c.table.Totals(); sum.Reports > 0 && text(&totals) != want {
			t.Errorf("totals: %s", text(&totals))
		}
	}
	of := func(rank int32, o Options) *Target { return c.space.Target(0, rank, o) }
	a, b := c.prompt(10), c.prompt(4)
	of(0, Options{}).Add(Report{Keys: a, TTL: time.Second})
	of(0, Options{}).Add(Report{Keys: a[:5], TTL: time.Second})
	of(AnyRank, Options{}).Add(Report{Keys: b, TTL: time.Minute, ID: "b"})
	check("3 reports, 14 pending")
	of(0, Options{}).Has(a[:1])
	check("3 reports, 13 pending")
	c.space.Announced(0, 0, a[1:4], 1)
	check("3 reports, 10 pending, 3 confirmed")
	c.pass(time.Second)
	check("3 reports, 4 pending, 3 confirmed, 6 expired")
	c.table.Cancel("a", "b")
	check("3 reports, 0 pending, 3 confirmed, 6 expired, 4 taken_back")
	of(1, Options{}).Add(Report{Keys: b})
	c.space.Drop(0, 1)
	check("4 reports, 0 pending, 3 confirmed, 6 expired, 4 taken_back, 4 dropped")
	// The instance is registered as one that announces nothing.
	for rank := range int32(2) {
		of(rank, Options{Capacity: 8}).Add(Report{Keys: c.prompt(10)})
	}
	check("6 reports, 16 pending, 3 confirmed, 6 expired, 4 taken_back, 4 dropped, 4 evicted")
	c.table.SetLimit(0)
	check("6 reports, 0 pending, 3 confirmed, 6 expired, 4 taken_back, 20 dropped, 4 evicted")
	c.space.Forget(0)
	check("0 reports, 0 pending")
	if n := c.table.Totals().Ended[Dropped]; n != 20*16 {
		t.Errorf("%d tokens", n)
	}
}

// TestDoubt doubts reports for a rank whose blocks are never announced by it, and says what speaks for which cause.
func TestDoubt(t *testing.T) {
	c := newCounter(t)
	one := func() string {
		t.Helper()
		all := c.space.Doubts(c.at.Add(-time.Minute))
		if len(all) == 0 {
			return ""
		}
		d := all[0]
		return fmt.Sprintf("rank %d: %d reports of context %d, %d late, %d by rank %d", d.Rank, d.Reports, d.Context, d.Late, d.Elsewhere,
			d.ByRank)
	}
	check := func(want string) {
		t.Helper()
		if got := one(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	vain := func(rank int32, n int, then func(p keys)) {
		for range n {
			p := c.prompt(3)
			c.space.Target(0, rank, Options{}).Add(Report{Keys: p, TTL: time.Second, Context: 7})
			then(p)
			c.pass(time.Second)
		}
	}
	nothing := func(keys) {}
	vain(0, EnoughDoubt-1, nothing)
	check("")
	vain(0, 1, nothing)
	check("rank 0: 20 reports of context 7, 0 late, 0 by rank 0")
	p := c.prompt(2)
	c.space.Target(0, 0, Options{}).Add(Report{Keys: p})
	if c.space.Announced(0, 0, c.prompt(3), 1) || !c.space.Announced(0, 0, p[:1], 1) || c.space.Announced(0, 0, p[1:], 1) {
		t.Error("the first confirmation alone ends the doubt")
	}
	check("")
	// Blocks that are partly confirmed, taken back or known already are no reason to doubt.
	vain(0, 30, func(p keys) { c.space.Announced(0, 0, p[:1], 1) })
	vain(1, 30, func(p keys) { c.space.Target(0, 1, Options{}).Has(p) })
	vain(2, 30, func(keys) { c.space.Drop(0, 2) })
	check("")
	// One prompt all the time never leaves, but its reports end.
	for range 40 {
		c.space.Target(0, 3, Options{}).Add(Report{Keys: keys{1 << 40, 1<<40 + 1}, TTL: time.Second})
		c.pass(500 * time.Millisecond)
	}
	check("rank 3: 39 reports of context 0, 0 late, 0 by rank 0")
	c.pass(2 * time.Minute)
	check("") // no router reports any more
	// Another rank announces the blocks.
	if c.space.Awaits(0, 6) {
		t.Error("an announcement is looked at without need")
	}
	vain(5, 25, func(p keys) { c.space.Announced(0, 6, p, 1) })
	check("rank 5: 25 reports of context 7, 0 late, 21 by rank 6")
	c.space.Announced(0, 5, keys{c.n + 1}, 1)
	vain(5, 1, func(p keys) { c.space.Announced(0, 5, p, 1) })
	check("")
	if c.space.Awaits(0, 6) {
		t.Error("an announcement is looked at without need afterwards")
	}
	// They come late.
	vain(AnyRank, 25, func(p keys) { c.pass(2 * time.Second); c.space.Announced(0, 8, p, 1) })
	check("rank -1: 25 reports of context 7, 50 late, 0 by rank 0")
	c.space.Drop(0, 8)
	check("")
	for range 30 {
		c.space.Target(1, 0, Options{Capacity: 5, TTL: time.Second}).Add(Report{Keys: c.prompt(2)})
		c.pass(time.Second)
	}
	check("")
}
