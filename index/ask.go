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

// Ask returns what the index knows of an engine hash.
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

// Begins looks for tokens at the beginning of prompts under some identities, given by their constants. It
// returns the place in constants of the identity under which there are all of the blocks, with an owner
// or as ghosts, and reports whether it is exactly one.
func (x *Index) Begins(constants, local []uint64) (at int, once bool) {
	x.lock()
	defer x.unlock()
	for i, constant := range constants {
		if !x.begins(constant, local) {
			continue
		}
		if once {
			return 0, false
		}
		at, once = i, true
	}
	return at, once
}

// begins reports whether all blocks of a prompt are there under an identity.
func (x *Index) begins(constant uint64, local []uint64) bool {
	key := normal(local[0] ^ constant)
	for i := 0; ; {
		p := x.cleaned(cursor{kind: atBlock, at: x.headOf(key), key: key}).at
		if p.isNone() {
			return false
		}
		r := x.at(p.piece)
		gone := x.deadOf(r)
		n := uint32(0)
		for ; n < r.len() && i < len(local); n++ {
			if r.local()[n] != local[i] {
				break
			}
			if gone>>n&1 != 0 {
				return false
			}
			if i++; i < len(local) {
				key = x.follow(key, constant, local[i])
			}
		}
		switch {
		case i == len(local):
			return true
		case n == 0:
			return false
		}
	}
}
