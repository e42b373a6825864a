package index

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
)

// Snapshot is what an index holds at one moment: 24 bytes a block, and the owner sets. A
// walk holds nothing up, and may take as long as it likes.
type Snapshot struct {
	x          *Index
	pieces     []snapPiece
	local      []uint64 // by block: local hash, of a loose block the key
	engine     []uint64 // by block of a chain; 0 is none
	clientHash []uint64 // by block; nil if all are local hashes
	set        []uint32 // by block
	width      int      // words of a set
	bits       []uint64 // of the sets
	sources    []*snapSource
	families   []Source
	owners     map[uint32]*snapOwner // by internal id
	tree       *snapTree             // made by the first walk
	unified    bool                  // one name for each block, see Unify
}

// snapPiece is a piece as it was.
type snapPiece struct {
	line, by   uint32
	begin, end int // blocks
	prev       uint32
	head, up   uint64
	loose      bool
	root       root // the identity
	sides      []snapSide
}

// snapSide is further names of a piece as they were.
type snapSide struct {
	from, by uint32
	engine   []uint64
}

// snapSource is a source as it was.
type snapSource struct {
	name    Source
	own     map[uint64]uint64   // engine hash -> block, where it differs from what others mean
	private map[uint64][]uint64 // the reverse
	links   map[uint64]link     // by engine hash
	waiting []uint64            // engine hashes of links, the oldest first
	rank    int                 // place among the sources of a unified snapshot
	holds   int                 // block whose name is elected, plus one, where the source holds it
	teaches int                 // the same, where the source taught a name of the block
}

// snapOwner is an owner as it was.
type snapOwner struct {
	name   Owner
	id     uint32 // internal
	source *snapSource
	copies map[uint64]uint32 // by block
	wanted bool
	run    Stretch // what the walk has of it that is not handed out yet
	last   int     // its last block, plus one
}

// Stretch is blocks of one owner, each behind the one before. Its slices
// are valid until f returns.
type Stretch struct {
	Owner Owner
	// Root says that the first block begins prompts. Else Parent is the engine hash
	// of the block before, if HasParent: one that the owner holds, that another
	// holds, that, if Gone, no owner holds any more, so that the hash may be another
	// block's by now, or, if Waiting, one that no event has announced.
	Root, HasParent, Gone, Waiting bool
	Parent                         uint64
	// Key of the first block, if HasKey; not where it is Waiting. It is a canonical sequence hash.
	Key    uint64
	HasKey bool
	// Identity of the blocks; of one that is Waiting that of its client hash, which is a guess.
	Identity Identity
	// Engine hashes and client hashes of the blocks. A block without tokens has the client
	// hash 0, and is a stretch of its own.
	Engine, ClientHashes []uint64
	// Copies beyond the first, by position; nil where there are none.
	Copies map[int]int
	// More are further engine hashes of blocks, by position; nil where there are none.
	More map[int][]uint64
}

// longest bounds what the walk gathers of an owner.
const longest = 512

// Snapshot returns what the index holds now. Options.KeepClientHashes must be set.
func (x *Index) Snapshot() *Snapshot { return x.Cut().Snapshot() }

// moment returns a snapshot without blocks. All lanes are locked.
func (x *Index) moment() *Snapshot {
	s := &Snapshot{x: x, owners: make(map[uint32]*snapOwner), families: make([]Source, len(x.families))}
	for i := range s.families {
		s.families[i] = x.family(Source(i))
	}
	if x.wide || x.looseBlocks.Load() > 0 || x.identities.some() {
		s.clientHash = []uint64{}
	}
	b := x.sets.body.Load()
	s.width, s.bits = b.width, slices.Clone(b.bits[:int(x.sets.n)*b.width])
	s.sources = make([]*snapSource, len(x.sources))
	for i, src := range x.sources {
		if src != nil {
			s.sources[i] = x.snapshotOf(src)
		}
	}
	for _, o := range x.owners {
		if o == nil || o.digest.Blocks == 0 {
			continue
		}
		so := &snapOwner{name: o.name, id: o.id, source: s.sources[o.s.name], run: Stretch{Owner: o.name}}
		if o.copies.len() > 0 {
			so.copies = make(map[uint64]uint32, o.copies.len())
			o.copies.all(func(p place, n uint32) { so.copies[p.ref()] = n })
		}
		s.owners[o.id] = so
	}
	return s
}

