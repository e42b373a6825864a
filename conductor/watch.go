package conductor

import (
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
)

// Watcher sees applied batches and answered queries. It is called by sources and by queries, many
// at once, and must not make them wait. It must not keep what it is given.
type Watcher interface {
	ingest.BatchWatcher
	match.QueryWatcher
}

// Watch lets a Watcher see what goes on, in place of the one before. nil is none, which costs a
// batch and a query one atomic load.
func (c *Conductor) Watch(w Watcher) {
	if w == nil {
		c.matcher.Watch(nil)
		c.sources.Watch(nil)
		return
	}
	c.matcher.Watch(w)
	c.sources.Watch(w)
}
