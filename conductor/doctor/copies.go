package doctor

import (
	"example.com/conductor/tiers"
)

// An engine with kv_cache_report_mode: full announces the blocks that it reuses, which no removal
// matches. On the wire such a store is the same as that of a further copy, which vLLM makes where
// requests compute the same block at the same time, and whose removal it announces. So a block that is
// counted would stay for ever once the engine has evicted it, and one that is not would leave with
// the first of its copies. The doctor compares the counts with the blocks that an engine can hold:
//
//	held   blocks and copies announced less those removed
//	       grows until the engine is full, then stays: each store follows a removal
//	base   the most that was held when a quarter of all new blocks had been removed
//	       from then on the engine is full
//	again  copies announced since then by stores that begin at the first block of a
//	       prompt and repeat several: what a full report looks like
//	missed blocks removed since then that were not counted: the engine had them before
//	       the balance began, and their room went to others
//
// Full reports are shown when held has outgrown base and missed by a quarter of base, and again explains half of
// that growth. Copies, however many and however long an engine has them, take room in it like any other
// block, so held stays near base and missed. A balance begins again where events may be missing.

const (
	// copiesLeast is how many blocks must be removed, and how many too many be held,
	// before the counts tell anything.
	copiesLeast = 128
	// copiesRun is how many blocks a full report repeats at least. An engine computes
	// the last block of a prompt again that it has whole.
	copiesRun = 2
)

// copyCheck compares the copies of a source's device blocks with the removals. Counts are published blocks.
type copyCheck struct {
	begun   bool // held has what the source held before
	empty   bool // it held nothing
	apart   int  // blocks stored again since then; see observeNamespaces
	added   int  // blocks the holder did not have
	removed int  // blocks and copies
	held    int
	most    int // the largest held so far, while base is 0
	base    int // 0 until the engine is known to be full
	again   int // while base is not 0
	missed  int // while base is not 0
}

// Full reports whether the balance has shown that the engine announces blocks again that it reuses, and
// the registration leaves open what such a store is.
func (d *Doctor) Full() bool { return d.full }

// RecallFull records that Full was true in an earlier life of the source, unless the registration says what its stores mean.
// It reports whether it has recorded that.
func (d *Doctor) RecallFull() bool {
	if d.reg.Pool || d.reg.Reports != "" {
		return false
	}
	d.full = true
	d.Findings.Report(FindingCopies,
		"the engine has announced more blocks than it has room for, before this server or a replica was restarted: its requests use "+
			"kv_cache_report_mode: full. So a store of a block that it has on the device counts as a touch; register reports: full, or "+
			"reports: incremental if it is wrong")
	return true
}

// CountCopies begins the balance of copies, unless it has begun, with the blocks and copies that the source has on its device.
func (d *Doctor) CountCopies(onDevice func() int) {
	if d.copies.begun {
		return
	}
	held := onDevice()
	d.copies = copyCheck{begun: true, empty: held == 0, added: held, held: held, most: held}
}

// ForgetCopies ends the balance: blocks of the device were cleared, or events are missing.
func (d *Doctor) ForgetCopies() { d.copies = copyCheck{} }

// countsCopies reports whether repeated stores of a holder's blocks are copies whose
// balance says something. Blocks with a time to live go without removals. SGLang has no such reports, and holds
// far more whenever fewer requests run, because what they compute enters its tree late.
func (d *Doctor) countsCopies(o *Observation) bool {
	return o.Counted && !o.Event.Envelope && o.Medium.Tier == tiers.Device && !d.reg.Pool && !d.reg.SGLang && !d.reg.Expiring(o.Medium.Name)
}

// observeCopies counts the blocks of a stored event.
func (d *Doctor) observeCopies(o *Observation) {
	c := &d.copies
	if !d.countsCopies(o) {
		return
	}
	all, again := (o.Added+o.Copies)/o.Parts, o.Copies/o.Parts
	c.added += all - again
	c.held += all
	if c.base == 0 {
		c.most = max(c.most, c.held)
		return
	}
	if !o.Event.HasParent && o.Event.Joined == 0 && again >= copiesRun {
		c.again += again
	}
	room := c.base + c.missed
	if extra := c.held - room; extra < max(copiesLeast, c.base/4) || c.again < extra/2 {
		return
	}
	if d.reg.Reports != "" {
		d.Findings.Report(FindingCopies,
			"%d blocks are counted on the device of an engine that was full with %d: it announces blocks again that it reuses "+
				"(kv_cache_report_mode: full), which no removal matches, so evicted blocks stay; register reports: full for it",
			c.held, room)
		return
	}
	d.full = true
	d.Findings.Report(FindingCopies,
		"%d blocks are counted on the device of an engine that was full with %d: its requests use kv_cache_report_mode: full. So from "+
			"here on a store of a block that it has on the device counts as a touch; register reports: full, or reports: incremental if "+
			"it is wrong",
		c.held, room)
}

// observeCopyRemoval counts published blocks that a removed event took.
func (d *Doctor) observeCopyRemoval(o *Observation) {
	c := &d.copies
	if !d.countsCopies(o) {
		return
	}
	if o.Event.Remaining != nil { // the engine states how many copies are left
		d.ForgetCopies()
		return
	}
	c.removed += o.Found
	c.held -= o.Found
	switch {
	case c.base != 0:
		c.missed += o.Count - o.Found
	case c.removed >= max(copiesLeast, c.added/4):
		c.base = c.most
	}
}
