package stream

import "example.com/conductor/events"

// Publisher ids. Some publishers name their lifetime in every batch. Where a batch and
// the stream have an id, the ids alone decide: another id is a restart whatever the
// sequence says, and with the same id a batch at or below the watermark is a
// duplicate. Where either has none, the bytes decide, batch by batch.
//
// A publisher of vLLM's earlier form also takes another id when its snapshots become
// available again. That counts as a restart: a replay restores the dropped blocks.

// consumed is what of the publisher's sequence was consumed in this epoch: handed out, or
// skipped because it cannot be decoded.
type consumed struct {
	has      bool               // something was
	last     print              // the batch consumed last, if has
	next     uint64             // the sequence to consume next
	first    uint64             // the number of the publisher's first batch: cfg.firstSeq, or 1 if a replay shows that it counts from 1
	id       events.PublisherID // of the latest batch consumed that has one; zero: none had
	prints   prints
	overtook uint64 // sequence+1 of the last batch consumed from a replay on this connection
}

// isForeign reports whether a batch is of another lifetime than those consumed, by its id.
func (c *consumed) isForeign(it *item) bool {
	return it.id != c.id && it.id != (events.PublisherID{}) && c.id != (events.PublisherID{})
}

// isProven reports whether a batch is of the lifetime of those consumed, by its id.
func (c *consumed) isProven(it *item) bool {
	return it.id == c.id && it.id != (events.PublisherID{})
}

// compare reports whether a batch is the one consumed at its sequence; known is false
// if neither ids nor fingerprints tell.
func (c *consumed) compare(it *item) (same, known bool) {
	switch {
	case c.isProven(it):
		return true, true
	case c.isForeign(it):
		return false, true
	}
	return c.prints.same(it.seq, it.payload)
}

// restart forgets everything, as a new epoch begins. first is the number of the publisher's
// first batch.
func (c *consumed) restart(first uint64) { *c = consumed{first: first, next: first} }

// resume makes what a peer applied count as consumed.
func (c *consumed) resume(at Mark) {
	c.has, c.last, c.next, c.id = true, print{at.Seq + 1, at.Print}, at.Seq+1, at.ID
	c.prints.clear()
	c.prints.add(c.last)
}
