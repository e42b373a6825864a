package index

import "slices"

// private is a name that one source means alone.
type private struct {
	s      *source
	engine uint64
}

// losePrivates drops the private names of blocks that have no owner any more, or notes that they
// are to go.
func (x *Index) losePrivates(l *lane, n uint32, blocks uint64) {
	if len(x.privates) == 0 {
		return
	}
	for w := blocks; w != 0; w &= w - 1 {
		if ref := (place{n, trailing(w)}).ref(); len(x.privates[ref]) > 0 {
			l.ended = append(l.ended, ref)
		}
	}
	if x.alone {
		x.endPrivates(l)
	}
}

// endPrivates drops the private names of blocks that an event took from their last owner. All
// lanes are locked.
func (x *Index) endPrivates(l *lane) {
	for _, ref := range l.ended {
		for _, p := range x.privates[ref] {
			p.s.private.remove(p.engine)
		}
		delete(x.privates, ref)
	}
	l.ended = l.ended[:0]
}

// keepPrivate lets a source alone mean a block by an engine hash.
func (x *Index) keepPrivate(s *source, engine uint64, p place) {
	x.dropPrivate(s, engine)
	if x.privates == nil {
		x.privates = make(map[uint64][]private)
	}
	*s.private.insert(engine) = p.ref()
	x.privates[p.ref()] = append(x.privates[p.ref()], private{s, engine})
}

func (x *Index) dropPrivate(s *source, engine uint64) {
	if ref := s.private.ref(engine); ref != nil {
		x.forgetPrivate(*ref, private{s, engine})
		s.private.remove(engine)
	}
}

// forgetPrivate takes a private name off the list of its block.
func (x *Index) forgetPrivate(ref uint64, p private) {
	list := slices.DeleteFunc(x.privates[ref], func(q private) bool { return q == p })
	if x.privates[ref] = list; len(list) == 0 {
		delete(x.privates, ref)
	}
}
