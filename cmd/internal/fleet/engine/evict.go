package engine

import (
	"slices"

	"kvconductor/cmd/internal/fleet/digest"
	"kvconductor/cmd/internal/fleet/truth"
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
		e.toHost(leaving)
		e.evict(victims)
		return
	}
	for _, b := range leaving {
		e.Tree.Pin(b.id) // no tier holds it between the removal and the host copy
	}
	e.evict(victims)
	e.toHost(leaving)
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

// toHost copies blocks, parents before children, to host memory. The least
// recently used blocks there make room and go to disk.
func (e *Engine) toHost(blocks []*block) {
	e.lower(&e.host, 1, truth.Host, blocks, func(old []*block) {
		e.lower(&e.disk, 2, truth.Disk, old, func([]*block) {})
	})
}

// lower copies blocks, parents before children, to a lower tier. Blocks that the tier
// holds become its newest and stay. The others are copied from the front, as far as
// they fit. rescue gets the blocks that make room while the tier still holds them.
func (e *Engine) lower(l *lower, n int, tier truth.Tier, blocks []*block, rescue func(old []*block)) {
	fresh := make([]*block, 0, len(blocks))
	for _, b := range blocks {
		if !l.touch(b.id) {
			fresh = append(fresh, b)
		}
	}
	fresh = fresh[:min(len(fresh), max(0, l.capacity-(len(blocks)-len(fresh))))]
	old := l.oldest(len(l.by) + len(fresh) - l.capacity)
	rescue(old)
	for _, b := range old {
		e.dropLower(l, n, tier, b)
	}
	for _, b := range fresh {
		e.addLower(l, n, tier, b)
	}
}

func (e *Engine) addLower(l *lower, n int, tier truth.Tier, b *block) {
	c := &block{id: b.id, hash: b.hash, parent: b.parent, first: b.first}
	l.add(c)
	e.Tree.Set(c.id, e.Index, tier)
	e.stats.Stored[n]++
	e.out.stored(tier, c, e.Placeholder)
}

func (e *Engine) dropLower(l *lower, n int, tier truth.Tier, b *block) {
	l.drop(b)
	e.stats.Removed[n]++
	e.out.removed(tier, b)
	e.Tree.Unset(b.id, e.Index, tier)
}