// add adds a piece.
func (s *Snapshot) add(c *copiedPiece) {
	p, k := c.snapPiece, len(c.local)
	p.begin, p.end, p.sides = len(s.local), len(s.local)+k, slices.Clone(p.sides)
	s.local = append(s.local, c.local...)
	if p.loose {
		s.engine = append(s.engine, make([]uint64, k)...)
	} else {
		s.engine = append(s.engine, c.engine...)
	}
	if s.clientHash != nil {
		switch {
		case len(c.clientHash) > 0:
			s.clientHash = append(s.clientHash, c.clientHash...)
		case p.loose:
			s.clientHash = append(s.clientHash, make([]uint64, k)...)
		default:
			s.clientHash = append(s.clientHash, c.local...)
		}
	}
	start := uint32(0)
	for _, v := range c.intervals {
		for ; start < v.end; start++ {
			s.set = append(s.set, v.set)
		}
	}
	s.pieces = append(s.pieces, p)
}

func (x *Index) snapshotOf(s *source) *snapSource {
	n := &snapSource{name: s.name}
	if s.private.len() > 0 {
		n.own, n.private = make(map[uint64]uint64, s.private.len()), make(map[uint64][]uint64, s.private.len())
		s.private.all(func(engine uint64, ref *uint64) bool {
			n.own[engine] = *ref
			n.private[*ref] = append(n.private[*ref], engine)
			return true
		})
	}
	if s.room.used > 0 {
		n.links = make(map[uint64]link, s.room.used)
		for i := s.room.oldest; i != none; i = s.room.links[i].newer {
			l := s.room.links[i]
			if !x.identities.living(l.of) {
				l.clientHash, l.of = 0, root{}
			}
			n.links[l.engine], n.waiting = l, append(n.waiting, l.engine)
		}
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
// a wanted owner holds comes before its children. One goroutine walks at a time.
func (s *Snapshot) Walk(want func(Owner) bool, f func(*Stretch) bool) {
	s.plant()
	w := &snapWalk{Snapshot: s, f: f, polls: make(map[Source]poll)}
	w.private = slices.ContainsFunc(s.sources, func(n *snapSource) bool { return n != nil && len(n.private) > 0 })
	for _, o := range s.owners {
		o.wanted = want(o.name)
	}
	for i := range s.pieces {
		if s.tree.parent[i] != 0 {
			continue
		}
		for w.stack = append(w.stack[:0], i); len(w.stack) > 0 && !w.ended; {
			at := w.stack[len(w.stack)-1]
			w.stack = w.stack[:len(w.stack)-1]
			w.visitPiece(at)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.owners)) {
		w.flush(s.owners[id])
	}
}

// snapTree is how the pieces of a snapshot hang together.
type snapTree struct {
	keys   []uint64 // by block
	parent []int    // by piece: the block before its first one, plus one
	// The pieces behind the blocks of a piece are a list: first by piece, next by child,
	// both plus one.
	first, next []int
	names       map[uint64]int // engine hashes that a source means alone -> block of others, plus one
	// Of a unified snapshot: the one name of a block, 0 before elect was asked.
	elected []uint64
}

// plant makes the tree.
func (s *Snapshot) plant() {
	if s.tree != nil {
		return
	}
	n := len(s.pieces)
	t := &snapTree{keys: make([]uint64, len(s.local)), parent: make([]int, n), first: make([]int, n), next: make([]int, n)}
	s.tree = t
	if s.unified {
		t.elected = make([]uint64, len(s.local))
	}
	byLine := make(map[uint32]int, n)
	for i := range s.pieces {
		p := &s.pieces[i]
		byLine[p.line] = i
		if p.loose {
			copy(t.keys[p.begin:p.end], s.local[p.begin:p.end])
			continue
		}
		key := p.head
		for b := p.begin; b < p.end; b++ {
			if b > p.begin {
				key = s.x.follow(key, p.root.constant, s.local[b])
			}
			t.keys[b] = key
		}
	}
	// The hint leads to the parent, unless that has left and come back. Then its engine
	// hash does.
	lost := make(map[uint64][]int)
	type child struct{ piece, block int }
	var found []child
	for i := range s.pieces {
		p := &s.pieces[i]
		if p.up == 0 {
			continue
		}
		if at, ok := byLine[p.prev]; ok {
			b := s.pieces[at].end - 1
			for b >= s.pieces[at].begin && !s.precedes(at, b, i) {
				b--
			}
			if b >= s.pieces[at].begin {
				found = append(found, child{i, b})
				continue
			}
		}
		lost[p.up] = append(lost[p.up], i)
	}
	if len(lost) > 0 {
		for i := range s.pieces {
			for b := s.pieces[i].begin; b < s.pieces[i].end; b++ {
				for engine := range s.namesOf(i, b) {
					lost[engine] = slices.DeleteFunc(lost[engine], func(c int) bool {
						if !s.precedes(i, b, c) {
							return false
						}
						found = append(found, child{c, b})
						return true
					})
				}
			}
		}
	}
	at := make([]int, len(found)) // pieces of the parents
	for i, c := range found {
		k, _ := slices.BinarySearchFunc(s.pieces, c.block, func(p snapPiece, b int) int { return cmp.Compare(p.end, b+1) })
		at[i] = k
		t.parent[c.piece] = c.block + 1
	}
	for i, c := range found {
		t.next[c.piece], t.first[at[i]] = t.first[at[i]], c.piece+1
	}
	s.unhook()
	for _, src := range s.sources {
		if src != nil && len(src.own) > 0 {
			s.nameOthers()
			break
		}
	}
}

// precedes reports whether a block is the one before the first block of a piece.
func (s *Snapshot) precedes(piece, block, child int) bool {
	return !s.pieces[piece].loose && s.x.follow(s.tree.keys[block], s.pieces[piece].root.constant, s.local[s.pieces[child].begin]) == s.pieces[child].head
}

// unhook makes a root of a piece of each circle. Keys that two chains have by chance, or
// by an attacker's choice, could close one.
func (s *Snapshot) unhook() {
	t := s.tree
	state := make([]int8, len(s.pieces))
	var path []int
	for i := range s.pieces {
		at := i
		for path = path[:0]; state[at] == 0; {
			state[at] = 1
			path = append(path, at)
			if t.parent[at] == 0 {
				break
			}
			up, _ := slices.BinarySearchFunc(s.pieces, t.parent[at]-1, func(p snapPiece, b int) int { return cmp.Compare(p.end, b+1) })
			if state[up] == 1 {
				t.parent[at] = 0
				break
			}
			at = up
		}
		for _, at := range path {
			state[at] = 2
		}
	}
}

// nameOthers finds what others mean by the engine hashes that a source means alone.
func (s *Snapshot) nameOthers() {
	t := s.tree
	t.names = make(map[uint64]int)
	for _, src := range s.sources {
		if src != nil {
			for engine := range src.own {
				t.names[engine] = 0
			}
		}
	}
	for i := range s.pieces {
		for b := s.pieces[i].begin; b < s.pieces[i].end; b++ {
			for engine := range s.namesOf(i, b) {
				if _, ok := t.names[engine]; ok && s.held(b) {
					t.names[engine] = b + 1
				}
			}
		}
	}
}

// namesOf yields the names of a block that all mean, each with its teacher plus one.
func (s *Snapshot) namesOf(piece, block int) iter.Seq2[uint64, uint32] {
	return func(yield func(uint64, uint32) bool) {
		p := &s.pieces[piece]
		if s.engine[block] != 0 && !yield(s.engine[block], p.by) {
			return
		}
		at := uint32(block - p.begin)
		for i := range p.sides {
			d := &p.sides[i]
			if k := at - d.from; k < uint32(len(d.engine)) && d.engine[k] != 0 && !yield(d.engine[k], d.by) {
				return
			}
		}
	}
}

// ref returns the reference of a block.
func (s *Snapshot) ref(piece, block int) uint64 {
	return place{s.pieces[piece].line, uint32(block - s.pieces[piece].begin)}.ref()
}

// clientHashOf returns the client hash of a block, 0 if its tokens are not known.
func (s *Snapshot) clientHashOf(block int) uint64 {
	if s.clientHash != nil {
		return s.clientHash[block]
	}
	return s.local[block]
}

// snapWalk is a walk.
type snapWalk struct {
	*Snapshot
	f     func(*Stretch) bool
	ended bool
	stack []int
	found []uint64 // buffer of names
	// For elect: whether any source has private names, and how each family votes.
	private bool
	polls   map[Source]poll
}

// poll is the number of votes for a name, and the lowest rank of the voters.
type poll struct{ votes, rank int }

func (p poll) with(s *snapSource) poll { return poll{p.votes + 1, min(p.rank, s.rank)} }

// visitPiece adds the blocks of a piece to what the owners hold, and puts the pieces
// behind it on the stack, that behind its last block on top.
func (w *snapWalk) visitPiece(i int) {
	p := &w.pieces[i]
	for b := p.begin; b < p.end && !w.ended; b++ {
		for o := range w.holders(b) {
			if o.wanted {
				w.visit(i, b, o)
			}
		}
	}
	var last []int
	for c := w.tree.first[i]; c != 0; c = w.tree.next[c-1] {
		switch w.tree.parent[c-1] {
		case 0:
		case p.end:
			last = append(last, c-1)
		default:
			w.stack = append(w.stack, c-1)
		}
	}
	w.stack = append(w.stack, last...)
}

// before returns the block before another one, plus one, and its piece.
func (w *snapWalk) before(piece, block int) (up, at int) {
	p := &w.pieces[piece]
	switch {
	case p.loose:
		return 0, 0
	case block > p.begin:
		return block, piece
	}
	up = w.tree.parent[piece]
	if up != 0 {
		at, _ = slices.BinarySearchFunc(w.pieces, up-1, func(p snapPiece, b int) int { return cmp.Compare(p.end, b+1) })
	}
	return up, at
}

// visit adds a block to what an owner holds.
func (w *snapWalk) visit(piece, b int, o *snapOwner) {
	key, clientHash := w.tree.keys[b], w.clientHashOf(b)
	if w.pieces[piece].loose && w.clientHash == nil {
		clientHash = 0
	}
	up, above := w.before(piece, b)
	r := &o.run
	if up == 0 || up != o.last || clientHash == 0 || len(r.Engine) == longest {
		w.flush(o)
		w.begin(piece, b, up, above, o, clientHash)
	}
	at, names := len(r.Engine), w.names(piece, b, o.source)
	r.Engine, r.ClientHashes = append(r.Engine, plain(names[0])), append(r.ClientHashes, clientHash)
	if r.Waiting {
		r.ClientHashes[at] = o.source.links[key].clientHash
	}
	if n := o.copies[w.ref(piece, b)]; n > 0 {
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
	o.last = b + 1
	if clientHash == 0 {
		w.flush(o)
	}
}

// begin starts a stretch at a block.
func (w *snapWalk) begin(piece, b, up, above int, o *snapOwner, clientHash uint64) {
	r, key, p := &o.run, w.tree.keys[b], &w.pieces[piece]
	r.Key, r.HasKey, r.Identity = p.root.seq(key), true, p.root.id
	if clientHash == 0 {
		if l, ok := o.source.links[key]; ok && w.pieces[piece].loose {
			r.Waiting, r.HasParent, r.Parent = true, true, plain(l.parent)
			r.Key, r.HasKey, r.Identity = 0, false, l.of.id
		}
		return
	}
	if up != 0 && (b != p.begin || w.held(up-1)) {
		if !w.holds(o, up-1) {
			for p := range w.holders(up - 1) { // p and o may belong to one worker
				w.flush(p)
			}
		}
		r.HasParent, r.Gone = true, !w.held(up-1)
		if w.ownNames(above, up-1, o.source); !r.Gone || len(w.found) == 0 {
			w.names(above, up-1, o.source)
		}
		r.Parent = plain(w.found[0])
		return
	}
	if b != p.begin || p.loose {
		return
	}
	if r.Root = p.up == 0 && p.root.first(w.local[b]) == key; p.up != 0 {
		r.HasParent, r.Parent, r.Gone = true, plain(p.up), true
	}
}

// flush hands out what has been gathered of an owner.
func (w *snapWalk) flush(o *snapOwner) {
	r := &o.run
	if len(r.Engine) > 0 && !w.ended {
		w.ended = !w.f(r)
	}
	*r = Stretch{Owner: o.name, Engine: r.Engine[:0], ClientHashes: r.ClientHashes[:0]}
	o.last = 0
}

// names returns the engine hashes a source uses for a block: its own, what it has taught
// itself first, and those its family has taught; else one that an owner of the block
// uses, so that a reader comes across it, else any, else the key itself. They are valid
// until the next call.
func (w *snapWalk) names(piece, b int, src *snapSource) []uint64 {
	if w.unified {
		if w.tree.elected[b] == 0 {
			w.tree.elected[b] = w.elect(piece, b)
		}
		w.found = append(w.found[:0], w.tree.elected[b])
		return w.found
	}
	if w.ownNames(piece, b, src); len(w.found) > 0 {
		return w.found
	}
	for o := range w.holders(b) {
		if w.ownNames(piece, b, o.source); len(w.found) > 0 {
			return w.found[:1]
		}
	}
	name := w.tree.keys[b]
	for engine := range w.namesOf(piece, b) {
		name = engine
	}
	w.found = append(w.found, name)
	return w.found
}

// ownNames finds the names that a source itself uses.
func (w *snapWalk) ownNames(piece, b int, src *snapSource) {
	w.found = append(w.found[:0], src.private[w.ref(piece, b)]...)
	own := len(w.found)
	for engine, by := range w.namesOf(piece, b) {
		if _, other := src.own[engine]; other {
			continue
		}
		switch {
		case by == uint32(src.name)+1: // a family may have come of one hash in common
			w.found = slices.Insert(w.found, own, engine)
			own++
		case by != 0 && w.families[by-1] == w.families[src.name]:
			w.found = append(w.found, engine)
		}
	}
}

// elect returns the name of a block for all owners, by a vote of the sources that hold the
// block. A source votes for the engine hashes it has taught, else for those of its family.
// Of equal votes the name wins whose voter has the lowest rank. Without votes, the only
// holder's private hash is the name, unless that source holds another block of the name.
// The last choice is the key.
func (w *snapWalk) elect(piece, b int) uint64 {
	clear(w.polls)
	only, names := uint64(0), 0
	for engine, by := range w.namesOf(piece, b) {
		only, names = engine, names+1
		if by == 0 {
			continue
		}
		w.polls[w.families[by-1]] = poll{rank: math.MaxInt}
		if s := w.teacher(by); s != nil {
			s.teaches = b + 1
		}
	}
	if names == 1 && !w.private {
		return only
	}
	holders, last := 0, (*snapSource)(nil)
	for o := range w.holders(b) {
		s := o.source
		if s.holds == b+1 {
			continue
		}
		s.holds, last = b+1, s
		holders++
		if s.teaches == b+1 || len(s.private[w.ref(piece, b)]) > 0 {
			continue
		}
		if p, ok := w.polls[w.families[s.name]]; ok {
			w.polls[w.families[s.name]] = p.with(s)
		}
	}
	var name uint64
	var best poll
	for engine, by := range w.namesOf(piece, b) {
		p := poll{rank: math.MaxInt}
		if by != 0 {
			p = w.polls[w.families[by-1]]
			if s := w.teacher(by); s != nil && s.holds == b+1 {
				p = p.with(s)
			}
		}
		if name == 0 || p.votes > best.votes || p.votes == best.votes && p.rank < best.rank {
			name, best = engine, p
		}
	}
	if best.votes == 0 && holders == 1 {
		for _, engine := range last.private[w.ref(piece, b)] {
			if other := w.tree.names[engine]; other == 0 || !w.heldBy(last, other-1) {
				return engine
			}
		}
	}
	return cmp.Or(name, w.tree.keys[b])
}

// teacher returns the source that taught a name, given plus one. It returns nil if the
// source is gone.
func (s *Snapshot) teacher(by uint32) *snapSource {
	if by != 0 && int(by) <= len(s.sources) {
		return s.sources[by-1]
	}
	return nil
}

// heldBy reports whether a source holds a block.
func (s *Snapshot) heldBy(src *snapSource, b int) bool {
	for o := range s.holders(b) {
		if o.source == src {
			return true
		}
	}
	return false
}

func (s *Snapshot) holds(o *snapOwner, b int) bool {
	return s.bits[int(s.set[b])*s.width+int(o.id>>6)]>>(o.id&63)&1 != 0
}

// held reports whether an owner holds a block.
func (s *Snapshot) held(b int) bool {
	for range s.holders(b) {
		return true
	}
	return false
}

// holders yields the owners of a block.
func (s *Snapshot) holders(b int) iter.Seq[*snapOwner] {
	return func(yield func(*snapOwner) bool) {
		at := int(s.set[b]) * s.width
		for k, word := range s.bits[at : at+s.width] {
			for ; word != 0; word &= word - 1 {
				if o := s.owners[uint32(k)<<6+trailing(word)]; o != nil && !yield(o) {
					return
				}
			}
		}
	}
}

// ClientHashes calls f for the client hash of every block that is held or waits. f must
// not call the index.
func (x *Index) ClientHashes(f func(clientHash uint64)) {
	x.lock()
	defer x.unlock()
	x.allPieces(func(_ uint32, r *piece) {
		var room [maxPiece + 2]interval
		start := uint32(0)
		for _, v := range x.intervalsOf(r, &room) {
			for ; start < v.end; start++ {
				if clientHash := r.clientHash(start); v.set != 0 && clientHash != 0 {
					f(clientHash)
				}
			}
		}
	})
	for _, s := range x.sources {
		if s != nil {
			s.room.byEngine.all(func(_ uint64, i *int32) bool { f(s.room.links[*i].clientHash); return true })
		}
	}
}
