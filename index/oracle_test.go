package index

import (
	"maps"
	"slices"

	"example.com/conductor/index/hash"
)

// oracle is the index as plain maps and lists, written from the rules alone:
// nothing interned, nothing counted, everything looked for from the start.
type oracle struct {
	scheme  hash.Scheme
	max     int
	members map[oBlock]map[Owner]int  // block -> owner -> copies, at least 1 each
	doubted map[oBlock]map[Owner]bool // block -> owner whose last event took a copy of it
	shared  map[uint64]uint64         // engine hash -> key
	sources map[Source]*oSource
	owners  map[Owner]Source  // living ones
	ghosts  bool              // names outlive their blocks
	lost    map[uint64]uint64 // names of ghosts that had to go, with their keys
	unfound map[uint64]bool   // those of them by which blocks were stored since

	constants []uint64            // by Identity; keys are those of the index: K
	ids       map[uint64]Identity // key -> identity
	rawIDs    map[uint64]Identity // engine hash that blocks wait under -> identity
	met       []uint64            // engine hashes that have got a meaning
	agree     func(says Says, a, b Identity) bool
}

// root returns the key of a first block, next that of a block behind another one.
func (o *oracle) root(id Identity, local uint64) uint64 {
	return o.note(id, local^o.constants[id])
}

func (o *oracle) next(key, local uint64) uint64 {
	id := o.ids[key]
	c := o.constants[id]
	return o.note(id, o.scheme.Next(key^c, local)^c)
}

func (o *oracle) note(id Identity, key uint64) uint64 {
	o.ids[key] = id
	return key
}

// seq returns the canonical sequence hash of a key.
func (o *oracle) seq(key uint64) uint64 { return key ^ o.constants[o.ids[key]] }

// oBlock is a block: under its key, or under an engine hash of unknown meaning.
type oBlock struct {
	raw bool
	key uint64
}

func of(key uint64) oBlock    { return oBlock{false, key} }
func rawOf(key uint64) oBlock { return oBlock{true, key} }

type oSource struct {
	owners  []Owner
	private map[uint64]uint64
	links   []oLink // oldest first
	raw     bool
	teaches bool // it announces tokens
}

type oLink struct {
	engine, parent, local uint64
	says                  oSaying
}

// oSaying is what an event says of the identity of its blocks.
type oSaying struct {
	says     Says
	id       Identity
	constant uint64
}

func newOracle(scheme hash.Scheme, max int, agree func(Says, Identity, Identity) bool) *oracle {
	return &oracle{
		scheme: scheme, max: max, agree: agree, constants: []uint64{0},
		members: map[oBlock]map[Owner]int{}, doubted: map[oBlock]map[Owner]bool{}, shared: map[uint64]uint64{},
		sources: map[Source]*oSource{}, owners: map[Owner]Source{},
		lost: map[uint64]uint64{}, unfound: map[uint64]bool{}, ids: map[uint64]Identity{}, rawIDs: map[uint64]Identity{},
	}
}

// mayFollow reports whether what an event says of its blocks is true of a block that they are behind.
func (o *oracle) mayFollow(s oSaying, key uint64) bool {
	id := o.ids[key]
	return s.says == 0 || id == s.id && o.constants[id] == s.constant || o.constants[s.id] == s.constant && o.agree(s.says, s.id, id)
}

func (o *oracle) holds(w Owner, key oBlock) bool { return o.members[key][w] > 0 }

func (o *oracle) alive(key oBlock) bool { return len(o.members[key]) > 0 }

// isThere reports whether a block has an owner or is a ghost.
func (o *oracle) isThere(key uint64) bool {
	if o.alive(of(key)) {
		return true
	}
	for _, other := range o.shared {
		if o.ghosts && other == key {
			return true
		}
	}
	return false
}

func (o *oracle) set(w Owner, key oBlock, copies int) {
	if o.members[key] == nil {
		o.members[key] = map[Owner]int{}
	}
	o.members[key][w] = copies
}

