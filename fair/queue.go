// Package fair shares places between flows: those who ask for more than others wait for it.
package fair

import (
	"container/list"
	"context"
	"sync"
)

// A Queue has a number of places. A user that gets none waits:
//
//	Enter --a place is free--> inside --Leave--> the place goes on, by shares
//	  |                          ^
//	  +--> waiting --a place-----+
//
// Each user names its flow. A free place goes to the waiting flow with the fewest places, of equal
// ones to the user that waits longest. So a flow has all places while it is alone, and its
// share once others ask.
//
// Safe for concurrent use. A free place costs no memory.
type Queue struct {
	mu     sync.Mutex
	places int              // guarded by mu
	each   int              // bound of one flow, 0 for none; guarded by mu
	inside int              // guarded by mu
	flows  map[string]*flow // with a user inside or waiting; guarded by mu
	spare  []*flow          // to be used again; guarded by mu
	queue  list.List        // of *waiter, oldest first; guarded by mu
}

// flow counts the users of one flow.
type flow struct{ inside, waiting int }

// waiter is a user that waits.
type waiter struct {
	name    string
	flow    *flow
	entered chan struct{} // closed when it has a place
	at      *list.Element
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
func (q *Queue) TryEnter(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flowOf(name)
	if q.inside < q.places && q.mayEnter(f) {
		q.inside++
		f.inside++
		return true
	}
	q.forget(name, f)
	return false
}

// Enter takes a place for a flow, and waits for one until ctx ends. It reports whether it has one.
func (q *Queue) Enter(ctx context.Context, name string) bool {
	if ctx.Err() != nil {
		return false
	}
	if q.TryEnter(name) {
		return true
	}
	w := q.join(name)
	select {
	case <-w.entered:
		return true
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.entered:
		return true // at the last moment
	default:
	}
	q.queue.Remove(w.at)
	w.flow.waiting--
	q.forget(w.name, w.flow)
	return false
}

// join puts a user into the queue.
func (q *Queue) join(name string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{name: name, flow: q.flowOf(name), entered: make(chan struct{})}
	w.at = q.queue.PushBack(w)
	w.flow.waiting++
	q.admit() // a place may have come free meanwhile
	return w
}

// Leave gives the place of a flow to the next user, or back.
func (q *Queue) Leave(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flows[name]
	f.inside--
	q.inside--
	q.admit()
	q.forget(name, f)
}

// admit gives free places to users that wait. q.mu is held.
func (q *Queue) admit() {
	for q.inside < q.places {
		w := q.next()
		if w == nil {
			return
		}
		q.queue.Remove(w.at)
		w.flow.waiting--
		w.flow.inside++
		q.inside++
		close(w.entered)
	}
}

// next returns the user that the next place belongs to, nil if none may have it. q.mu is held.
func (q *Queue) next() (best *waiter) {
	for at := q.queue.Front(); at != nil; at = at.Next() {
		w := at.Value.(*waiter)
		if q.mayEnter(w.flow) && (best == nil || w.flow.inside < best.flow.inside) {
			best = w
		}
		if best != nil && best.flow.inside == 0 {
			break
		}
	}
	return best
}

// mayEnter reports whether a flow may have one more place. q.mu is held.
func (q *Queue) mayEnter(f *flow) bool { return q.each == 0 || f.inside < q.each }

// flowOf returns the flow of a name. q.mu is held.
func (q *Queue) flowOf(name string) *flow {
	f := q.flows[name]
	if f == nil {
		if last := len(q.spare) - 1; last >= 0 {
			f, q.spare = q.spare[last], q.spare[:last]
		} else {
			f = new(flow)
		}
		q.flows[name] = f
	}
	return f
}

// maxSpare bounds the flows that are kept to be used again.
const maxSpare = 64

// forget drops a flow without users. q.mu is held.
func (q *Queue) forget(name string, f *flow) {
	if *f != (flow{}) {
		return
	}
	delete(q.flows, name)
	if len(q.spare) < maxSpare {
		q.spare = append(q.spare, f)
	}
}

// Inside returns how many users have a place, and how many wait for one.
func (q *Queue) Inside() (inside, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inside, q.queue.Len()
}
