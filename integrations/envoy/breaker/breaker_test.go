package breaker

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	b := &Breaker{Threshold: 2, Wait: time.Second, Longest: 3 * time.Second}
	allow := func(want bool) Ticket {
		t.Helper()
		ticket, ok := b.Allow(now)
		if ok != want {
			t.Fatalf("a request passes: %t", ok)
		}
		return ticket
	}
	done := func(ticket Ticket, success, want bool) {
		t.Helper()
		if changed := b.Done(ticket, now, success); changed != want {
			t.Fatalf("changed: %t", changed)
		}
	}
	state := func(want int) {
		t.Helper()
		if got := b.State(now); got != want {
			t.Fatalf("state %d, want %d", got, want)
		}
	}
	done(allow(true), false, false)
	done(allow(true), true, false) // ends the row
	done(allow(true), false, false)
	late, alsoLate := allow(true), allow(true)
	done(allow(true), false, true)
	state(Open)
	allow(false)
	done(late, false, false) // does not make the wait longer
	done(alsoLate, true, false)
	state(Open)

	now = now.Add(time.Second)
	state(HalfOpen)
	probe := allow(true)
	allow(false) // one at a time
	b.Cancel(probe)
	probe = allow(true)
	done(probe, false, false)
	state(Open)
	now = now.Add(2 * time.Second) // twice as long
	state(HalfOpen)
	done(allow(true), false, false)
	now = now.Add(3 * time.Second) // but no longer than that
	done(allow(true), true, true)
	state(Closed)
	done(allow(true), false, false) // counts from the start again
	state(Closed)
	done(allow(true), false, true)
	now = now.Add(time.Second)
	state(HalfOpen)
}
