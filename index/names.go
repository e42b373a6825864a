package index

import "sync/atomic"

// Name is what an engine hash means.
type Name struct{ Engine, Key uint64 }

// Means returns the key that an engine hash stands for among the sources of the
// index, whether or not anybody holds it any more: until a rebuild comes by, a name
// outlives its block. Of sources that mean different things by it one is believed.
// It waits for nobody: a name that a rebuild is about to drop is in Forgotten before it
// is unknown here.
func (x *Index) Means(engine uint64) (key uint64, known bool) {
	key = x.aliases.Load().get(normal(engine))
	return plain(key), key != 0
}

// HeldOf appends to dst those of some keys that somebody holds, or held until lately.
func (x *Index) HeldOf(keys, dst []uint64) []uint64 {
	t := x.gen.Load().table
	for i, key := range keys {
		if i%ahead == 0 {
			t.advance(keys, i)
		}
		if t.lookup(normal(key)) != 0 {
			dst = append(dst, key)
		}
	}
	return dst
}

// Holds reports whether an owner holds a block under a key.
func (x *Index) Holds(name Owner, key uint64) bool {
	x.gate.RLock()
	defer x.gate.RUnlock()
	o := x.owners[name]
	if o == nil {
		return false
	}
	g := x.gen.Load()
	return g.sets.has(g.table.lookup(normal(key)), o.id)
}

// Has reports whether an owner holds the block an engine hash stands for.
func (x *Index) Has(name Owner, engine uint64) bool {
	x.gate.RLock()
	defer x.gate.RUnlock()
	o := x.owners[name]
	if o == nil {
		return false
	}
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	h := x.hand(o.s)
	engine = normal(engine)
	key, known := h.meaning(engine)
	return known && h.holds(o, key) || h.holds(o, engine)
}

// Teach says what an engine hash means to a source: blocks that its owners hold under
// the hash itself move to the key. It reports whether there were any. Where the key is
// held by nobody, the name is forgotten in time.
func (x *Index) Teach(src Source, engine, key uint64) (moved bool) {
	x.gate.RLock()
	s := x.sources[src]
	if s == nil {
		x.gate.RUnlock()
		return false
	}
	s.mu.Lock()
	var res StoreResult
	h := x.hand(s)
	h.res = &res
	full := !h.reserve(1, 1)
	if !full {
		engine, key := normal(engine), normal(key)
		h.learn(engine, key)
		moved = h.unraw(engine, key, place{}, true)
		h.release(1, 1)
		h.done()
	}
	s.mu.Unlock()
	x.gate.RUnlock()
	if full && x.widen() {
		return x.Teach(src, engine, key)
	}
	return moved
}

// widen makes room for a key and an alias, and reports whether there is some.
func (x *Index) widen() bool {
	x.gate.Lock()
	defer x.gate.Unlock()
	if t := x.gen.Load().table; t.used.Load() >= t.limit {
		x.rebuild(1, 1)
		x.dead.Store(0)
	}
	x.sweepAliases(1, true)
	t, a := x.gen.Load().table, x.aliases.Load()
	return t.used.Load() < t.limit && a.used.Load() < a.limit
}

// Forgets reports whether there is something for Forgotten to return.
func (x *Index) Forgets() bool { return x.forgot.Load() }

// Forgotten returns names whose blocks nobody held when a rebuild dropped them, at
// most Options.KeepForgotten, and leaves none. Names that one source alone means
// something else by are not among them.
func (x *Index) Forgotten() []Name {
	if !x.Forgets() {
		return nil
	}
	x.gate.Lock()
	defer x.gate.Unlock()
	names := x.forgotten
	x.forgotten = nil
	x.forgot.Store(false)
	return names
}

// forget notes a name that is dropped. The gate is held.
func (x *Index) forget(a alias) {
	if len(x.forgotten) < x.keepForgotten {
		x.forgotten = append(x.forgotten, Name{plain(a.engine), plain(a.key)})
		x.forgot.Store(true)
	}
}

// Names calls f for each engine hash whose meaning is known, in no particular order,
// until f returns false: also for those whose key nobody holds any more. f must not
// call the index.
func (x *Index) Names(f func(Name) bool) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	a := x.aliases.Load()
	for i := range a.buckets {
		b := &a.buckets[i]
		for j := range b {
			engine, key := atomic.LoadUint64(&b[j].engine), atomic.LoadUint64(&b[j].key)
			if engine != 0 && key != 0 && !f(Name{plain(engine), plain(key)}) {
				return
			}
		}
	}
}
