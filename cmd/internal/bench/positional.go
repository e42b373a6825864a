package bench

import "sync"

// jump is how many positions a query skips at a time, Dynamo's default.
const jump = 64

// positional is the jump index of Dynamo's Flash Indexer: for every position a
// map from local hash to what is there, so that any block of a prompt can be
// looked at without those before it. A query looks at every 64th block; where as
// many owners are left as before, nobody left in between, else it looks at the
// blocks skipped. That holds for owners that are closed; others are scanned.
//
// Each position has a lock, each worker a table of its own, as in the original.
type positional struct {
	traits
	jump    int
	mu      sync.RWMutex // guards the list of levels, which only grows
	levels  []*level
	workers []map[uint64]place // by the publisher's hash
	lost    int
}

type level struct {
	mu sync.RWMutex
	by map[uint64]spot // by local hash
}

// spot holds the one prefix that a local hash has at a position nearly always,
// and the others where there are more.
type spot struct {
	seq    uint64
	owners owners
	more   map[uint64]owners
}

type place struct {
	position int
	local    uint64
}

func newPositional(t traits, workers, jump int) *positional {
	p := &positional{traits: t, jump: jump, workers: make([]map[uint64]place, workers)}
	if !t.closed {
		p.jump = 1
	}
	for i := range p.workers {
		p.workers[i] = map[uint64]place{}
	}
	return p
}

// level returns the level of a position, nil if there is none and it is not to be made.
func (p *positional) level(position int, make_ bool) *level {
	if p.shared {
		p.mu.RLock()
		defer p.mu.RUnlock()
	}
	for make_ && position >= len(p.levels) {
		p.grow(position)
	}
	if position >= len(p.levels) {
		return nil
	}
	return p.levels[position]
}

func (p *positional) grow(position int) {
	if p.shared {
		p.mu.RUnlock()
		p.mu.Lock()
		defer p.mu.RLock()
		defer p.mu.Unlock()
	}
	for position >= len(p.levels) {
		p.levels = append(p.levels, &level{by: map[uint64]spot{}})
	}
}

func (p *positional) Store(owner uint32, parent uint64, hasParent bool, names, local []uint64) {
	own := p.workers[int(owner)/p.tiers]
	position := 0
	if hasParent {
		above, ok := own[parent]
		if !ok {
			p.lost += len(names)
			return
		}
		position = above.position + 1
	}
	for i, l := range local {
		p.add(p.level(position+i, true), l, names[i], owner)
		own[names[i]] = place{position + i, l}
	}
}

func (p *positional) add(v *level, local, seq uint64, owner uint32) {
	if p.shared {
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	s, ok := v.by[local]
	switch {
	case !ok:
		s = spot{seq: seq}
		s.owners.add(owner)
	case s.seq == seq:
		s.owners.add(owner)
	default:
		if s.more == nil {
			s.more = map[uint64]owners{}
		}
		o := s.more[seq]
		o.add(owner)
		s.more[seq] = o
	}
	v.by[local] = s
}

func (p *positional) Remove(owner uint32, names []uint64) {
	worker := int(owner) / p.tiers
	own := p.workers[worker]
	for _, seq := range names {
		at, ok := own[seq]
		if !ok {
			continue
		}
		if !p.drop(p.level(at.position, false), at.local, seq, owner, uint32(worker*p.tiers)) {
			delete(own, seq)
		}
	}
}

// drop takes an owner from a block and reports whether another tier of the same
// worker, whose first owner is given, still holds it.
func (p *positional) drop(v *level, local, seq uint64, owner, first uint32) (held bool) {
	if p.shared {
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	s := v.by[local]
	if s.seq != seq {
		o := s.more[seq]
		o.remove(owner)
		if s.more[seq] = o; len(o.list) == 0 {
			delete(s.more, seq)
		}
		return o.any(first, p.tiers)
	}
	s.owners.remove(owner)
	held = s.owners.any(first, p.tiers)
	if len(s.owners.list) == 0 {
		for seq, o := range s.more { // another prefix moves up
			s.seq, s.owners = seq, o
			delete(s.more, seq)
			break
		}
	}
	if v.by[local] = s; len(s.owners.list) == 0 {
		delete(v.by, local)
	}
	return held
}

func (p *positional) Depths(seq, local []uint64, dst []Depth) []Depth {
	if len(seq) == 0 {
		return dst
	}
	at := len(dst)
	p.at(0, seq, local, func(o *owners) { dst = enter(dst, o) })
	live := len(dst) - at
	for i := 0; live > 0 && i < len(seq)-1; {
		next := min(i+p.jump, len(seq)-1)
		if p.jump > 1 {
			all := false
			p.at(next, seq, local, func(o *owners) { all = len(o.list) == live })
			if all {
				i = next
				continue
			}
		}
		for i++; i <= next && live > 0; i++ {
			p.at(i, seq, local, func(o *owners) {
				if !p.closed || len(o.list) != live {
					live = drain(dst[at:], live, o, i)
				}
			})
		}
		i = next
	}
	settle(dst[at:], live, len(seq))
	return dst
}

// at shows f the owners of block i, none if there is no such block.
func (p *positional) at(i int, seq, local []uint64, f func(*owners)) {
	v := p.level(i, false)
	if v == nil {
		f(&owners{})
		return
	}
	if p.shared {
		v.mu.RLock()
		defer v.mu.RUnlock()
	}
	s := v.by[local[i]]
	if s.seq != seq[i] {
		o := s.more[seq[i]]
		f(&o)
		return
	}
	f(&s.owners)
}
