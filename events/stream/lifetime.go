package stream

import "example.com/conductor/events"

// Publisher ids. Some publishers name their lifetime in every batch. Where a batch and
// the stream have an id, the ids alone decide: another id is a restart whatever the
// sequence says, and with the same id a batch at or below the watermark is a
// duplicate. Where either has none, the bytes decide, batch by batch.
//
// A publisher of vLLM's earlier form also takes another id when its snapshots become
// available again. That counts as a restart: a replay restores the dropped blocks.

// foreign reports whether a batch is of another lifetime than those consumed, by its id.
func (m *machine) foreign(it *item) bool {
	return it.id != m.id && it.id != (events.PublisherID{}) && m.id != (events.PublisherID{})
}

// proven reports whether a batch is of the lifetime of those consumed, by its id.
func (m *machine) proven(it *item) bool {
	return it.id == m.id && it.id != (events.PublisherID{})
}

// consumed reports whether a batch is the one consumed at its sequence; known is false
// if neither ids nor fingerprints tell.
func (m *machine) consumed(it *item) (same, known bool) {
	switch {
	case m.proven(it):
		return true, true
	case m.foreign(it):
		return false, true
	}
	return m.prints.same(it.seq, it.payload)
}

// vouch ends a verification if the id of a batch proves what a replay is to verify.
// Behind a joint some batches had no id, so only their bytes can.
func (m *machine) vouch(it *item) {
	if m.ask.kind == askVerify && m.joint.before == (print{}) && m.proven(it) {
		m.ask.anchored = true
	}
}
