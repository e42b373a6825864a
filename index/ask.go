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
		s = x.holders.sources[src]
	}
	engine = normal(engine)
	if !x.resolver.isContested(s, engine) {
		if p := x.resolver.seekMeaning(s, engine); !p.isNone() {
			return Known{Key: x.tree.seqOf(p), Identity: x.tree.lines.pieceAt(p.piece).identity(), Named: true, Own: s != nil ||
				src == NoSource}
		}
	}
	k.Own = s != nil && (!x.resolver.meaningOf(s, engine).isNone() || !x.tree.findHeldRaw(s, engine).isNone())
	return k
}

// findIdentity returns the identity under which there are all blocks of a prompt, with an owner or as ghosts,
// of those with some constants. It reports whether it is exactly one. The lane holds another piece
// afterwards.
func (f *finder) findIdentity(l *lane, constants, local []uint64) (of root, once bool) {
	for _, constant := range constants {
		found, all := f.findPrompt(l, constant, local)
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

// findPrompt reports whether there are all blocks of a prompt under an identity, and returns that.
func (f *finder) findPrompt(l *lane, constant uint64, local []uint64) (of root, all bool) {
	key := normal(local[0] ^ constant)
	for i := 0; ; {
		at := f.tree.findBeginning(key, i == 0)
		if at.isNone() {
			return root{}, false
		}
		r := f.names.holdCleanPiece(l, at.piece)
		if load64(&r.head) != key {
			continue // it has ended
		}
		of = r.root()
		gone, n := f.tree.lines.deadBlocks(r), uint32(0)
		for ; n < r.len() && i < len(local) && r.local()[n] == local[i]; n++ {
			if gone>>n&1 != 0 {
				return root{}, false
			}
			if i++; i < len(local) {
				key = f.tree.followKey(key, constant, local[i])
			}
		}
		if i == len(local) || n == 0 {
			return of, n > 0
		}
	}
}
