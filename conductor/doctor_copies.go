package conductor

import (
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/tiers"
)

// An engine with kv_cache_report_mode: full announces the blocks that it reuses, which
// no removal matches. Without session_id such a store looks like a further copy, so
// with copies: count the block stays for ever once the engine has evicted it. The doctor
// compares what is counted with what an engine can hold:
//
//	held   blocks and copies announced less those removed
//	       grows until the engine is full, then stays: each store follows a removal
//	base   the most that was held when half of all new blocks had been removed
//	       from then on the engine is full
//	again  copies announced since then by stores that begin at the first block of a
//	       prompt and repeat several: what a full report looks like
//
// The finding comes when held has outgrown base by half of it, and again explains half of
// that growth. Ordinary duplicates, of requests that compute the same block at the same
// time, take room in the engine like any other block, so held stays near base.

const (
	// copiesLeast is how many blocks must be removed, and how many too many be held,
	// before the counts tell anything.
	copiesLeast = 128
	// copiesRun is how many blocks a full report repeats at least. An engine computes
	// the last block of a prompt again that it has whole.
	copiesRun = 2
)

// copyCheck compares the copies of a source's device blocks with the removals. run owns
// it. Counts are published blocks.
type copyCheck struct {
	added   int // blocks the holder did not have
	removed int // blocks and copies
	held    int
	most    int // the largest held so far, while base is 0
	base    int // 0 until the engine is known to be full
	again   int // while base is not 0
}

// countsCopies reports whether repeated stores of a holder's blocks are copies whose
// balance says something. Blocks with a time to live go without removals.
func (s *source) countsCopies(key ownerKey, medium tiers.Medium) bool {
	return medium.Tier == tiers.Device && s.reg.ttl(medium.Name) == 0 && !s.reg.pool() && s.copies(key) == index.CopyCount
}

// lookAtCopies counts the blocks of a stored event, each published as some parts.
func (s *source) lookAtCopies(e *events.Event, key ownerKey, medium tiers.Medium, res *index.StoreResult, parts int) {
	c := &s.doctor.copies
	if e.Session || e.Envelope || !s.countsCopies(key, medium) {
		return
	}
	added, again := res.Added/parts, res.Copies/parts
	c.added += added
	c.held += added + again
	if c.base == 0 {
		c.most = max(c.most, c.held)
		return
	}
	if !e.HasParent && again >= copiesRun {
		c.again += again
	}
	if extra := c.held - c.base; extra >= max(copiesLeast, c.base/2) && c.again >= extra/2 {
		s.find(FindingCopies, "%d blocks are counted on the device of an engine that was full with %d: it announces blocks again that it reuses (kv_cache_report_mode: full), which no removal matches, so evicted blocks stay; register copies: set for it",
			c.held, c.base)
	}
}

// lookAtRemoval counts published blocks that a removed event took.
func (s *source) lookAtRemoval(e *events.Event, key ownerKey, medium tiers.Medium, found int) {
	c := &s.doctor.copies
	if e.Envelope || !s.countsCopies(key, medium) {
		return
	}
	if e.Remaining != nil { // the engine itself says how many are left
		*c = copyCheck{}
		return
	}
	c.removed += found
	c.held -= found
	if c.base == 0 && c.removed >= max(copiesLeast, c.added/2) {
		c.base = c.most
	}
}
