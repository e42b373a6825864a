// Package answers keeps what a router may need again of an answer that it got some seconds ago.
//
//	answer --Add--> random id, oldest first in a queue --Find--> the same answer
//	time, bound --> the oldest leave
//
// Invariant: the queue has the ids of exactly the answers in the map, and bytes is their sum.
//
// Cost: overhead bytes an answer, besides the bytes that Add names. An answer leaves after keptFor, or sooner if newer ones need its room,
// which all clients share; one answer has at most a keptShare-th part of it.
//
// Concurrency: all methods are safe for concurrent use. Add and a timer drop what has ended.
package answers

import (
	"math/rand/v2"
	"sync"
	"time"

	"example.com/conductor/conductor/steady"
)

const (
	// keptFor is how long an answer is kept at most: many times what a router needs to choose.
	keptFor = 10 * time.Second
	// overhead is what an answer takes besides the bytes that Add names, with its entry in the map.
	overhead = 500
	// keptShare is the part of the room that one answer may take, so that a giant prompt does not push out all others.
	keptShare = 16
	// tidyEvery is how often what has ended leaves without a call.
	tidyEvery = time.Second
)

// Store keeps answers of a kind. Make one with New.
type Store[T any] struct {
	now func() time.Time

	mu    sync.Mutex
	most  int64 // bytes; 0 keeps nothing
	bytes int64
	// byID has random ids, never 0. So nobody can guess the id of another client's answer, and an id from before a restart finds
	// nothing.
	byID    map[uint64]entry[T]
	queue   []uint64 // ids, the oldest first
	tidying bool     // a timer is set
}

type entry[T any] struct {
	answer T
	until  int64 // see steady.Nanos
	bytes  int64
}

// New returns a Store that keeps nothing until it has a limit. now is its clock.
func New[T any](now func() time.Time) *Store[T] { return &Store[T]{now: now} }

// SetLimit changes how many bytes the answers take at most, 0 for none. The oldest beyond it leave at once.
func (s *Store[T]) SetLimit(most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
	s.forget(0)
}

// Add keeps an answer that takes some bytes, and returns its id. It returns 0 if there is no room for it.
func (s *Store[T]) Add(answer T, bytes int) uint64 {
	now := steady.Nanos(s.now())
	e := entry[T]{answer, now + int64(keptFor), int64(bytes + overhead)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.bytes > s.most/keptShare {
		return 0
	}
	if s.byID == nil {
		s.byID = make(map[uint64]entry[T])
	}
	id := max(rand.Uint64(), 1)
	for _, taken := s.byID[id]; taken; _, taken = s.byID[id] {
		id = max(rand.Uint64(), 1)
	}
	s.byID[id] = e
	s.queue = append(s.queue, id)
	s.bytes += e.bytes
	s.forget(now)
	s.tidyLater()
	return id
}

// Find returns the answer of an id, which stays.
func (s *Store[T]) Find(id uint64) (answer T, ok bool) {
	now := steady.Nanos(s.now())
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.byID[id]; ok && e.until > now {
		return e.answer, true
	}
	return answer, false
}

// Bytes returns what the answers take.
func (s *Store[T]) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// forget drops the oldest answers: those whose time is over at now, and those beyond the limit. mu is held.
func (s *Store[T]) forget(now int64) {
	n := 0
	for ; n < len(s.queue); n++ {
		e := s.byID[s.queue[n]]
		if e.until > now && s.bytes <= s.most {
			break
		}
		s.bytes -= e.bytes
		delete(s.byID, s.queue[n])
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.byID, s.queue = nil, nil // a map keeps the room that it had
	}
}

// tidyLater sets the timer, unless it is set or there is nothing to forget. mu is held.
func (s *Store[T]) tidyLater() {
	if s.tidying || len(s.queue) == 0 {
		return
	}
	s.tidying = true
	time.AfterFunc(tidyEvery, func() {
		now := steady.Nanos(s.now())
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(now)
		s.tidying = false
		s.tidyLater()
	})
}
