package index

// NoSource asks for no source's own names.
const NoSource = ^Source(0)

// Known is what an index knows of an engine hash.
type Known struct {
	// Key is the canonical sequence hash of the block that the hash stands for among the
	// sources of the index, a ghost included. Key and Identity are valid if Named. Of
	// sources that mean different things by the hash one is believed.
	Key      uint64
	Identity Identity
	Named    bool
	// Own says that the hash means something to the source that asks: Named, or a block by
	// a name of its own, or one that an owner of it holds under the hash itself. To
	// NoSource it is Named, to a source that was dropped nothing.
	Own bool
}

// ResolveHash returns what the index knows of an engine hash. All events wait meanwhile.
//
// A contested hash means nothing to a source without tokens, so the question skips what
// others mean by it, and looks at what the source has of its own.
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
			return Known{Key: x.tree.seqOf(p), Identity: x.tree.lines.pieceAt(p.piece).identityID(), Named: true, Own: s != nil ||
				src == NoSource}
		}
	}
	k.Own = s != nil && (!x.resolver.meaningOf(s, engine).isNone() || !x.tree.findHeldRaw(s, engine).isNone())
	return k
}