// doubt says whether the last event of an owner about a block took a copy of it.
func (o *oracle) doubt(w Owner, key oBlock, is bool) {
	if o.doubted[key] == nil {
		o.doubted[key] = map[Owner]bool{}
	}
	o.doubted[key][w] = is
}

// uncount takes an owner's copies beyond the first, and the blocks that its last event took a copy of.
func (o *oracle) uncount(owner Owner) (n int) {
	src, living := o.owners[owner]
	if !living {
		return 0
	}
	for key, of := range maps.Clone(o.members) {
		switch {
		case of[owner] == 0:
		case o.doubted[key][owner]:
			o.unset(owner, key)
			n++
		default:
			of[owner] = 1
		}
	}
	if n > 0 {
		s := o.sources[src]
		for _, l := range slices.Clone(s.links) {
			o.forget(s, l.engine)
		}
		o.end(s)
	}
	return n
}

func (o *oracle) unset(w Owner, key oBlock) {
	delete(o.members[key], w)
	delete(o.doubted[key], w)
	if len(o.members[key]) > 0 {
		return
	}
	delete(o.members, key)
	if key.raw {
		delete(o.unfound, key.key)
		delete(o.rawIDs, key.key)
		return
	}
	dead := func(_, other uint64) bool { return other == key.key }
	if !o.ghosts {
		maps.DeleteFunc(o.shared, dead)
	}
	for _, s := range o.sources {
		maps.DeleteFunc(s.private, dead)
	}
}

func (o *oracle) bySource(s *oSource, key oBlock) bool {
	return slices.ContainsFunc(s.owners, func(w Owner) bool { return o.holds(w, key) })
}

func (o *oracle) heldRaw(s *oSource, engine uint64) bool {
	return s.raw && o.bySource(s, rawOf(engine))
}

// meaning is what an engine hash stands for.
func (o *oracle) meaning(s *oSource, engine uint64) (uint64, bool) {
	key, ok := s.private[engine]
	if !ok {
		key, ok = o.shared[engine]
	}
	return key, ok && (o.ghosts || o.alive(of(key)))
}

func (o *oracle) learn(s *oSource, engine, key uint64) (conflict bool) {
	before, known := s.private[engine]
	if !known {
		before, known = o.shared[engine]
	}
	if known && before != key {
		for _, w := range s.owners {
			if o.holds(w, of(before)) {
				o.unset(w, of(before))
				conflict = true
			}
		}
	}
	delete(s.private, engine)
	if now, known := o.shared[engine]; !known || !o.alive(of(now)) {
		o.shared[engine] = key
		delete(o.lost, engine)
		delete(o.unfound, engine)
	} else if now != key {
		s.private[engine] = key
	}
	o.met = append(o.met, engine)
	return conflict
}

// alsoMeans lets other hashes of a block mean it, if sources without tokens wait under them.
func (o *oracle) alsoMeans(engine, key uint64, other ...uint64) {
	for _, with := range other {
		engine := engine ^ with
		for _, src := range slices.Sorted(maps.Keys(o.sources)) {
			s := o.sources[src]
			if _, known := o.meaning(s, engine); !known && !s.teaches && o.heldRaw(s, engine) {
				o.learn(s, engine, key)
				break
			}
		}
	}
}

// placeOthers moves what waits under hashes that mean something by now.
func (o *oracle) placeOthers(own *oSource, res *StoreResult) {
	for k := 0; k < len(o.met); k++ {
		engine := o.met[k]
		for _, src := range slices.Sorted(maps.Keys(o.sources)) {
			s := o.sources[src]
			key, known := o.meaning(s, engine)
			if !known || !o.heldRaw(s, engine) {
				continue
			}
			r := &StoreResult{}
			if s == own {
				r = res
			}
			if o.unraw(s, engine, key) {
				r.Resolved++
			}
			if r.Resolved += o.settle(s, engine, key, r); s != own {
				o.end(s)
			}
		}
	}
	o.met = nil
}

