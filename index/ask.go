package index

import "slices"

// NoSource asks for no source's own names.
const NoSource = ^Source(0)

// Known is what an index knows of an engine hash.
type Known struct {
	// Key is the canonical sequence hash of the block that the hash stands for among the sources of the
	// index, a ghost included. Key and Identity are valid if Named. Of sources that mean different
	// things by the hash one is believed.
	Key      uint64
	Identity Identity
	Named    bool
	// Own says that the hash means something to the source that asks: Named, or a block by a name of its
	// own, or one that an owner of it holds under the hash itself. To NoSource it is Named, to a source that was
	// dropped nothing.
	Own bool
}

// Ask returns what the index knows of an engine hash. All events wait meanwhile.
func (x *Index) Ask(src Source, engine uint64) (k Known) {
	x.lock()
	defer x.unlock()
	var s *source
	if src != NoSource {
		s = x.sources[src]
	}
	engine = normal(engine)
	if !x.isContested(s, engine) {
		if p := x.seek(s, engine); !p.isNone() {
			return Known{Key: x.seq(p), Identity: x.at(p.piece).identity(), Named: true, Own: s != nil || src == NoSource}
		}
	}
	k.Own = s != nil && (!x.meaning(s, engine).isNone() || !x.heldRaw(s, engine).isNone())
	return k
}

// Before appends names of the n blocks before the one that an engine hash means to a source, in the order of
// the chain. It appends fewer where the chain begins, and then reports root, or where a block has no name
// that means it to the source. All events wait meanwhile.
func (x *Index) Before(dst []uint64, src Source, engine uint64, n int) (names []uint64, root bool) {
	x.lock()
	defer x.unlock()
	s := x.sources[src]
	if s == nil {
		return dst, false
	}
	from := len(dst)
	for p := x.meaning(s, normal(engine)); !p.isNone() && !x.at(p.piece).loose(); {
		p, root = x.parentOf(s, p)
		if p.isNone() || len(dst)-from == n {
			break
		}
		name := uint64(0)
		x.allNamesOf(p, func(engine uint64, _ uint32) {
			if name == 0 && (s.private.len() == 0 || s.private.ref(engine) == nil) && !x.isContested(s, engine) {
				name = engine
			}
		})
		if name == 0 {
			break
		}
		dst = append(dst, plain(name))
	}
	slices.Reverse(dst[from:])
	return dst, root
}

// parentOf returns the block before one of a chain, none if it is not known, and whether there is none
// because the block begins a prompt. All lanes are locked.
func (x *Index) parentOf(s *source, p place) (parent place, root bool) {
	r := x.at(p.piece)
	first := r.local()[0]
	switch {
	case p.at > 0:
		return place{p.piece, p.at - 1}, false
	case r.up == 0:
		return place{}, r.head == r.root().first(first)
	}
	if h := x.at(r.prev); r.prev != 0 && x.beginOf(h.head, h.meta&isFirst != 0) == (place{piece: r.prev}) {
		for k, i := h.head, uint32(0); ; k = x.follow(k, r.constant(), h.local()[i]) {
			if x.follow(k, r.constant(), first) == r.head {
				return place{r.prev, i}, false
			}
			if i++; i == h.len() {
				break
			}
		}
	}
	if q := x.meaning(s, r.up); !q.isNone() && !x.at(q.piece).loose() && x.follow(x.key(q), r.constant(), first) == r.head {
		return q, false
	}
	return place{}, false
}

// beginning returns the identity under which there are all blocks of a prompt, with an owner or as ghosts,
// of those with some constants. It reports whether it is exactly one. The lane holds another piece
// afterwards.
func (x *Index) beginning(l *lane, constants, local []uint64) (of root, once bool) {
	for _, constant := range constants {
		found, all := x.begins(l, constant, local)
		if !all {
			continue
		}
		if once {
			return root{}, false
		}
		of, once = found, true
	}
	return of, once
}

// begins reports whether there are all blocks of a prompt under an identity, and returns that.
func (x *Index) begins(l *lane, constant uint64, local []uint64) (of root, all bool) {
	key := normal(local[0] ^ constant)
	for i := 0; ; {
		at := x.beginOf(key, i == 0)
		if at.isNone() {
			return root{}, false
		}
		r := x.holdCleaned(l, at.piece)
		if load64(&r.head) != key {
			continue // it has ended
		}
		of = r.root()
		gone, n := x.deadOf(r), uint32(0)
		for ; n < r.len() && i < len(local) && r.local()[n] == local[i]; n++ {
			if gone>>n&1 != 0 {
				return root{}, false
			}
			if i++; i < len(local) {
				key = x.follow(key, constant, local[i])
			}
		}
		if i == len(local) || n == 0 {
			return of, n > 0
		}
	}
}
