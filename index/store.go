package index

import "fmt"

// CopyPolicy says what a store of a block already held by the same owner means.
type CopyPolicy uint8

const (
	// CopyCount adds a copy; each removal takes one, the last takes the block.
	CopyCount CopyPolicy = iota
	// CopySet changes nothing; the first removal takes the block.
	CopySet
)

// Store is one stored event. The index keeps none of its slices.
type Store struct {
	Owner     Owner
	Parent    uint64 // engine hash of the block before Engine[0], with HasParent
	HasParent bool
	// Rootless says that without a parent the position is unknown; else a missing
	// parent is the root.
	Rootless bool
	Engine   []uint64 // the publisher's hashes, in chain order
	Local    []uint64 // local hashes of the tokens, as many; nil without tokens
	// Labels, as many, are kept with the keys where Options.KeepLabels says so; nil
	// is Local. 0 is no label.
	Labels []uint64
	// Key is the key of Engine[0], with HasKey: a snapshot knows it where the parent
	// is not known.
	Key    uint64
	HasKey bool
	Copies CopyPolicy
	// Joined, if not nil, gets the engine hashes of blocks that waited and whose key
	// became known with this event.
	Joined *[]uint64
}

// label returns the label of block i.
func (e *Store) label(i int) uint64 {
	if e.Labels != nil {
		return e.Labels[i]
	}
	return e.Local[i]
}

// StoreResult counts blocks.
type StoreResult struct {
	Added     int // the owner did not hold them
	Copies    int // it did already
	Orphaned  int // with tokens, but behind an unknown parent: held under the raw hash
	HashOnly  int // without tokens, under an engine hash of unknown key
	Resolved  int // stored earlier under a raw hash, whose key became known
	Conflicts int // engine hashes that turned out to mean another prefix, or name themselves as parent
	Shed      int // links that left the full waiting room
	Refused   int // new keys the budget had no room for
}

// Store applies a stored event. A retired owner stores nothing. It panics if
// Local is neither nil nor as long as Engine, or Labels as Local.
func (x *Index) Store(e *Store) StoreResult {
	if e.Local != nil && len(e.Local) != len(e.Engine) || e.Labels != nil && len(e.Labels) != len(e.Local) {
		panic(fmt.Sprintf("BUG: %d local hashes and %d labels for %d blocks", len(e.Local), len(e.Labels), len(e.Engine)))
	}
	var res StoreResult
	for full := false; !x.store(e, full, &res); {
		full = !x.enlarge(e)
	}
	x.tend()
	return res
}

// need returns the most keys and aliases a stored event can add.
func (e *Store) need(s *source) (keys, names int64) {
	keys, names = int64(len(e.Engine)+s.room.used), int64(s.room.used)
	if e.Local != nil || e.HasKey {
		names = keys
	}
	return keys, names
}

// store does it, or returns false because there is no room. With full it takes what
// room there is.
func (x *Index) store(e *Store, full bool, res *StoreResult) bool {
	x.gate.RLock()
	own := x.owners[e.Owner]
	if own == nil {
		x.gate.RUnlock()
		return true
	}
	s := own.s
	s.mu.Lock()
	keys, names := e.need(s)
	p := put{hand: x.hand(s), o: own, policy: e.Copies}
	p.joined = e.Joined
	p.res = res
	if !p.reserve(keys, names) {
		if !full {
			s.mu.Unlock()
			x.gate.RUnlock()
			return false
		}
		p.full, keys, names = true, 0, 0
	}
	if e.Local == nil {
		p.hashes(e)
	} else {
		p.chain(e)
	}
	p.release(keys, names)
	p.done()
	s.mu.Unlock()
	x.gate.RUnlock()
	return true
}

// put is a store in progress.
type put struct {
	hand
	o      *owner
	policy CopyPolicy
}

// before returns the place behind the parent of an event's first block, which has
// a parent or none.
func (p *put) before(e *Store, parent uint64, known bool) place {
	switch {
	case !e.HasParent && e.Rootless:
		return place{}
	case !e.HasParent:
		return root
	case !known && !p.s.raw:
		return place{}
	}
	s := p.t.find(parent)
	if s == nil {
		return place{}
	}
	return place{slot: p.t.number(s), tag: tagOf(parent), held: p.holds(p.o, parent)}
}

// hashes stores blocks without tokens.
func (p *put) hashes(e *Store) {
	parent, known := uint64(0), false
	if e.HasParent {
		parent = normal(e.Parent)
		if key, ok := p.meaning(parent); ok {
			parent, known = key, true
		}
	}
	up := p.before(e, parent, known)
	named := len(p.a.buckets) > 0 || p.s.private.len() > 0
	for i, engine := range e.Engine {
		if i%ahead == 0 {
			p.advance(e.Engine, i, named, false)
		}
		engine = normal(engine)
		if i == 0 && e.HasKey {
			up = p.known(engine, normal(e.Key), up)
			continue
		}
		if named {
			if key, known := p.meaning(engine); known {
				if p.unraw(engine, key, up, false) {
					p.res.Resolved++
				}
				p.uses(engine, key)
				up = p.settled(engine, key, p.hold(key, up))
				continue
			}
		}
		up = p.raw(engine, up)
		p.res.HashOnly++
	}
}