func (o *oracle) unraw(s *oSource, engine, key uint64) (moved bool) {
	if !s.raw {
		return false
	}
	for _, w := range s.owners {
		if n := o.members[rawOf(engine)][w]; n > 0 {
			moved = engine != key
			o.doubt(w, of(key), o.doubted[rawOf(engine)][w] && (!o.holds(w, of(key)) || o.doubted[of(key)][w]))
			o.set(w, of(key), o.members[of(key)][w]+n)
			o.unset(w, rawOf(engine))
		}
	}
	return moved
}

// forget drops links that serve nothing: neither is their block held under its
// engine hash nor does another link wait on them.
func (o *oracle) forget(s *oSource, engine uint64) {
	for {
		i := slices.IndexFunc(s.links, func(l oLink) bool { return l.engine == engine })
		if i < 0 || o.heldRaw(s, engine) || slices.ContainsFunc(s.links, func(l oLink) bool { return l.parent == engine }) {
			return
		}
		engine = s.links[i].parent
		s.links = slices.Delete(s.links, i, i+1)
	}
}

func (o *oracle) end(s *oSource) {
	for _, w := range s.owners {
		if o.held(w) > 0 {
			return
		}
	}
	s.links, s.raw = nil, false
}

// beginning returns the only identity under which the tokens of an event begin prompts, else that of the event.
func (o *oracle) beginning(e *Store) (id Identity, once bool) {
	n := 0
	for other, constant := range o.constants {
		if !slices.Contains(e.Begins, constant) {
			continue
		}
		seq, all := e.Local[0], o.isThere(e.Local[0]^constant)
		for _, local := range e.Local[1:] {
			seq = o.scheme.Next(seq, local)
			all = all && o.isThere(seq^constant)
		}
		if all {
			id = Identity(other)
			n++
		}
	}
	if n != 1 {
		return e.Identity, false
	}
	return id, true
}

func (o *oracle) store(e *Store) (res StoreResult) {
	src, living := o.owners[e.Owner]
	if !living {
		return res
	}
	s := o.sources[src]
	s.teaches = s.teaches || e.Local != nil
	says := oSaying{e.Says, e.Identity, o.constants[e.Identity]}
	seq, known := uint64(0), false
	if e.HasParent && e.Local != nil {
		seq, known = o.meaning(s, e.Parent)
		known = known && o.mayFollow(says, seq)
	}
	root := !e.HasParent && !e.Rootless
	if root && e.Undecided && len(e.Local) > 0 {
		_, root = o.beginning(e)
	}
	if e.Local != nil && len(e.Engine) > 0 && (known || root) {
		if _, named := o.meaning(s, e.Engine[0]); !e.ByName || !named {
			if res.Chained = true; known {
				res.Before = seq ^ o.constants[o.ids[seq]]
			}
		}
	}
	for i, engine := range e.Engine {
		if e.Local != nil {
			switch {
			case i == 0 && root:
				id, once := o.beginning(e)
				if _, named := o.meaning(s, engine); !e.ByName || !named {
					res.Begun = once
				}
				seq, known = o.root(id, e.Local[0]), true
			case known:
				seq = o.next(seq, e.Local[i])
			}
		}
		key, raw, taught := seq, false, false
		k, ok := o.meaning(s, engine)
		if _, lost := o.lost[engine]; lost && !ok && (e.Local == nil || e.ByName) {
			res.Lost++
			if e.Local == nil || !known {
				o.unfound[engine] = true
			}
		}
		switch {
		case e.ByName && ok:
			if key = k; e.Local != nil {
				res.ByName++
			}
			seq, known = k, true
		case e.Local != nil && known:
			if taught = true; o.learn(s, engine, seq) {
				res.Conflicts++
			}
		case ok:
			key = k
			if e.Local != nil {
				seq, known = k, true
			}
		default:
			key, raw, s.raw = engine, true, true
		}
		if !raw {
			if o.unraw(s, engine, key) {
				res.Resolved++
			}
			o.unraw(s, key, key)
		}
		at := oBlock{raw, key}
		if raw && !o.alive(at) && e.Local == nil {
			o.rawIDs[key] = e.Identity
		}
		if !raw && !res.Placed {
			res.Identity, res.Placed = o.ids[key], true
		}
		switch {
		case !o.holds(e.Owner, at):
			o.set(e.Owner, at, 1)
			res.Added++
		case e.Copies == CopyCount:
			o.members[at][e.Owner]++
			fallthrough
		default:
			o.doubt(e.Owner, at, false)
			res.Copies++
		}
		switch {
		case !raw:
			res.Resolved += o.settle(s, engine, key, &res)
		case e.Local == nil:
			res.HashOnly++
		default:
			res.Orphaned++
			parent := e.Parent
			if i > 0 {
				parent = e.Engine[i-1]
			}
			if i > 0 || e.HasParent {
				o.wait(s, oLink{engine, parent, e.Local[i], says}, &res)
			}
		}
		if taught {
			o.alsoMeans(engine, key, e.AlsoWaiting, o.constants[o.ids[key]])
		}
		o.placeOthers(s, &res)
	}
	o.end(s)
	return res
}

