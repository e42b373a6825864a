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
	started  bool               // something was
	last     fingerprint        // the batch consumed last, if has
	next     uint64             // the sequence to consume next
	first    uint64             // the number of the publisher's first batch: cfg.firstSeq, or 1 if a replay shows that it counts from 1
	id       events.PublisherID // of the latest batch consumed that has one; zero: none had
	prints   fingerprints
	overtook uint64 // sequence+1 of the last batch consumed from a replay on this connection
	run      uint64 // the first batch of the run without a hole that ends with it
}

// isForeign reports whether a batch is of another lifetime than those consumed, by its id. It
// is false where either has no id, which proves nothing.
func (c *consumed) isForeign(it *queuedBatch) bool {
	return it.id != c.id && it.id != (events.PublisherID{}) && c.id != (events.PublisherID{})
}

// isProven reports whether a batch is of the lifetime of those consumed, by its id.
func (c *consumed) isProven(it *queuedBatch) bool {
	return it.id == c.id && it.id != (events.PublisherID{})
}

// compareBatch reports whether a batch is the one consumed at its sequence; known is false if
// neither ids nor fingerprints tell. Ids decide where both have one, as two processes can
// publish the same bytes, but not with the same id.
func (c *consumed) compareBatch(it *queuedBatch) (same, known bool) {
	switch {
	case c.isProven(it):
		return true, true
	case c.isForeign(it):
		return false, true
	}
	return c.prints.compareBytes(it.seq, it.payload)
}

// noteReplayed notes a batch consumed from a replay.
func (c *consumed) noteReplayed(seq uint64) {
	if c.overtook != seq {
		c.run = seq
	}
	c.overtook = seq + 1
}

// wasOvertaken reports whether a replay has brought a batch of this number before the live connection. In a hole of the replay it has
// not.
func (c *consumed) wasOvertaken(seq uint64) bool { return c.run <= seq && seq < c.overtook }

// reset forgets everything, as a new epoch begins. first is the number of the publisher's
// first batch.
func (c *consumed) reset(first uint64) { *c = consumed{first: first, next: first} }

// resumeBehindMark makes what a peer applied count as consumed.
func (c *consumed) resumeBehindMark(at Mark) {
	c.started, c.last, c.next, c.id = true, fingerprint{at.Seq + 1, at.Print}, at.Seq+1, at.ID
	c.prints.forgetAll()
	c.prints.addFingerprint(c.last, maxPrints)
}
