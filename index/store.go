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
	Copies   CopyPolicy
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
}

// Store applies a stored event. A retired owner stores nothing. It panics if
// Local is neither nil nor as long as Engine.
func (x *Index) Store(e *Store) StoreResult {
	if e.Local != nil && len(e.Local) != len(e.Engine) {
		panic(fmt.Sprintf("BUG: %d local hashes for %d blocks", len(e.Local), len(e.Engine)))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var res StoreResult
	own := x.owners[e.Owner]
	if own == nil {
		return res
	}
	s := x.sources[own.src]
	p := put{x: x, s: s, own: own, id: uint32(e.Owner), policy: e.Copies, res: &res}
	if e.Local == nil {
		for _, engine := range e.Engine {
			if p.unknown(engine) {
				res.HashOnly++
			}
		}
		return res
	}
	p.chain(e)
	return res
}

// put is a store in progress.
type put struct {
	x      *Index
	s      *source
	own    *owner
	id     uint32 // of own
	policy CopyPolicy
	res    *StoreResult
}

// chain stores blocks with tokens. As soon as the key of one block is known,
// those of all that follow are.
func (p *put) chain(e *Store) {
	seq, known := uint64(0), false
	if e.HasParent {
		if ent := p.s.engines.ref(e.Parent); ent != nil && !ent.raw {
			seq, known = ent.key, true
		}
	}
	root := !e.HasParent && !e.Rootless
	for i, engine := range e.Engine {
		switch {
		case root && i == 0:
			seq, known = e.Local[0], true
		case known:
			seq = p.x.scheme.Next(seq, e.Local[i])
		}
		if known {
			p.known(engine, seq)
			continue
		}
		if !p.unknown(engine) {
			seq, known = p.s.engines.ref(engine).key, true
			continue
		}
		p.res.Orphaned++
		switch {
		case i > 0:
			p.wait(engine, e.Engine[i-1], e.Local[i])
		case e.HasParent:
			p.wait(engine, e.Parent, e.Local[i])
		}
	}
}

// known stores a block under its key, teaches the source the alias, and lets the
// blocks that waited for it join.
func (p *put) known(engine, seq uint64) {
	x := p.x
	ent := p.s.engines.insert(engine)
	switch {
	case ent.set == 0: // new
		ent.key = seq
	case ent.raw:
		x.rekey(ent, seq)
		p.res.Resolved++
	case ent.key != seq:
		// The publisher uses the hash for something else now. No removal could
		// name the old block any more, so it goes.
		x.evict(engine, ent)
		ent.key = seq
		p.res.Conflicts++
	}
	p.hold(engine, ent)
	if p.s.room.used > 0 {
		p.res.Resolved += x.settle(p.s, engine, seq)
	}
}

// unknown stores a block of which only the engine hash is known, under the alias
// if there is one. It reports whether there is none.
func (p *put) unknown(engine uint64) bool {
	ent := p.s.engines.insert(engine)
	if ent.set == 0 { // new
		ent.key, ent.raw = engine, true
		p.x.raw++
	}
	p.hold(engine, ent)
	return ent.raw
}

// hold adds the owner to an entry, or a copy where it is in.
func (p *put) hold(engine uint64, ent *entry) {
	if p.x.sets.has(ent.set, p.id) {
		p.res.Copies++
		if p.policy == CopyCount {
			*p.own.copies.insert(engine)++
		}
		return
	}
	ent.set = p.x.sets.add(ent.set, p.id)
	p.x.join(p.own, p.id, ent.key)
	p.own.blocks++
	p.res.Added++
}

// wait parks a block behind its parent. The newest report of a block's parent
// counts; a full room loses its oldest link.
func (p *put) wait(engine, parent, local uint64) {
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
		r.push(engine, parent, local) // first: it may be what keeps others useful
		p.s.forget(old.parent)
		return
	}
	r.push(engine, parent, local)
	if r.used > p.x.maxOrphans {
		p.s.leave(r.oldest)
		p.res.Shed++
	}
}