func (o *oracle) wait(s *oSource, l oLink, res *StoreResult) {
	switch i := slices.IndexFunc(s.links, func(old oLink) bool { return old.engine == l.engine }); {
	case l.engine == l.parent:
		res.Conflicts++
	case o.max < 1:
		res.Shed++
	case i >= 0:
		old := s.links[i]
		s.links = append(slices.Delete(s.links, i, i+1), l)
		if old.parent != l.parent {
			o.forget(s, old.parent)
		}
	default:
		s.links = append(s.links, l)
		if len(s.links) > o.max {
			parent := s.links[0].parent
			s.links = slices.Delete(s.links, 0, 1)
			o.forget(s, parent)
			res.Shed++
		}
	}
}

// settle gives keys to what waits on an engine hash.
func (o *oracle) settle(s *oSource, engine, key uint64, res *StoreResult) (moved int) {
	if i := slices.IndexFunc(s.links, func(l oLink) bool { return l.engine == engine }); i >= 0 {
		parent := s.links[i].parent
		s.links = slices.Delete(s.links, i, i+1)
		o.forget(s, parent)
	}
	type step struct{ engine, key uint64 }
	work := []step{{engine, key}}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for {
			i := -1 // the newest child first
			for j, l := range s.links {
				if l.parent == at.engine {
					i = j
				}
			}
			if i < 0 {
				break
			}
			l := s.links[i]
			if s.links = slices.Delete(s.links, i, i+1); !o.mayFollow(l.says, at.key) {
				continue
			}
			next := o.next(at.key, l.local)
			if o.heldRaw(s, l.engine) {
				if o.learn(s, l.engine, next) {
					res.Conflicts++
				}
				o.unraw(s, l.engine, next)
				moved++
			}
			work = append(work, step{l.engine, next})
		}
	}
	return moved
}

func (o *oracle) remove(owner Owner, engine []uint64, remaining []int, policy CopyPolicy) (res RemoveResult) {
	src, living := o.owners[owner]
	if !living {
		return RemoveResult{Unknown: len(engine)}
	}
	s := o.sources[src]
	for i, e := range engine {
		k, known := o.meaning(s, e)
		key := of(k)
		if !known || s.raw && !o.holds(owner, key) && o.holds(owner, rawOf(e)) {
			key = rawOf(e)
		}
		if !o.holds(owner, key) {
			res.Unknown++
			continue
		}
		left, said := 0, i < len(remaining) && remaining[i] >= 0
		if policy == CopyCount {
			left = o.members[key][owner] - 1
		}
		if said {
			left = remaining[i]
		}
		if left > 0 {
			o.members[key][owner] = left
			o.doubt(owner, key, !said)
			res.Copies++
			continue
		}
		res.Removed++
		o.unset(owner, key)
		o.forget(s, e)
	}
	o.end(s)
	return res
}