// raw stores a block under its engine hash.
func (p *put) raw(engine uint64, up place) place {
	p.s.raw = true
	added := p.res.Added
	up = p.hold(engine, up)
	p.o.raw += p.res.Added - added
	return up
}

// hold stores a block under a key, and returns the place behind it.
func (p *put) hold(key uint64, up place) place {
	at, held := p.join(p.o, key, up)
	if at == 0 {
		p.res.Refused++
		p.x.refuse(key)
		return place{}
	}
	if !held {
		p.res.Added++
	} else {
		p.res.Copies++
		if p.policy == CopyCount {
			*p.o.copies.insert(key)++
		}
	}
	return place{slot: at, tag: tagOf(key), held: true}
}

// chain stores blocks with tokens. As soon as the key of one block is known,
// those of all that follow are.
func (p *put) chain(e *Store) {
	seq, known := uint64(0), false
	parent := normal(e.Parent)
	if e.HasParent {
		if key, ok := p.meaning(parent); ok {
			seq, known, parent = key, true, key
		}
	}
	up := p.before(e, parent, known)
	begin := !e.HasParent && !e.Rootless || e.HasKey
	var keys [ahead]uint64 // of the blocks from first on
	first, computed := 0, 0
	for i, engine := range e.Engine {
		if i%ahead == 0 {
			if i == 0 {
				p.a.prefetch(group(e.Engine, i, 0))
			}
			p.a.prefetch(group(e.Engine, i, 1))
			p.a.prefetchTaught(group(e.Engine, i, 0))
		}
		engine = normal(engine)
		if begin && i == 0 || known && i == first+computed {
			// The keys of what follows are known as well: so their probes can begin.
			first, computed = i, min(ahead-i%ahead, len(e.Engine)-i)
			for j := range computed {
				switch {
				case i+j == 0 && e.HasKey:
					seq, known = normal(e.Key), true
				case begin && i+j == 0:
					seq, known = normal(e.Local[0]), true
				default:
					seq = normal(p.x.scheme.Next(plain(seq), e.Local[i+j]))
				}
				keys[j] = seq
			}
			p.t.prefetch(keys[:computed])
			p.t.prefetchLabels(keys[:computed])
		}
		if known {
			seq = keys[i-first]
			up = p.known(engine, seq, up)
			p.label(up.slot, e.label(i))
			continue
		}
		if key, ok := p.meaning(engine); ok {
			if p.unraw(engine, key, up, false) {
				p.res.Resolved++
			}
			p.uses(engine, key)
			up = p.settled(engine, key, p.hold(key, up))
			p.label(up.slot, e.label(i))
			seq, known = key, true
			first, computed = i+1, 0
			continue
		}
		up = p.raw(engine, up)
		p.res.Orphaned++
		switch {
		case i > 0:
			p.wait(engine, normal(e.Engine[i-1]), e.Local[i], e.label(i))
		case e.HasParent:
			p.wait(engine, parent, e.Local[i], e.label(i))
		}
	}
}

// known stores a block under its key, teaches the source the alias, and lets the
// blocks that waited for it join.
func (p *put) known(engine, seq uint64, up place) place {
	if !p.canLearn(engine) { // held, it could never be removed
		p.res.Refused++
		p.x.refuse(seq)
		return place{}
	}
	if p.learn(engine, seq) {
		p.res.Conflicts++
		up.held = p.holdsPlace(p.o, up)
	}
	if p.unraw(engine, seq, up, false) {
		p.res.Resolved++
	}
	return p.settled(engine, seq, p.hold(seq, up))
}

// settled lets the blocks that waited for an engine hash join, and returns the
// place behind it, which a conflict among them may have taken.
func (p *put) settled(engine, key uint64, up place) place {
	if p.s.room.used > 0 {
		p.res.Resolved += p.settle(engine, key)
		up.held = p.holdsPlace(p.o, up)
	}
	return up
}

// wait parks a block behind its parent. The newest report of a block's parent
// counts; a full room loses its oldest link.
func (p *put) wait(engine, parent, local, label uint64) {
	r := &p.s.room
	if engine == parent {
		p.res.Conflicts++
		return
	}
	if p.x.maxOrphans < 1 {
		p.res.Shed++
		return
	}
	if i := r.of(engine); i != none {
		old := r.links[i]
		if old.parent == parent && old.local == local {
			r.refresh(i)
			return
		}
		r.remove(i)
		r.push(engine, parent, local, label) // first: it may be what keeps others useful
		p.forget(old.parent)
		return
	}
	r.push(engine, parent, local, label)
	if r.used > p.x.maxOrphans {
		p.leave(r.oldest)
		p.res.Shed++
	}
}
