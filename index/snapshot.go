package index

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"sync/atomic"
)

// Snapshot is what an index holds at one moment. Taking one copies 4 bytes a slot
// and 8 an alias while stores and removals wait; walking it holds nobody up, and
// may take as long as it likes.
type Snapshot struct {
	x       *Index
	g       *generation
	a       *aliases
	words   []uint32 // of the slots, as they were
	retired []uint64
	keys    []uint64 // of the aliases, as they were
	sources []*snapSource
	owners  map[uint32]*snapOwner // by internal id
	tree    *snapTree             // made by the first walk
	unified bool                  // one name for each block, see Unify
}

// snapSource is a source as it was.
type snapSource struct {
	name    Source
	family  uint32
	own     map[uint64]uint64   // engine hash -> key, where it differs from what others mean
	private map[uint64][]uint64 // the reverse
	links   map[uint64]link     // by engine hash
	rank    int                 // place among the sources of a unified snapshot
	holds   uint32              // slot whose name is elected, plus one, where the source holds its block
	teaches uint32              // the same, where the source taught a name of the block
}

// snapOwner is an owner as it was.
type snapOwner struct {
	name   Owner
	id     uint32 // internal
	source *snapSource
	copies map[uint64]uint32
	wanted bool
	run    Stretch // what the walk has of it that is not handed out yet
	last   uint32  // slot of its last block, plus one
}

// Stretch is blocks of one owner of which each is behind the one before. Its slices
// are valid until f returns.
type Stretch struct {
	Owner Owner
	// Root says that the first block begins prompts. Else Parent is the engine hash
	// of the block before, if HasParent: one that the owner holds, that another
	// holds, that, if Gone, nobody holds any more, so that the hash may be another
	// block's by now, or, if Waiting, one that nobody has announced.
	Root, HasParent, Gone, Waiting bool
	Parent                         uint64
	// Key of the first block, if HasKey; not where it is Waiting.
	Key    uint64
	HasKey bool
	// Engine hashes and labels of the blocks; label 0 is that of a block without
	// tokens, which is a stretch of its own.
	Engine, Labels []uint64
	// Copies beyond the first, by position; nil where there are none.
	Copies map[int]int
	// More are further engine hashes of blocks, by position; nil where there are none.
	More map[int][]uint64
}

// longest bounds what the walk gathers of an owner.
const longest = 512

// Snapshot returns what the index holds now. Options.KeepLabels must be set.
func (x *Index) Snapshot() *Snapshot {
	if !x.labels {
		panic("BUG: a snapshot of an index without labels")
	}
	x.gate.Lock()
	defer x.gate.Unlock()
	s := &Snapshot{x: x, g: x.gen.Load(), a: x.aliases.Load(), owners: make(map[uint32]*snapOwner)}
	s.words = make([]uint32, len(s.g.table.buckets)*bucketSlots)
	for i := range s.g.table.buckets {
		b := &s.g.table.buckets[i]
		for j := range b {
			s.words[i*bucketSlots+j] = b[j].word
		}
	}
	s.keys = make([]uint64, len(s.a.buckets)*4)
	for i := range s.a.buckets {
		b := &s.a.buckets[i]
		for j := range b {
			s.keys[i*4+j] = b[j].key
		}
	}
	s.retired = slices.Clone(s.g.ids.retired)
	s.sources = make([]*snapSource, len(x.sources))
	for i, src := range x.sources {
		if src != nil {
			s.sources[i] = src.snapshot()
		}
	}
	for _, o := range x.owners {
		if o == nil || o.blocks == 0 {
			continue
		}
		so := &snapOwner{name: o.name, id: o.id, source: s.sources[o.s.name], run: Stretch{Owner: o.name}}
		if o.copies.len() > 0 {
			so.copies = make(map[uint64]uint32, o.copies.len())
			o.copies.all(func(key uint64, n *uint32) bool { so.copies[key] = *n; return true })
		}
		s.owners[o.id] = so
	}
	return s
}

func (s *source) snapshot() *snapSource {
	n := &snapSource{name: s.name, family: s.family.Load()}
	if s.private.len() > 0 {
		n.own, n.private = make(map[uint64]uint64, s.private.len()), make(map[uint64][]uint64, s.private.len())
		s.private.all(func(engine uint64, key *uint64) bool {
			n.own[engine] = *key
			n.private[*key] = append(n.private[*key], engine)
			return true
		})
	}
	if s.room.used > 0 {
		n.links = make(map[uint64]link, s.room.used)
		s.room.byEngine.all(func(engine uint64, i *int32) bool { n.links[engine] = s.room.links[*i]; return true })
	}
	return n
}

