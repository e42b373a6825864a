package index

import "sync/atomic"

// identify gives an owner a fresh internal id. The caller holds the gate.
func (x *Index) identify(o *owner) {
	d := x.gen.Load().ids
	if d.n == len(d.ext) {
		x.rebuild(0, 0)
		if int(o.name) < len(x.owners) { // it got a fresh one there
			return
		}
		d = x.gen.Load().ids
	}
	o.id = uint32(d.n)
	d.ext[o.id] = uint32(o.name)
	d.n++
	if o.id > 0 && d.ext[o.id-1] > d.ext[o.id] {
		d.unsorted.Store(true)
	}
}

// retire takes an owner's internal id out of all answers, at once, and all blocks from
// it.
func (x *Index) retire(o *owner) {
	g := x.gen.Load()
	atomic.OrUint64(&g.ids.retired[o.id>>6], 1<<(o.id&63))
	if g.ids.isOpen(o.id) {
		g.ids.setClosed(o.id)
	}
	g.ids.gone++
	x.dead.Add(int64(o.blocks))
	o.held(-o.blocks)
}

// Clear takes all blocks from an owner, which stays, and returns how many it held.
// Its cost does not depend on them: they leave the memory later, when there are
// enough of them or with the next call of Compact.
func (x *Index) Clear(name Owner) int {
	x.gate.Lock()
	defer x.gate.Unlock()
	o := x.owners[name]
	if o == nil || o.blocks == 0 {
		return 0
	}
	s, n := o.s, o.blocks
	x.retire(o)
	s.held -= n
	o.raw, o.copies = 0, flat[uint32]{}
	x.identify(o)
	if s.held == 0 {
		s.emptied()
	} else if s.room.used > 0 {
		h := x.hand(s)
		h.sweep()
	}
	return n
}

// DropSource takes everything of a source: memberships, its own aliases and waiting
// blocks. Its id and its owners' are retired and never come back. Its cost does not
// depend on the blocks.
func (x *Index) DropSource(src Source) {
	x.gate.Lock()
	defer x.gate.Unlock()
	s := x.sources[src]
	if s == nil {
		return
	}
	for _, o := range s.owners {
		x.retire(o)
		x.owners[o.name] = nil
		x.dropped++
	}
	x.sources[src] = nil
}

// emptied forgets what matters only while the source holds something.
func (s *source) emptied() {
	s.raw = false
	s.room = room{}
}

// Compact gives back what dead keys, sets, aliases and retired owners take. Stores
// and removals wait for it, queries do not. It is called on its own when a
// good part of the memory is dead.
func (x *Index) Compact() {
	x.gate.Lock()
	defer x.gate.Unlock()
	x.rebuild(0, 0)
	x.dead.Store(0)
}

// tend compacts where it is worth it. The caller holds nothing.
func (x *Index) tend() {
	if !x.manual && x.wasteful() && x.gate.TryLock() {
		if x.wasteful() {
			x.rebuild(0, 0)
			x.dead.Store(0)
		}
		x.gate.Unlock()
	}
}

// wasteful reports whether a rebuild would give back a good part. Small indexes
// are let alone until nothing is left of them.
func (x *Index) wasteful() bool {
	g := x.gen.Load()
	live, slots := int(g.live.Load()), len(g.table.buckets)*bucketSlots
	n := int(atomic.LoadUint32(&g.sets.n))
	switch {
	case slots > 4096 && live < slots/5 && slots > 2*x.floor:
		return true // half of what a new one would be filled to
	case int(x.dead.Load()) > 1<<16+live/4:
		return true
	case n > 1<<14+4*g.bornSets && g.sets.size() > g.table.bytes()/4, n > maxSets/2:
		return true
	}
	return false
}
