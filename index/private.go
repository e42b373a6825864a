package index

// privateBytes is what a private name takes, in the tables of its source and of its block.
const privateBytes = 64

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
		for p := range x.privates[ref] {
			p.s.private.remove(p.engine)
		}
		x.privateNames.Add(-int64(len(x.privates[ref])))
		delete(x.privates, ref)
	}
	l.ended = l.ended[:0]
}

// keepPrivate lets a source alone mean a block by an engine hash.
func (x *Index) keepPrivate(s *source, engine uint64, p place) {
	x.dropPrivate(s, engine)
	if x.privates == nil {
		x.privates = make(map[uint64]map[private]struct{})
	}
	*s.private.insert(engine) = p.ref()
	of := x.privates[p.ref()]
	if of == nil {
		of = make(map[private]struct{})
		x.privates[p.ref()] = of
	}
	of[private{s, engine}] = struct{}{}
	x.privateNames.Add(1)
}

func (x *Index) dropPrivate(s *source, engine uint64) {
	if ref := s.private.ref(engine); ref != nil {
		x.forgetPrivate(*ref, private{s, engine})
		s.private.remove(engine)
	}
}

// forgetPrivate takes a private name from those of its block. A source may give one block any number of them, so
// they are no list to be searched.
func (x *Index) forgetPrivate(ref uint64, p private) {
	of := x.privates[ref]
	if _, has := of[p]; has {
		x.privateNames.Add(-1)
	}
	if delete(of, p); len(of) == 0 {
		delete(x.privates, ref)
	}
}
