// Package breaker keeps requests from a server that keeps failing.
//
//	closed ──Threshold failures in a row──▶ open ──its wait is over──▶ half open: one request probes
//	   ▲                                     ▲                             │
//	   └──────────────success────────────────┼─────────────────────────────┤
//	                                         └──failure: twice the wait────┘
package breaker

import (
	"sync"
	"time"
)

// States of a Breaker.
const (
	Closed = iota
	HalfOpen
	Open
)

// Breaker counts the failures of one server. It is safe for concurrent use.
type Breaker struct {
	Threshold int           // failures in a row that open it
	Wait      time.Duration // how long it is open at first
	Longest   time.Duration // how long it is open at most, after failed probes

	mu       sync.Mutex // guards the rest
	failures int        // in a row
	wait     time.Duration
	until    time.Time // when the next probe may start; zero while it is closed
	round    uint64    // grows whenever it opens or closes, so that results of requests from before do not count
	probing  bool
}

// Ticket belongs to a request that a Breaker has let pass.
type Ticket uint64

// Allow reports whether a request may be sent. If it may, the caller calls Done, or Cancel if it learns nothing of the server.
func (b *Breaker) Allow(now time.Time) (t Ticket, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.until.IsZero() {
		if b.probing || now.Before(b.until) {
			return 0, false
		}
		b.probing = true
	}
	return Ticket(b.round), true
}

// Done says how a request ended, and reports whether the breaker has opened or closed because of it.
func (b *Breaker) Done(t Ticket, now time.Time, success bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if uint64(t) != b.round {
		return false
	}
	open := !b.until.IsZero()
	b.probing = false
	if success {
		if b.failures, b.wait, b.until = 0, b.Wait, (time.Time{}); open {
			b.round++
		}
		return open
	}
	if b.failures++; b.failures < b.Threshold && !open {
		return false
	}
	if open {
		b.wait = min(2*b.wait, b.Longest)
	} else {
		b.wait = b.Wait
	}
	b.until = now.Add(b.wait)
	b.round++
	return !open
}

// Cancel says that a request ended without telling anything of the server, so that another one may probe.
func (b *Breaker) Cancel(t Ticket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if uint64(t) == b.round {
		b.probing = false
	}
}

// State returns whether requests pass: Closed all, HalfOpen one that probes, Open none.
func (b *Breaker) State(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.until.IsZero():
		return Closed
	case now.Before(b.until):
		return Open
	}
	return HalfOpen
}
