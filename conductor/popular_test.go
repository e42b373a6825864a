package conductor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/feedback"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/internal/must"
)

// operator sees every tenant, operatorOf one.
var operator = conductor.Reader{}

func operatorOf(tenant string) conductor.Reader {
	return conductor.Reader{Tenants: scope.Tenants{tenant}}
}

// TestPopular asks for two prompts, one ten times as often, and holds that the numbers scaled to
// all queries are near the true ones, and that another tenant sees none of them.
func TestPopular(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		b.run("register B")
		b.run("store A path=s/t/u/v")
		b.run("store B path=s/t")
		hot := match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("s/t/u/v", 16)}
		rare := match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("x/y", 16)}
		const n = 200_000
		for i := range n {
			b.conductor.Answer(&hot, func(*match.Answer) {})
			if i%10 == 0 {
				b.conductor.Answer(&rare, func(*match.Answer) {})
			}
		}
		all := b.conductor.For(operator).Inspect().Popular(3)
		if len(all) != 1 {
			t.Fatalf("%d deployments", len(all))
		}
		p := all[0]
		near := func(what string, got, want uint64) {
			t.Helper()
			if got < want*9/10 || got > want*11/10 {
				t.Errorf("%s: %d, want some %d", what, got, want)
			}
		}
		near("queries", p.Queries, n*11/10)
		near("blocks asked for", p.Asked, n*4+n/10*2)
		near("blocks cached", p.Cached, n*4)
		near("on the device", p.Media[0].Blocks, n*4)
		if len(p.Prefixes) != 3 {
			t.Fatalf("%d prefixes", len(p.Prefixes))
		}
		for i, want := range []struct {
			depth   int
			holders string
		}{{1, "[A B]"}, {2, "[A B]"}, {4, "[A]"}} {
			got := p.Prefixes[i]
			slices.Sort(got.Holders)
			near("queries of a prefix", got.Queries, n)
			if got.Depth != want.depth || fmt.Sprint(got.Holders) != want.holders {
				t.Errorf("prefix %d: depth %d held by %v, want %+v", i, got.Depth, got.Holders, want)
			}
		}
		if foreign := b.conductor.For(operatorOf("other")).Inspect().Popular(3); len(foreign) != 0 {
			t.Errorf("another tenant sees %+v", foreign)
		}
		part := int64(0)
		for _, m := range b.conductor.Meter().Memory() {
			if m.Name == "prefixes" {
				part = m.Bytes
			}
		}
		if part == 0 {
			t.Error("the memory of prefixes is in no part")
		}
	})
}

// TestLoss holds that the blocks of one instance that no other has are its loss, over contexts.
func TestLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		b.run("register B")
		b.run("register C tenant=other")
		b.run("store A path=s/t/u/v")
		b.run("store B path=s/t")
		b.run("store A path=s salt=pepper as=pepper")
		b.run("store C path=s/t tenant=other")
		q := match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("s/t/u/v", 16)}
		for range 20 * prefixes.Every {
			b.conductor.Answer(&q, func(*match.Answer) {})
		}
		loss, err := b.conductor.For(operator).Inspect().Loss("A")
		must.Succeed(t, err)
		held, alone := 0, 0
		for _, x := range loss.Contexts {
			held, alone = held+x.Held, alone+x.Alone
		}
		if len(loss.Contexts) != 2 || held != 5 || alone != 3 || loss.Contexts[1].Salt == "pepper" {
			t.Errorf("A: %+v", loss.Contexts)
		}
		if len(loss.Prefixes) != 1 || loss.Prefixes[0].Depth != 4 {
			t.Errorf("A alone had %+v", loss.Prefixes)
		}
		if loss, err := b.conductor.For(operator).Inspect().Loss("B"); err != nil || len(loss.Contexts) != 1 ||
			loss.Contexts[0].Held != 2 ||
			loss.Contexts[0].Alone != 0 || len(loss.Prefixes) != 0 {
			t.Errorf("B: %+v, %v", loss, err)
		}
		for _, name := range []string{"A", "nil"} {
			if _, err := b.conductor.For(operatorOf("other")).Inspect().Loss(name); !errors.Is(err, ingest.ErrNotFound) {
				t.Errorf("%s for another tenant: %v", name, err)
			}
		}
	})
}

