package index

import "sync/atomic"

// privateBytes is what a private name takes, in the tables of its source and of its block.
const privateBytes = 64

// private is a name that one source means alone.
type private struct {
	s      *source
	engine uint64
}

// privateNames are the private names of all sources, n in number, by their blocks. They are
// for sources that contradict each other, so nearly every index has none, and maps are good
// enough. All lanes are locked where they change, as two sources are concerned.
type privateNames struct {
	of map[uint64]map[private]struct{}
	n  atomic.Int64
}

// losePrivates drops the private names of blocks that have no owner any more, or notes that
// they are to go.
//
// A lane may not touch the tables of other sources while those are at work. So next to
// others it notes the blocks in ended, and the next call that locks all lanes drops the
// names before it looks at anything (lockRest). Until then a source may find a private name
// whose block has gone; events of sources with private names lock all lanes anyway, so none
// does.
func (m *nameMap) losePrivates(l *lane, n uint32, blocks uint64) {
	if len(m.privates.of) == 0 {
		return
	}
	for w := blocks; w != 0; w &= w - 1 {
		if ref := (position{n, lowestBit(w)}).encode(); len(m.privates.of[ref]) > 0 {
			l.ended = append(l.ended, ref)
		}
	}
	if m.tree.lanes.alone {
		m.privates.endPrivates(l)
	}
}

// endPrivates drops the private names of blocks that an event took from their last owner.
// All lanes are locked.
func (pn *privateNames) endPrivates(l *lane) {
	for _, ref := range l.ended {
		for p := range pn.of[ref] {
			p.s.private.deleteKey(p.engine)
		}
		pn.n.Add(-int64(len(pn.of[ref])))
		delete(pn.of, ref)
	}
	l.ended = l.ended[:0]
}

// addPrivate lets a source alone mean a block by an engine hash.
//
// Both directions are kept. The source looks a hash up, and a block that ends must find the
// hashes that led to it.
func (pn *privateNames) addPrivate(s *source, engine uint64, p position) {
	pn.dropPrivate(s, engine)
	if pn.of == nil {
		pn.of = make(map[uint64]map[private]struct{})
	}
	*s.private.insertKey(engine) = p.encode()
	of := pn.of[p.encode()]
	if of == nil {
		of = make(map[private]struct{})
		pn.of[p.encode()] = of
	}
	of[private{s, engine}] = struct{}{}
	pn.n.Add(1)
}

// dropPrivate forgets what a source alone means by an engine hash, if it does.
func (pn *privateNames) dropPrivate(s *source, engine uint64) {
	if ref := s.private.find(engine); ref != nil {
		pn.forgetPrivate(*ref, private{s, engine})
		s.private.deleteKey(engine)
	}
}

// forgetPrivate takes a private name from those of its block. A source may give one block
// any number of them, so they are no list to be searched: a hostile one would make each
// removal walk through it.
func (pn *privateNames) forgetPrivate(ref uint64, p private) {
	of := pn.of[ref]
	if _, has := of[p]; has {
		pn.n.Add(-1)
	}
	if delete(of, p); len(of) == 0 {
		delete(pn.of, ref)
	}
}
