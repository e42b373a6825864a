package engine

import (
	"slices"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// store puts a copy of a block on the device, pinned; ensure made the room.
func (e *Engine) store(id truth.ID, parent digest.Digest, first bool) *block {
	b := &block{id: id, hash: e.hash(parent, id, first), parent: parent, first: first}
	if e.device.used >= e.device.capacity {
		panic("BUG: store on a full device")
	}
	if e.device.add(b) {
		e.Tree.Set(id, e.Index, truth.Device)
	} else {
		e.stats.Copies++
	}
	e.stats.Stored[0]++
	e.out.stored(truth.Device, b, false)
	return b
}

// report announces the blocks that a request found, all of them on the device by now.
func (e *Engine) report(blocks []*block) {
	for _, b := range blocks {
		e.stats.Reported++
		e.out.reported(b)
	}
}

// ensure makes room for n more copies on the device.
func (e *Engine) ensure(n int) {
	n -= e.device.capacity - e.device.used
	if n <= 0 {
		return
	}
	victims := make([]*block, n) // parents before children
	for i := range n {
		oldest := e.device.free.Front()
		if oldest == nil {
			panic("BUG: the running requests pin more than the device")
		}
		victims[n-1-i] = e.device.free.Remove(oldest).(*block)
	}
	leaving := e.device.lastCopies(victims)
	if e.OffloadFirst {
		e.copyTo(e.lower[0], leaving)
		e.evict(victims)
		return
	}
	for _, b := range leaving {
		e.Tree.Pin(b.id) // no tier holds it between the removal and the host copy
	}
	e.evict(victims)
	e.copyTo(e.lower[0], leaving)
	for _, b := range leaving {
		e.Tree.Unpin(b.id)
	}
}

// evict takes copies off the device, children before parents.
func (e *Engine) evict(victims []*block) {
	for _, b := range slices.Backward(victims) {
		e.stats.Removed[0]++
		e.out.removed(truth.Device, b)
		if e.device.drop(b) {
			e.Tree.Unset(b.id, e.Index, truth.Device)
		}
	}
}

// copyTo copies blocks, parents before children, to a lower tier. Blocks that the tier
// holds become its newest and stay. The others are copied from the front, as far as they
// fit. The least recently used blocks go to the tier below while this one still holds them.
func (e *Engine) copyTo(l *lower, blocks []*block) {
	if l == nil {
		return
	}
	fresh := make([]*block, 0, len(blocks))
	for _, b := range blocks {
		if !l.touch(b.id) {
			fresh = append(fresh, b)
		}
	}
	fresh = fresh[:min(len(fresh), max(0, l.capacity-(len(blocks)-len(fresh))))]
	old := l.oldest(len(l.by) + len(fresh) - l.capacity)
	e.copyTo(l.below, old)
	for _, b := range old {
		l.drop(b)
		e.stats.Removed[l.count()]++
		e.out.removed(l.tier, b)
		e.Tree.Unset(b.id, e.Index, l.tier)
	}
	for _, b := range fresh {
		c := &block{id: b.id, hash: b.hash, parent: b.parent, first: b.first}
		l.add(c)
		e.Tree.Set(c.id, e.Index, l.tier)
		e.stats.Stored[l.count()]++
		e.out.stored(l.tier, c, e.Placeholder)
	}
}