// Unify keeps the owners that among accepts, before the first Walk. From then on a
// block has one name, for every owner: see elect. among also ranks the owner's source.
func (s *Snapshot) Unify(among func(Owner) (rank int, ok bool)) {
	maps.DeleteFunc(s.owners, func(_ uint32, o *snapOwner) bool {
		rank, ok := among(o.name)
		o.source.rank = rank
		return !ok
	})
	s.unified = true
}

// Walk calls f for all blocks of the wanted owners, until f returns false. A parent that
// a wanted owner holds comes before its children. local turns a label into the
// local hash it was stored with, false if it does not know. One goroutine walks at a time.
func (s *Snapshot) Walk(local func(label uint64) (uint64, bool), want func(Owner) bool, f func(*Stretch) bool) {
	w := &snapWalk{Snapshot: s, local: local, f: f, polls: make(map[uint32]poll)}
	w.private = slices.ContainsFunc(s.sources, func(n *snapSource) bool { return n != nil && len(n.private) > 0 })
	for _, o := range s.owners {
		o.wanted = want(o.name)
	}
	w.plant()
	for i := range s.words {
		if w.ended {
			break
		}
		if s.tree.parents[i] == 0 && s.key(uint32(i)) != 0 {
			w.climb(uint32(i))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.owners)) {
		w.flush(s.owners[id])
	}
}

// Names calls f for each engine hash of a held block that no source holds which uses
// it, until f returns false: Walk does not come across it. src is who taught it.
func (s *Snapshot) Names(f func(src Source, engine, key uint64) bool) {
	for i, key := range s.keys {
		by := atomic.LoadUint32(&s.a.by[i])
		if key == 0 || by == 0 || int(by) > len(s.sources) || s.sources[by-1] == nil {
			continue
		}
		at := s.g.table.find(key)
		if at == nil {
			continue
		}
		family, held, ours := s.sources[by-1].family, false, false
		for o := range s.holders(s.g.table.number(at) - 1) {
			held, ours = true, ours || o.source.family == family
		}
		engine := atomic.LoadUint64(&s.a.buckets[i/4][i%4].engine)
		if held && !ours && !f(Source(by-1), plain(engine), plain(key)) {
			return
		}
	}
}

// snapTree is how the blocks of a snapshot hang together and are named.
type snapTree struct {
	parents []uint32 // by slot: the slot before, plus one
	// The engine hashes of a slot are a list: first by slot, next by entry of the
	// aliases, both plus one.
	first, next []uint32
	// Of a unified snapshot: the one name of a slot, 0 before elect was asked.
	elected []uint64
}

// plant makes the tree.
func (w *snapWalk) plant() {
	if w.tree != nil {
		return
	}
	t := &snapTree{parents: make([]uint32, len(w.words)), first: make([]uint32, len(w.words)), next: make([]uint32, len(w.keys))}
	w.tree = t
	if w.unified {
		t.elected = make([]uint64, len(w.words))
	}
	for i, key := range w.keys {
		if key == 0 {
			continue
		}
		if s := w.g.table.find(key); s != nil {
			n := w.g.table.number(s) - 1
			t.next[i], t.first[n] = t.first[n], uint32(i)+1
		}
	}
	for i := range w.words {
		w.below(uint32(i), func(c uint32) { t.parents[c] = uint32(i) + 1 })
	}
}

func (s *Snapshot) slot(i uint32) *slot { return s.g.table.at(i + 1) }

// key returns the key in a slot, 0 if it is free. One that was free may be taken by
// now; nobody holds it as far as the snapshot goes.
func (s *Snapshot) key(i uint32) uint64 { return atomic.LoadUint64(&s.slot(i).key) }

// snapWalk is a walk.
type snapWalk struct {
	*Snapshot
	local func(uint64) (uint64, bool)
	f     func(*Stretch) bool
	ended bool
	stack []uint32
	found []uint64 // buffer of names
	// For elect: whether any source has private names, and how each family votes.
	private bool
	polls   map[uint32]poll
}

// poll is the number of votes for a name, and the lowest rank of the voters.
type poll struct{ votes, rank int }

func (p poll) with(s *snapSource) poll { return poll{p.votes + 1, min(p.rank, s.rank)} }

// below calls f for the blocks that hang below a slot. That a link leads to a
// stranger shows in its key.
func (w *snapWalk) below(i uint32, f func(child uint32)) {
	s, key := w.slot(i), w.key(i)
	if key == 0 || atomic.LoadUint32(&s.child) == 0 {
		return
	}
	tag := tagOf(key)
	w.g.children(s, 1<<30, func(c *slot) bool {
		n := w.g.table.number(c) - 1
		if w.words[n]&tagMask == tag {
			if l, ok := w.localOf(n); ok && normal(w.x.scheme.Next(plain(key), l)) == w.key(n) {
				f(n)
			}
		}
		return true
	})
}

