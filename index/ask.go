package index

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

// ResolveHash returns what the index knows of an engine hash. All events wait meanwhile.
func (x *Index) ResolveHash(src Source, engine uint64) (k Known) {
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
