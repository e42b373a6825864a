package index

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Depth is how many leading blocks of a chain an owner holds.
type Depth struct {
	Owner  Owner
	Blocks uint32
}

// Depths appends, for each owner that holds block 0 of a chain, how many of its
// leading blocks it holds: the shortest first, owners of equal depth in no
// particular order. It does not allocate once dst is long enough.
//
// While everyone who still holds all blocks so far is closed, the end of the
// stretch they all hold is found by galloping and bisecting; otherwise block by
// block.
func (x *Index) Depths(chain []uint64, dst []Depth) []Depth {
	if len(chain) == 0 {
		return dst
	}
	g := x.gen.Load()
	id := g.table.lookup(normal(chain[0]))
	if id == 0 {
		return dst
	}
	var few [2][32]uint64 // 2,048 owners side by side without the heap
	q := query{g: g, chain: chain}
	words, first := g.sets.of(id)
	q.first, q.id = first, id
	if len(words) <= len(few[0]) {
		q.alive, q.leapt = few[0][:len(words)], few[1][:len(words)]
	} else {
		q.alive, q.leapt = make([]uint64, len(words)), make([]uint64, len(words))
	}
	n := len(dst)
	epoch := g.ids.epoch.Load()
	dst = q.run(words, dst)
	if q.gallops && (g.ids.epoch.Load() != epoch || q.opened()) {
		q.scan, q.id = true, id
		dst = q.run(words, dst[:n])
	}
	return dst
}

// query is a Depths in progress.
type query struct {
	g       *generation
	chain   []uint64
	first   int      // index of the first word of alive
	alive   []uint64 // owners that hold all blocks so far
	leapt   []uint64 // alive when the first leap was made
	id      uint32   // set of the present block
	scan    bool     // never gallop
	gallops bool
}

func (q *query) run(words []uint64, dst []Depth) []Depth {
	// Block 0 was read before: see finish about the order.
	some := uint64(0)
	for i, w := range words {
		w = q.g.ids.living(w, q.first+i)
		q.alive[i] = w
		some |= w
	}
	if some == 0 {
		return dst
	}
	at := 0
	for {
		var id uint32
		if !q.scan && !q.open(q.alive) {
			if !q.gallops {
				q.gallops = true
				copy(q.leapt, q.alive)
			}
			at, id = q.gallop(at)
		} else {
			at, id = q.walk(at)
		}
		if at == len(q.chain) || id == 0 {
			break
		}
		q.id = id
		var left bool
		if dst, left = q.lose(id, at, dst); !left {
			return dst
		}
	}
	return q.emit(q.alive, at, dst)
}

// open reports whether one of these owners may be open.
func (q *query) open(owners []uint64) bool {
	open := q.g.ids.open[q.first:]
	for i, w := range owners {
		if w&atomic.LoadUint64(&open[i]) != 0 {
			return true
		}
	}
	return false
}

func (q *query) opened() bool { return q.open(q.leapt) }

// walk returns the next block with another set, and the set.
func (q *query) walk(at int) (int, uint32) {
	for at++; at < len(q.chain); at++ {
		if at%ahead == 0 {
			q.g.table.advance(q.chain, at)
		}
		if id := q.g.table.lookup(normal(q.chain[at])); id != q.id {
			return at, id
		}
	}
	return at, 0
}

// gallop returns the first block that somebody alive does not hold, and its set.
func (q *query) gallop(at int) (int, uint32) {
	n := len(q.chain)
	lo, hi, last := at, n, uint32(0)
	q.g.table.prefetchLeaps(q.chain[at:])
	for step := 1; lo+1 < n; step *= 2 {
		p := min(lo+step, n-1)
		id := q.g.table.lookup(normal(q.chain[p]))
		if id != q.id && !q.all(id) {
			hi, last = p, id
			break
		}
		lo = p
	}
	for hi-lo > 1 {
		p := int(uint(lo+hi) / 2)
		id := q.g.table.lookup(normal(q.chain[p]))
		if id != q.id && !q.all(id) {
			hi, last = p, id
		} else {
			lo = p
		}
	}
	return hi, last
}

// all reports whether everyone alive is in a set.
func (q *query) all(id uint32) bool {
	words, f := q.g.sets.of(id)
	if len(words) == 0 {
		return false
	}
	for i, w := range q.alive {
		if w&^wordAt(words, f, q.first+i) != 0 {
			return false
		}
	}
	return true
}

// lose takes those out who do not hold block at, and reports whether any are left.
func (q *query) lose(id uint32, at int, dst []Depth) ([]Depth, bool) {
	words, f := q.g.sets.of(id)
	some := uint64(0)
	for i, w := range q.alive {
		if w == 0 {
			continue
		}
		stay := w & wordAt(words, f, q.first+i)
		if gone := w ^ stay; gone != 0 {
			dst = q.emitWord(gone, i, at, dst)
		}
		q.alive[i] = stay
		some |= stay
	}
	return dst, some != 0
}

func (q *query) emit(owners []uint64, depth int, dst []Depth) []Depth {
	for i, w := range owners {
		if w != 0 {
			dst = q.emitWord(w, i, depth, dst)
		}
	}
	return dst
}

// dense is how many owners in a word make it cheaper to step over all its bits than
// to look for those that are set.
const dense = 24

func (q *query) emitWord(w uint64, i, depth int, dst []Depth) []Depth {
	ext := (*[64]uint32)(q.g.ids.ext[(q.first+i)<<6:])
	n, k := len(dst), bits.OnesCount64(w)
	if n+64 > cap(dst) {
		dst = slices.Grow(dst, 64)
	}
	out := (*[64]Depth)(dst[n : n+64])
	if k < dense {
		for j := range k {
			out[j&63] = Depth{Owner(ext[bits.TrailingZeros64(w)&63]), uint32(depth)}
			w &= w - 1
		}
		return dst[:n+k]
	}
	at := 0
	for j := range ext {
		out[at&63] = Depth{Owner(ext[j]), uint32(depth)} // written over if the bit is not set
		at += int(w & 1)
		w >>= 1
	}
	return dst[:n+k]
}

// gallopRuns finds the runs of a chain when all owners of the index are closed,
// and reports whether they were throughout.
func (g *generation) gallopRuns(chain []uint64, m *Match) bool {
	epoch := g.ids.epoch.Load()
	if g.ids.opened.Load() != 0 {
		return false
	}
	n := len(chain)
	if n == 0 {
		return true
	}
	id := g.table.lookup(normal(chain[0]))
	for at := 0; id != 0 && at < n; {
		lo, hi, last := at, n, uint32(0)
		g.table.prefetchLeaps(chain[at:])
		for step := 1; lo+1 < n; step *= 2 {
			p := min(lo+step, n-1)
			other := g.table.lookup(normal(chain[p]))
			if other != id {
				hi, last = p, other
				break
			}
			lo = p
		}
		for hi-lo > 1 {
			p := int(uint(lo+hi) / 2)
			other := g.table.lookup(normal(chain[p]))
			if other != id {
				hi, last = p, other
			} else {
				lo = p
			}
		}
		m.extend(id, hi-at)
		at, id = hi, last
	}
	return g.ids.opened.Load() == 0 && g.ids.epoch.Load() == epoch
}

// prefetchLeaps begins the loads of the first leaps from the start of a chain.
func (t *table) prefetchLeaps(chain []uint64) {
	for i := 1; i < len(chain) && i < 64; i = 2*i + 1 {
		prefetch(unsafe.Pointer(&t.buckets[t.home(normal(chain[i]))]))
	}
}