// localOf returns the local hash of the block in a slot.
func (w *snapWalk) localOf(i uint32) (uint64, bool) {
	label := atomic.LoadUint64(&w.g.table.labels[i])
	if label == 0 {
		return 0, false
	}
	return w.local(label)
}

// climb visits a slot and what hangs below it.
func (w *snapWalk) climb(i uint32) {
	w.stack = append(w.stack[:0], i)
	for len(w.stack) > 0 && !w.ended {
		i := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		for o := range w.holders(i) {
			if o.wanted {
				w.visit(i, o)
			}
		}
		w.below(i, func(c uint32) {
			if w.tree.parents[c] == i+1 { // or its parent came after the snapshot
				w.stack = append(w.stack, c)
			}
		})
	}
}

// visit adds the block in a slot to what an owner holds.
func (w *snapWalk) visit(i uint32, o *snapOwner) {
	key, label := w.key(i), atomic.LoadUint64(&w.g.table.labels[i])
	up, r := w.tree.parents[i], &o.run
	if up == 0 || up != o.last || label == 0 || len(r.Engine) == longest {
		w.flush(o)
		w.begin(i, o, key, label)
	}
	at, names := len(r.Engine), w.names(i, o.source)
	r.Engine, r.Labels = append(r.Engine, plain(names[0])), append(r.Labels, label)
	if r.Waiting {
		r.Labels[at] = o.source.links[key].label
	}
	if n := o.copies[key]; n > 0 {
		if r.Copies == nil {
			r.Copies = make(map[int]int)
		}
		r.Copies[at] = int(n)
	}
	for _, engine := range names[1:] {
		if r.More == nil {
			r.More = make(map[int][]uint64)
		}
		r.More[at] = append(r.More[at], plain(engine))
	}
	o.last = i + 1
	if label == 0 {
		w.flush(o)
	}
}

// begin starts a stretch at a slot.
func (w *snapWalk) begin(i uint32, o *snapOwner, key, label uint64) {
	r := &o.run
	r.Key, r.HasKey = plain(key), true
	if label == 0 {
		if l, ok := o.source.links[key]; ok {
			r.Waiting, r.HasParent, r.Parent = true, true, plain(l.parent)
			r.Key, r.HasKey = 0, false
		}
		return
	}
	if up := w.tree.parents[i]; up != 0 {
		if !w.g.sets.has(w.words[up-1]>>setShift, o.id) {
			for p := range w.holders(up - 1) { // p and o may belong to one worker
				w.flush(p)
			}
		}
		r.HasParent, r.Parent, r.Gone = true, plain(w.names(up-1, o.source)[0]), !w.held(up-1)
		return
	}
	l, ok := w.localOf(i)
	r.Root = w.words[i]&tagMask == rootTag && ok && normal(l) == key
}

// flush hands out what has been gathered of an owner.
func (w *snapWalk) flush(o *snapOwner) {
	r := &o.run
	if len(r.Engine) > 0 && !w.ended {
		w.ended = !w.f(r)
	}
	*r = Stretch{Owner: o.name, Engine: r.Engine[:0], Labels: r.Labels[:0]}
	o.last = 0
}

// names returns the engine hashes a source uses for the block in a slot: its own, what
// it has taught itself first, and those its family has taught; else one that somebody
// uses who holds the block, so that a reader comes across it, else any, else the key
// itself. They are valid until the next call.
func (w *snapWalk) names(i uint32, src *snapSource) []uint64 {
	if w.unified {
		if w.tree.elected[i] == 0 {
			w.tree.elected[i] = w.elect(i)
		}
		w.found = append(w.found[:0], w.tree.elected[i])
		return w.found
	}
	if w.ownNames(i, src); len(w.found) > 0 {
		return w.found
	}
	for o := range w.holders(i) {
		if w.ownNames(i, o.source); len(w.found) > 0 {
			return w.found[:1]
		}
	}
	name := w.key(i)
	for e := w.tree.first[i]; e != 0; e = w.tree.next[e-1] {
		name = w.engine(e)
	}
	w.found = append(w.found, name)
	return w.found
}

// ownNames finds the names that a source itself uses: those whose teacher is gone if
// there are no others.
func (w *snapWalk) ownNames(i uint32, src *snapSource) {
	w.found = append(w.found[:0], src.private[w.key(i)]...)
	own := len(w.found)
	for e := w.tree.first[i]; e != 0; e = w.tree.next[e-1] {
		engine := w.engine(e)
		if _, other := src.own[engine]; other {
			continue
		}
		switch by := w.teacher(e); {
		case by == src: // a family may have come of one hash in common
			w.found = slices.Insert(w.found, own, engine)
			own++
		case by != nil && by.family == src.family:
			w.found = append(w.found, engine)
		}
	}
	if len(w.found) > 0 {
		return
	}
	for e := w.tree.first[i]; e != 0; e = w.tree.next[e-1] {
		if _, other := src.own[w.engine(e)]; !other && w.teacher(e) == nil {
			w.found = append(w.found, w.engine(e))
		}
	}
}

