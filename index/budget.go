package index

import "sync/atomic"

// Options.MaxBytes bounds what the tables of blocks and aliases and the owner sets
// take between two rebuilds; a rebuild takes up to as much again while it lasts.
//
// A store for which there is no room first compacts, where something is dead, and
// then refuses keys that have no slot yet: of a chain it is the tail that is
// missing, and what was held before stays. A block whose alias finds no room is
// refused too, for no removal could name it. Refused keys are counted, and
// remembered inexactly, so that an answer that ends before one says so.

// reserve sets slots and aliases aside for a call.
func (h *hand) reserve(keys, names int64) bool {
	if !h.t.reserve(keys) {
		return false
	}
	if names > 0 && !h.a.reserve(names) {
		h.t.used.Add(-keys)
		return false
	}
	return true
}

// release gives back what a call did not need.
func (h *hand) release(keys, names int64) {
	if h.full {
		return
	}
	h.t.used.Add(h.keys - keys)
	h.a.used.Add(h.names - names)
}

// enlarge makes room for a stored event, and reports whether there is some.
func (x *Index) enlarge(e *Store) bool {
	x.gate.Lock()
	defer x.gate.Unlock()
	o := x.owners[e.Owner]
	if o == nil {
		return true
	}
	keys, names := e.need(o.s)
	fits := func() bool {
		t, a := x.gen.Load().table, x.aliases.Load()
		return t.used.Load()+keys <= t.limit && (names == 0 || a.used.Load()+names <= a.limit)
	}
	if fits() {
		return true
	}
	g, a := x.gen.Load(), x.aliases.Load()
	other := g.sets.size() + g.ids.bytes()
	more := bucketsFor(int(keys), fullest)
	switch {
	case g.table.used.Load()+keys > g.table.limit:
		dead := g.table.used.Load() - g.live.Load() + x.dead.Load()
		if dead < g.table.limit/16 && x.fit(0, len(g.table.buckets)+more, other+a.bytes(), x.tableBucket()) < len(g.table.buckets)+min(more, len(g.table.buckets)/16+1) {
			return false
		}
		x.rebuild(int(keys), int(names))
		x.dead.Store(0)
	default:
		n := len(a.buckets)
		if x.fit(0, n+more, other+g.table.bytes(), x.aliasBucket()) < n+min(more, n/16+1) {
			return false
		}
		x.sweepAliases(int(names), a.used.Load() > 2*g.live.Load())
		if !fits() {
			x.sweepAliases(int(names), true)
		}
	}
	if !fits() {
		return false
	}
	x.refused.Store(nil)
	return true
}

// fit returns how many of the wanted buckets of a size the budget allows when other
// things take other bytes, but as many as live entries need.
func (x *Index) fit(live, want, other, size int) int {
	if x.maxBytes > 0 {
		want = min(want, (x.maxBytes-other)/size)
	}
	return max(want, bucketsFor(live, fullest), 2)
}

// bucketBytes is the size of a bucket of blocks and of one of aliases, without what
// is kept beside them.
const bucketBytes = 64

func (x *Index) tableBucket() int {
	if x.labels {
		return bucketBytes + 8*bucketSlots
	}
	return bucketBytes
}

func (x *Index) aliasBucket() int {
	if x.labels {
		return bucketBytes + 4*4
	}
	return bucketBytes
}

// claimFull returns the slot of a key when none is reserved, nil if there is none.
func (h *hand) claimFull(key uint64) *slot {
	if s := h.t.find(key); s != nil {
		return s
	}
	if !h.t.reserve(1) {
		return nil
	}
	s, fresh := h.t.claim(key)
	if !fresh {
		h.t.used.Add(-1)
	}
	return s
}

// canLearn makes sure that an engine hash has an entry when none is reserved.
func (h *hand) canLearn(engine uint64) bool {
	if !h.full || h.a.get(engine) != 0 {
		return true
	}
	if !h.a.reserve(1) {
		return false
	}
	if _, fresh := h.a.claim(engine); !fresh {
		h.a.used.Add(-1)
	}
	return true
}

// filter remembers refused keys: two bits a key.
type filter [1 << 12]uint64

func bitsOf(key uint64) [2]uint64 {
	const mask = 1<<18 - 1
	m := mix(key)
	return [2]uint64{m & mask, m >> 32 & mask}
}

func (x *Index) refuse(key uint64) {
	f := x.refused.Load()
	if f == nil {
		f = new(filter)
		if !x.refused.CompareAndSwap(nil, f) {
			f = x.refused.Load()
		}
	}
	if f == nil {
		return
	}
	for _, b := range bitsOf(key) {
		atomic.OrUint64(&f[b>>6], 1<<(b&63))
	}
}

// wasRefused reports whether a key was refused since there was room last, or looks
// like one that was.
func (x *Index) wasRefused(key uint64) bool {
	f := x.refused.Load()
	if f == nil {
		return false
	}
	for _, b := range bitsOf(normal(key)) {
		if atomic.LoadUint64(&f[b>>6])>>(b&63)&1 == 0 {
			return false
		}
	}
	return true
}
