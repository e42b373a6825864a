// Package fair shares places between flows: those who ask for more than others wait for it.
package fair

import (
	"context"
	"sync"
)

// A Flow is whose share of the places a user takes.
type Flow struct {
	Name string
	// Weight is how many shares the flow has; below 1 it has one.
	Weight int
}

// A Queue has a number of places. A user that gets none waits:
//
//	Enter --a place is free--> inside --Leave--> the place goes on, by shares
//	  |                          ^
//	  +--> waiting --a place-----+
//
// A free place goes to the flow that has the fewest places for its weight. Of equal ones it goes
// to the flow that has had the fewest of late (turn), and there to the user that waits longest.
// So a flow has all places while it is alone, and its share once others ask: of many places to the
// next whole one, of one place by turns.
//
// Safe for concurrent use. A free place costs no memory.
type Queue struct {
	mu      sync.Mutex
	places  int              // guarded by mu
	each    int              // bound of one flow, 0 for none; guarded by mu
	inside  int              // guarded by mu
	waiting int              // guarded by mu
	turn    uint64           // that of the last user that entered; guarded by mu
	flows   map[string]*flow // with a user inside or waiting; guarded by mu
	spare   []*flow          // to be used again; guarded by mu
}

// flow has the users of one flow.
type flow struct {
	inside, weight int
	turn           uint64    // of its next user: start-time fair queueing
	queue          []*waiter // oldest first
}

// perPlace is how far a place moves the turn of a flow of weight 1.
const perPlace = 1 << 20

// waiter is a user that waits.
type waiter struct {
	entered chan struct{} // closed when it has a place
}

// NewQueue returns a Queue. If each is above 0, no flow has more places than that.
func NewQueue(places, each int) *Queue {
	return &Queue{places: places, each: each, flows: make(map[string]*flow)}
}

// SetPlaces replaces the number of places. Users that are inside stay.
func (q *Queue) SetPlaces(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.places = n
	q.admit()
}

// TryEnter takes a place for a flow if one is free. Leave gives it back.
func (q *Queue) TryEnter(of Flow) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flowOf(of)
	if q.inside < q.places && q.mayEnter(f) {
		q.enter(f)
		return true
	}
	q.forget(of.Name, f)
	return false
}

// Enter takes a place for a flow, and waits for one until ctx ends. It reports whether it has one.
func (q *Queue) Enter(ctx context.Context, of Flow) bool {
	if ctx.Err() != nil {
		return false
	}
	if q.TryEnter(of) {
		return true
	}
	w := q.join(of)
	select {
	case <-w.entered:
		return true
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flows[of.Name]
	for i, other := range f.queue {
		if other == w {
			f.queue = append(f.queue[:i], f.queue[i+1:]...)
			q.waiting--
			q.forget(of.Name, f)
			return false
		}
	}
	return true // at the last moment
}

// join puts a user into the queue.
func (q *Queue) join(of Flow) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{entered: make(chan struct{})}
	f := q.flowOf(of)
	f.queue = append(f.queue, w)
	q.waiting++
	q.admit() // a place may have come free meanwhile
	return w
}

// Leave gives the place of a flow to the next user, or back.
func (q *Queue) Leave(of Flow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flows[of.Name]
	f.inside--
	q.inside--
	q.admit()
	q.forget(of.Name, f)
}

// admit gives free places to users that wait. q.mu is held.
func (q *Queue) admit() {
	for q.inside < q.places && q.waiting > 0 {
		f := q.next()
		if f == nil {
			return
		}
		w := f.queue[0]
		f.queue[0] = nil
		f.queue = f.queue[1:]
		q.waiting--
		q.enter(f)
		close(w.entered)
	}
}

// enter gives a flow a place. q.mu is held.
func (q *Queue) enter(f *flow) {
	q.inside++
	f.inside++
	q.turn = max(q.turn, f.turn)
	f.turn = q.turn + perPlace/uint64(f.weight)
}

// next returns the flow that the next place belongs to, nil if none may have it. q.mu is held.
func (q *Queue) next() (best *flow) {
	for _, f := range q.flows {
		if len(f.queue) > 0 && q.mayEnter(f) && (best == nil || f.before(best)) {
			best = f
		}
	}
	return best
}

// before reports whether a place belongs to f rather than to g.
func (f *flow) before(g *flow) bool {
	if a, b := f.inside*g.weight, g.inside*f.weight; a != b {
		return a < b
	}
	return f.turn < g.turn
}

// mayEnter reports whether a flow may have one more place. q.mu is held.
func (q *Queue) mayEnter(f *flow) bool { return q.each == 0 || f.inside < q.each }

// flowOf returns a flow. q.mu is held.
func (q *Queue) flowOf(of Flow) *flow {
	f := q.flows[of.Name]
	if f == nil {
		if last := len(q.spare) - 1; last >= 0 {
			f, q.spare = q.spare[last], q.spare[:last]
		} else {
			f = new(flow)
		}
		f.turn = q.turn
		q.flows[of.Name] = f
	}
	f.weight = max(of.Weight, 1)
	return f
}

// maxSpare bounds the flows that are kept to be used again.
const maxSpare = 64

// forget drops a flow without users. q.mu is held.
func (q *Queue) forget(name string, f *flow) {
	if f.inside > 0 || len(f.queue) > 0 {
		return
	}
	delete(q.flows, name)
	if len(q.spare) < maxSpare {
		f.queue = nil
		q.spare = append(q.spare, f)
	}
}

// Inside returns how many users have a place, and how many wait for one.
func (q *Queue) Inside() (inside, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inside, q.waiting
}