func (o *oracle) clear(owner Owner) (n int) {
	src, living := o.owners[owner]
	if !living {
		return 0
	}
	n = o.held(owner)
	for key := range maps.Clone(o.members) {
		o.unset(owner, key)
	}
	if n > 0 {
		s := o.sources[src]
		for _, l := range slices.Clone(s.links) {
			o.forget(s, l.engine)
		}
		o.end(s)
	}
	return n
}

// clearIdentity takes the blocks of an identity from an owner.
func (o *oracle) clearIdentity(owner Owner, id Identity) (n int) {
	src, living := o.owners[owner]
	if !living {
		return 0
	}
	for key := range maps.Clone(o.members) {
		if o.identity(key) == id && o.holds(owner, key) {
			o.unset(owner, key)
			n++
		}
	}
	if n > 0 {
		s := o.sources[src]
		for _, l := range slices.Clone(s.links) {
			o.forget(s, l.engine)
		}
		o.end(s)
	}
	return n
}

// identity returns the identity of a block. A raw one has that of the event that came first, of the
// base if that had tokens.
func (o *oracle) identity(b oBlock) Identity {
	if b.raw {
		return o.rawIDs[b.key]
	}
	return o.ids[b.key]
}

func (o *oracle) drop(src Source) {
	if s := o.sources[src]; s != nil {
		for _, w := range s.owners {
			for key := range maps.Clone(o.members) {
				o.unset(w, key)
			}
		}
	}
	delete(o.sources, src)
	maps.DeleteFunc(o.owners, func(_ Owner, s Source) bool { return s == src })
}

// waiting returns who holds a block under a hash itself, ascending.
func (o *oracle) waiting(hash uint64) (out []uint32) {
	for w := range o.members[rawOf(hash)] {
		out = append(out, uint32(w))
	}
	slices.Sort(out)
	return out
}

// holders returns who holds a key, ascending.
func (o *oracle) holders(key uint64) (out []uint32) {
	for w := range o.members[of(key)] {
		out = append(out, uint32(w))
	}
	for w := range o.members[rawOf(key)] {
		out = append(out, uint32(w))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// match expands to one owner list per block.
func (o *oracle) match(chain []uint64) (out [][]uint32) {
	for _, key := range chain {
		h := o.holders(key)
		if len(h) == 0 {
			return out
		}
		out = append(out, h)
	}
	return out
}

// matchNames is match for a chain of engine hashes, among blocks of chains of an identity. most is
// the largest local hash.
func (o *oracle) matchNames(id Identity, engine []uint64, most uint64) (out [][]uint32) {
	before := uint64(0)
	for i, e := range engine {
		key, known := o.shared[e]
		follows := false
		for local := uint64(1); local <= most; local++ {
			follows = follows || i == 0 && key == local^o.constants[id] || i > 0 && key == o.next(before, local)
		}
		if !known || !follows || !o.alive(of(key)) {
			return out
		}
		var h []uint32
		for w := range o.members[of(key)] {
			h = append(h, uint32(w))
		}
		slices.Sort(h)
		out = append(out, h)
		before = key
	}
	return out
}

func (o *oracle) stats() (st Stats) {
	st.Blocks = len(o.members)
	for _, owners := range o.members {
		st.Memberships += len(owners)
	}
	ghosts := map[uint64]bool{}
	for _, key := range o.shared {
		if o.alive(of(key)) {
			st.Aliases++
		} else {
			ghosts[key] = true
		}
	}
	st.Ghosts = len(ghosts)
	for _, s := range o.sources {
		st.Orphans += len(s.links)
		st.Aliases += len(s.private)
	}
	return st
}

func (o *oracle) held(owner Owner) (n int) {
	for _, owners := range o.members {
		if owners[owner] > 0 {
			n++
		}
	}
	return n
}
