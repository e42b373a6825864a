package conductor

import (
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
)

// Watcher sees applied batches and answered queries. It is called by sources and by queries, many
// at once, and must not make them wait. It must not keep what it is given.
type Watcher interface {
	Batch(*AppliedBatch)
	Query(*AnsweredQuery)
}

// AppliedBatch is a batch that a source has applied.
type AppliedBatch struct {
	Source   registration.Key
	Seq      uint64
	Replayed bool
	At       time.Time
	Events   []events.Event
}

// AnsweredQuery is a query with its answer.
type AnsweredQuery struct {
	Query   Query // with the salt
	Answer  *Answer
	Matched int // blocks of the best instance, in rows that are left out too
	At      time.Time
	Took    time.Duration
}

// Watch lets a Watcher see what goes on, in place of the one before. nil is none, which costs a
// batch and a query one atomic load.
func (c *Conductor) Watch(w Watcher) {
	if w == nil {
		c.watcher.Store(nil)
		return
	}
	c.watcher.Store(&w)
}