// TestFeedback reports an instance that finds what answers promise and one that does not. The
// latter starts over once in five minutes, and its finding goes when reports agree again.
func TestFeedback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(*conductor.Options) {})
		defer b.conductor.Close()
		b.conductor.Tune(conductor.Tunables{MaxSources: 10, MaxError: 0.2})
		b.run("register A")
		b.run("register B")
		b.run("store A path=s")
		b.run("store B path=s")
		view := b.conductor.For(operator)
		report := func(instance string, matched, cached, times int) (resyncs int) {
			t.Helper()
			for range times {
				res, err := view.Feedback(feedback.Report{Instance: instance, Medium: "GPU", Matched: matched, Cached: cached})
				must.Succeed(t, err)
				if res.Resynced {
					resyncs++
				}
			}
			synctest.Wait()
			return resyncs
		}
		finding := func(instance string) bool {
			for _, s := range b.conductor.Services() {
				for _, f := range s.Findings {
					if s.Instance == instance && f.Code == doctor.FindingFeedback {
						return true
					}
				}
			}
			return false
		}
		if n := report("A", 100, 95, 60); n != 0 || finding("A") {
			t.Errorf("a small error: %d resyncs", n)
		}
		if n := report("B", 100, 50, 19); n != 0 || finding("B") {
			t.Errorf("few reports: %d resyncs", n)
		}
		if n := report("B", 100, 50, 60); n != 1 || !finding("B") || finding("A") {
			t.Errorf("a large error: %d resyncs", n)
		}
		<-time.After(5 * time.Minute)
		if n := report("B", 50, 100, 10); n != 1 {
			t.Errorf("five minutes later: %d resyncs", n)
		}
		if n := report("B", 100, 100, 60); n != 0 || finding("B") {
			t.Errorf("reports that agree: %d resyncs", n)
		}
		all := view.Inspect().Reported()
		if len(all) != 2 || all[0].Instance != "A" || all[0].Reports != 60 || all[0].Matched != 6000 || all[0].Both != 5700 ||
			all[0].Recall != 1 {
			t.Errorf("%+v", all)
		}
		if _, err := view.Feedback(feedback.Report{Instance: "nil"}); !errors.Is(err, ingest.ErrNotFound) {
			t.Errorf("an unknown instance: %v", err)
		}
		foreign := b.conductor.For(operatorOf("other"))
		if _, err := foreign.Feedback(feedback.Report{Instance: "A"}); !errors.Is(err, conductor.ErrForbidden) ||
			len(foreign.Inspect().Reported()) != 0 {
			t.Errorf("another tenant: %v, %v", err, foreign.Inspect().Reported())
		}
		b.run("register C events=none capacity_blocks=8")
		if n := report("C", 0, 100, 60); n != 0 || finding("C") {
			t.Errorf("an engine without events: %d resyncs", n)
		}
		b.run("unregister C")
		b.run("unregister B")
		if all := view.Inspect().Reported(); len(all) != 1 {
			t.Errorf("after its end: %+v", all)
		}
	})
}

// TestLives stores blocks and removes them after 10 s, and holds that their age shows in the
// numbers of their model alone.
func TestLives(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		for i := range 100 {
			b.run(fmt.Sprintf("store A path=s%d/t/u/v", i))
		}
		<-time.After(10 * time.Second)
		for i := range 50 {
			b.run(fmt.Sprintf("remove A path=s%d/t/u/v", i))
		}
		lives := b.conductor.For(operator).Inspect().Lives()
		if len(lives) != 1 || lives[0].Medium != "GPU" || lives[0].Evicted == 0 || lives[0].Ages.Quantile(0.5) != 16384*time.Millisecond ||
			lives[0].Hazard <= 0 {
			t.Errorf("%+v", lives)
		}
		if foreign := b.conductor.For(operatorOf("other")).Inspect().Lives(); len(foreign) != 0 {
			t.Errorf("another tenant sees %+v", foreign)
		}
		answer := b.run("query path=s80/t detail=1")
		if !strings.Contains(answer, `"stay":{"GPU":{"1s":0.9`) {
			t.Errorf("%s", answer)
		}
	})
}

// findingsOf returns the codes of findings about an instance.
func findingsOf(b *bench, instance string) (codes []string) {
	for _, s := range b.conductor.Services() {
		for _, f := range s.Findings {
			if s.Instance == instance {
				codes = append(codes, f.Code)
			}
		}
	}
	return codes
}

// TestUnasked has one instance whose blocks have a salt that no query has.
func TestUnasked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		b.run("register B")
		b.run("store A path=s salt=pepper as=pepper")
		b.run("store B path=s")
		ask := func(how string) {
			for range 8 {
				b.run("query path=s " + how)
				<-time.After(time.Minute)
				b.run("store A path=s/t salt=pepper")
			}
		}
		ask("")
		if a, other := findingsOf(b, "A"), findingsOf(b, "B"); !slices.Contains(a, doctor.FindingUnasked) ||
			slices.Contains(other, doctor.FindingUnasked) {
			t.Errorf("without the salt: %v, %v", a, other)
		}
		ask("salt=pepper")
		if a := findingsOf(b, "A"); slices.Contains(a, doctor.FindingUnasked) {
			t.Errorf("with the salt: %v", a)
		}
	})
}

// TestShortLived has an engine that evicts blocks after 2 s, and later after minutes.
func TestShortLived(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		serve := func(from, to int, stay time.Duration) {
			for i := from; i < to; i++ {
				b.run(fmt.Sprintf("store A path=s%d/t/u/v", i))
				<-time.After(stay / 10)
				if i >= 10 {
					b.run(fmt.Sprintf("remove A path=s%d/t/u/v", i-10))
				}
			}
		}
		serve(0, 600, 2*time.Second)
		if a := findingsOf(b, "A"); !slices.Contains(a, doctor.FindingShortLived) {
			t.Errorf("blocks that stay 2 s: %v, %+v", a, b.conductor.For(operator).Inspect().Lives())
		}
		serve(600, 640, 10*time.Minute)
		if a := findingsOf(b, "A"); slices.Contains(a, doctor.FindingShortLived) {
			t.Errorf("blocks that stay minutes: %v", a)
		}
	})
}