// elect returns the name of a slot's block for all owners, by a vote of the sources that
// hold the block. A source votes for the engine hashes it has taught. Else it votes for
// those of its family or, if there are none, for those whose teacher is gone. Of equal
// votes the name wins whose voter has the lowest rank. Without votes, the only holder's
// private hash is the name, unless that source holds another block of the name. The last
// choice is the key.
func (w *snapWalk) elect(i uint32) uint64 {
	t := w.tree
	first := t.first[i]
	if first != 0 && t.next[first-1] == 0 && !w.private {
		return w.engine(first)
	}
	clear(w.polls)
	w.polls[noFamily] = poll{rank: math.MaxInt}
	for e := first; e != 0; e = t.next[e-1] {
		if s := w.teacher(e); s != nil {
			s.teaches, w.polls[s.family] = i+1, poll{rank: math.MaxInt}
		}
	}
	holders, last := 0, (*snapSource)(nil)
	for o := range w.holders(i) {
		s := o.source
		if s.holds == i+1 {
			continue
		}
		s.holds, last = i+1, s
		holders++
		switch p, ok := w.polls[s.family]; {
		case s.teaches == i+1 || len(s.private[w.key(i)]) > 0:
		case ok:
			w.polls[s.family] = p.with(s)
		default:
			w.polls[noFamily] = w.polls[noFamily].with(s)
		}
	}
	var name uint64
	var best poll
	for e := first; e != 0; e = t.next[e-1] {
		p := w.polls[noFamily]
		if s := w.teacher(e); s != nil {
			if p = w.polls[s.family]; s.holds == i+1 {
				p = p.with(s)
			}
		}
		if name == 0 || p.votes > best.votes || p.votes == best.votes && p.rank < best.rank {
			name, best = w.engine(e), p
		}
	}
	if best.votes == 0 && holders == 1 {
		for _, engine := range last.private[w.key(i)] {
			if !w.holdsNamed(last, engine) {
				return engine
			}
		}
	}
	return cmp.Or(name, w.key(i))
}

// noFamily is the family of teachers that are gone.
const noFamily = math.MaxUint32

// holdsNamed reports whether a source holds the block that an engine hash means to others.
func (w *snapWalk) holdsNamed(src *snapSource, engine uint64) bool {
	e := w.a.entry(engine)
	if e == nil || w.keys[w.a.index(e)] == 0 {
		return false
	}
	if s := w.g.table.find(w.keys[w.a.index(e)]); s != nil {
		for o := range w.holders(w.g.table.number(s) - 1) {
			if o.source == src {
				return true
			}
		}
	}
	return false
}

// engine returns the engine hash of an entry of the aliases, given plus one.
func (w *snapWalk) engine(e uint32) uint64 {
	return atomic.LoadUint64(&w.a.buckets[(e-1)/4][(e-1)%4].engine)
}

// teacher returns the source that taught an entry of the aliases, given plus one. It
// returns nil if the source is gone.
func (w *snapWalk) teacher(e uint32) *snapSource {
	if by := atomic.LoadUint32(&w.a.by[e-1]); by != 0 && int(by) <= len(w.sources) {
		return w.sources[by-1]
	}
	return nil
}

// held reports whether anybody holds the block in a slot.
func (s *Snapshot) held(i uint32) bool {
	for range s.holders(i) {
		return true
	}
	return false
}

// holders yields the owners that hold the block in a slot.
func (s *Snapshot) holders(i uint32) iter.Seq[*snapOwner] {
	return func(yield func(*snapOwner) bool) {
		words, first := s.g.sets.of(s.words[i] >> setShift)
		for k, word := range words {
			for word &^= s.retired[first+k]; word != 0; word &= word - 1 {
				if o := s.owners[uint32(first+k)<<6+trailing(word)]; o != nil && !yield(o) {
					return
				}
			}
		}
	}
}

// Labels calls f for the label of every key that is held and of every block that
// waits. f must not call the index.
func (x *Index) Labels(f func(label uint64)) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	t := x.gen.Load().table
	for i := range t.labels {
		label := atomic.LoadUint64(&t.labels[i])
		if label != 0 && atomic.LoadUint32(&t.at(uint32(i)+1).word)>>setShift != 0 {
			f(label)
		}
	}
	for _, s := range x.sources {
		if s == nil {
			continue
		}
		s.mu.Lock()
		s.room.byEngine.all(func(_ uint64, i *int32) bool { f(s.room.links[*i].label); return true })
		s.mu.Unlock()
	}
}
