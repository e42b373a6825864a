package conductor

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrBusy is returned to a query for which there is no place in time.
var ErrBusy = errors.New("too many queries at once")

// An Admission bounds how many queries are worked on at once. The rest wait, first
// come, first served:
//
//	Enter --a place is free--> inside --Leave--> the place goes to who waits longest
//	  |                          ^
//	  +--> waiting --a place-----+
//	          |
//	          +--too long, or the client went away--> ErrBusy
//
// What a query waits for itself, a body that is still to come or an answer the client
// is slow to take, belongs outside.
//
// A nil Admission admits everybody. Cost of entering and leaving a free place: two
// locks held for a comparison.
type Admission struct {
	most   int
	wait   time.Duration
	tooFew error // ErrBusy, with what there was too few of

	mu      sync.Mutex
	inside  int        // guarded by mu, at most most
	waiting *list.List // guarded by mu; tickets, the first came first; empty unless inside is most
	refused uint64     // guarded by mu
}

// ticket is what a query waits by: closed once a place is its own.
type ticket chan struct{}

// NewAdmission admits so many queries at once and lets others wait for so long, which
// may be 0.
func NewAdmission(most int, wait time.Duration) *Admission {
	return &Admission{
		most: most, wait: wait, waiting: list.New(),
		tooFew: fmt.Errorf("%w: limits.max_queries lets %d in, and none of them ended within %s", ErrBusy, most, wait),
	}
}

// Enter takes a place, which Leave gives back, or returns an ErrBusy.
func (a *Admission) Enter(ctx context.Context) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	if a.inside < a.most {
		a.inside++
		a.mu.Unlock()
		return nil
	}
	if a.wait <= 0 {
		a.refused++
		a.mu.Unlock()
		return a.tooFew
	}
	mine := make(ticket)
	waits := a.waiting.PushBack(mine)
	a.mu.Unlock()

	late := time.NewTimer(a.wait)
	defer late.Stop()
	select {
	case <-mine:
		return nil
	case <-late.C:
		if a.giveUp(waits, true) {
			return a.tooFew
		}
		return nil // it came at the same moment
	case <-ctx.Done():
		if !a.giveUp(waits, false) {
			a.Leave()
		}
		return fmt.Errorf("%w: the client did not wait: %w", ErrBusy, ctx.Err())
	}
}

// giveUp ends the waiting of who is not admitted yet, and reports whether it did.
func (a *Admission) giveUp(waits *list.Element, refused bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-waits.Value.(ticket):
		return false
	default:
	}
	a.waiting.Remove(waits)
	if refused {
		a.refused++
	}
	return true
}

// Leave gives a place to who waits longest, or back.
func (a *Admission) Leave() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if first := a.waiting.Front(); first != nil {
		a.waiting.Remove(first)
		close(first.Value.(ticket))
		return
	}
	if a.inside == 0 {
		panic("BUG: a query left that had not entered")
	}
	a.inside--
}

// AdmissionStats is how an Admission is doing.
type AdmissionStats struct {
	Inside, Waiting int
	Refused         uint64 // since the start, for want of a place in time
}

// Stats returns how it is doing. A nil Admission does not know.
func (a *Admission) Stats() AdmissionStats {
	if a == nil {
		return AdmissionStats{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return AdmissionStats{Inside: a.inside, Waiting: a.waiting.Len(), Refused: a.refused}
}

// Enter takes one of the places there are for queries (Options.Admission): who serves a
// query calls it when its body is there, and Leave when its answer is made. It returns
// an ErrBusy if none comes free in time.
func (c *Conductor) Enter(ctx context.Context) error { return c.opts.Admission.Enter(ctx) }

// Leave gives back the place that Enter took.
func (c *Conductor) Leave() { c.opts.Admission.Leave() }
