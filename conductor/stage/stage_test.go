package stage

import (
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"
)

// TestClockSumsPartsOfStages plays a query whose prompt is hashed in two pieces.
func TestClockSumsPartsOfStages(t *testing.T) {
	var now time.Duration
	c := Start(func() time.Duration { return now })
	for _, step := range []struct {
		after time.Duration
		next  Stage
	}{{5, Admit}, {1, Parse}, {20, Match}, {3, Hash}, {7, Match}, {2, Hash}, {4, Match}, {1, Encode}, {9, Send}} {
		now += step.after
		c.Enter(step.next)
	}
	now += 6
	parts, took := c.End()
	if took != 58 {
		t.Errorf("took %d, want 58", took)
	}
	f := func(s Stage, from, spent time.Duration) {
		t.Helper()
		if got := (Part{from, spent, true}); parts[s] != got {
			t.Errorf("%v: %v, want %v", s, parts[s], got)
		}
	}
	f(Read, 0, 5)
	f(Admit, 5, 1)
	f(Parse, 6, 20)
	f(Match, 26, 6)
	f(Hash, 29, 11)
	f(Encode, 43, 9)
	f(Send, 52, 6)
}

// TestClockKeepsNamesOfFirstQuery requires copies of bounded length, and sums of the rest.
func TestClockKeepsNamesOfFirstQuery(t *testing.T) {
	c := Start(func() time.Duration { return 0 })
	c.Answered("acme", strings.Repeat("ü", 200)+"\xff", 32)
	c.Answered("other", "m", 16)
	if c.Tenant != "acme" || c.Model != strings.Repeat("ü", 128) || c.Queries != 2 || c.Tokens != 48 {
		t.Errorf("%q %q %d %d", c.Tenant, c.Model, c.Queries, c.Tokens)
	}
}

// TestNilClockCostsNothing requires that a request without a clock allocates nothing.
func TestNilClockCostsNothing(t *testing.T) {
	var c *Clock
	if n := alloctest.PerRun(100, func() {
		c.Enter(Match)
		c.Answered("tenant", "model", 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
