package relay

import (
	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/tiers"
)

// tree is what an engine holds, as blocks in the engine's own form.
//
//	nodes: hash --> node --> record (GPU) --> record (CPU)
//	                 | names: records that need it: those below, and those without tokens
//
// A record is one hash in one place. It has the bytes that its event had for this block; what
// all blocks of the event share is a template. A record whose copies are gone stays as long as
// its node has tokens that others need: a block below, or the same block in a place whose
// events carry hashes alone.
//
// Invariants:
//
//  1. A follower of the engine that counts copies, or knows presence alone, holds what the
//     tree's records say: copies, and whether the last event stored the block.
//  2. node.needs is the number of records whose parent the node is, and of its own records
//     without tokens.
//  3. A node without records that nothing needs is not in nodes.
//
// A tree belongs to one goroutine; a dump that was taken does not change.
type tree struct {
	nodes     map[uint64]*node
	places    map[placeKey]*place
	templates map[string]*template
	order     uint64 // of the newest record
	// doubtful: a payload was no batch, or an event cannot be split into blocks. Ends with a
	// clear of everything.
	doubtful bool
	clearing []byte // the newest event that cleared everything, nil before
	frame    frame
	n        TreeStats
	spread   spread
	raws     [][]byte
	falling  []*node // nodes that may have become unneeded
}

// TreeStats is what a tree has.
type TreeStats struct {
	Blocks int // records of blocks that the engine holds
	Kept   int // and of those that it holds no more
	Bytes  int64
	Unread uint64 // events and payloads that could not be read
}

// recordBytes is the memory of a record without its own bytes, about: with its node, and its
// share of the map.
const recordBytes = 170

type node struct {
	hash    uint64
	records *record
	needs   int
}

// record is one hash in one place. Only copies, absent and next change.
type record struct {
	node     *node
	parent   *node // nil for none
	place    *place
	template *template
	// own is the parent if there is one, the hash, the tokens, and an element of each list that
	// has one a block.
	own    []byte
	order  uint64
	next   *record // of the same hash
	copies int32
	absent bool // the last event removed the block, and copies are left
	tokens bool
	first  bool // of its event
}

// place is where blocks lie.
type place struct {
	key placeKey
	// removal is the form of the removals here, nil before the first.
	removal *form
}

// placeKey is a place as followers tell places apart.
type placeKey struct {
	medium string // canonical
	group  int
	owned  bool
}

// template is what blocks of an event share.
type template struct {
	form
	size  int // elements of token_ids that a block has
	lists int // that have one element a block
	// linked: tokens of a block tell of those of the next, so that blocks of different events
	// may contradict each other.
	linked bool
	refs   int
	key    string
}

// frame is a batch around its events.
type frame struct {
	before, after []byte
	pairs         bool // events are pairs
}

func newTree() *tree {
	return &tree{nodes: make(map[uint64]*node), places: make(map[placeKey]*place), templates: make(map[string]*template)}
}

func (t *tree) stats() TreeStats { return t.n }

// apply changes the tree as a batch of the engine says.
func (t *tree) apply(payload []byte) {
	b, err := wire.Decode(payload, wire.DefaultLimits)
	if err != nil {
		t.doubt()
		return
	}
	defer wire.Release(&b)
	list := t.frame.read(payload)
	raws, ok := elements(list, t.raws[:0])
	t.raws = raws
	switch {
	case !ok:
		t.doubt()
	case len(raws) == b.Count():
		for i := range b.Events {
			for e := range b.Events[i].Apart() {
				t.event(e, raws[0])
				raws = raws[1:]
			}
		}
	default: // the decoder left events out, as it does for followers
		for _, raw := range raws {
			t.alone(raw)
		}
	}
}

// alone applies one event.
func (t *tree) alone(raw []byte) {
	one := append(append(make([]byte, 0, len(raw)+12), 0x92, 0), 0x91)
	b, err := wire.Decode(append(one, raw...), wire.DefaultLimits)
	if err != nil || len(b.Events) != 1 {
		t.n.Unread++
		return
	}
	defer wire.Release(&b)
	t.event(&b.Events[0], raw)
}

// doubt notes what could not be read.
func (t *tree) doubt() {
	t.n.Unread++
	t.doubtful = true
}

func (t *tree) event(ev *events.Event, raw []byte) {
	if k, _, _ := header(raw); ev.Kind != events.Cleared {
		t.frame.pairs = k == pairs
	}
	switch {
	case ev.Envelope || ev.BaseBlock > 0:
		t.doubt()
	case ev.Kind == events.Stored:
		t.store(ev, raw)
	case ev.Kind == events.Removed:
		t.remove(ev, raw)
	case ev.Medium == "":
		t.clear()
		t.clearing = append([]byte(nil), raw...)
	default:
		t.clearMedium(tiers.Parse(ev.Medium).Name)
	}
}

func (t *tree) clear() {
	unread, clearing, frame := t.n.Unread, t.clearing, t.frame
	*t = *newTree()
	t.n.Unread, t.clearing, t.frame = unread, clearing, frame
}

// clearMedium removes all blocks of a medium.
func (t *tree) clearMedium(medium string) {
	var gone []*record
	for _, n := range t.nodes {
		for r := n.records; r != nil; r = r.next {
			if r.place.key.medium == medium && r.copies > 0 {
				gone = append(gone, r)
			}
		}
	}
	for _, r := range gone {
		t.leave(r)
	}
}

func (t *tree) placeOf(ev *events.Event) *place {
	medium := tiers.Parse(ev.Medium)
	key := placeKey{medium.Name, max(ev.Group, 0), ev.Owned}
	p := t.places[key]
	if p == nil {
		p = &place{key: key}
		t.places[key] = p
	}
	return p
}

func (t *tree) nodeOf(hash uint64) *node {
	n := t.nodes[hash]
	if n == nil {
		n = &node{hash: hash}
		t.nodes[hash] = n
	}
	return n
}

func (n *node) find(p *place) *record {
	for r := n.records; r != nil; r = r.next {
		if r.place == p {
			return r
		}
	}
	return nil
}

// store applies an event that stores blocks.
func (t *tree) store(ev *events.Event, raw []byte) {
	s, n := &t.spread, len(ev.Hashes)
	if !s.read(raw, n, slotOf) {
		t.doubt()
		return
	}
	size := s.tokens.len() / n
	if n > 1 && size*n != s.tokens.len() || ev.BlockSize > 0 && n > 1 && size != ev.BlockSize {
		size = 0 // the event leaves blocks out: its tokens pair with none
	}
	tmpl, p := t.templateOf(size), t.placeOf(ev)
	for i, hash := range ev.Hashes {
		var above *node
		switch {
		case i > 0:
			above = t.nodeOf(ev.Hashes[i-1])
		case ev.HasParent && s.parent != nil:
			above = t.nodeOf(ev.Parent)
		}
		t.storeBlock(t.nodeOf(hash), above, p, tmpl, i)
	}
	t.unuse(tmpl)
}

// storeBlock stores block i of the event that is spread.
func (t *tree) storeBlock(n, above *node, p *place, tmpl *template, i int) {
	r := n.find(p)
	switch {
	case r == nil:
		t.order++
		t.insert(&record{node: n, parent: above, place: p, order: t.order, copies: 1}, tmpl, i)
	case r.copies == 0:
		r.copies, r.absent = 1, false
		t.n.Blocks++
		t.n.Kept--
	case tmpl.size > 0 && !r.tokens: // now with tokens, and its parent may have come since
		t.order++
		next := &record{node: n, parent: above, place: p, order: t.order, copies: r.copies + t.further(p)}
		t.drop(r)
		t.insert(next, tmpl, i)
	default:
		r.copies += t.further(p)
		r.absent = false
	}
	t.fall()
	if above != nil {
		t.prune(above)
	}
}

// further returns how many copies a repeated store adds.
func (t *tree) further(p *place) int32 {
	if p.key.owned {
		return 0
	}
	return 1
}

// insert adds a record of block i of the event that is spread.
func (t *tree) insert(r *record, tmpl *template, i int) {
	r.template, r.tokens, r.first, r.own = tmpl, tmpl.size > 0, i == 0, t.ownOf(tmpl, r.parent != nil, i)
	r.next, r.node.records = r.node.records, r
	tmpl.refs++
	if r.parent != nil {
		r.parent.needs++
	}
	if !r.tokens {
		r.node.needs++
	}
	t.n.Blocks++
	t.n.Bytes += int64(recordBytes + len(r.own))
}

// ownOf returns the bytes that the event that is spread has for block i.
func (t *tree) ownOf(tmpl *template, hasParent bool, i int) []byte {
	s := &t.spread
	var parts [6][]byte
	all := parts[:0]
	switch {
	case i > 0:
		all = append(all, s.hashes.part(i-1, i))
	case hasParent:
		all = append(all, s.parent)
	}
	all = append(all, s.hashes.part(i, i+1))
	if tmpl.size > 0 {
		all = append(all, s.tokens.part(i*tmpl.size, (i+1)*tmpl.size))
	}
	for j := range s.perBlock {
		all = append(all, s.perBlock[j].part(i, i+1))
	}
	length := 0
	for _, p := range all {
		length += len(p)
	}
	own := make([]byte, 0, length)
	for _, p := range all {
		own = append(own, p...)
	}
	return own
}

// templateOf returns the template of the event that is spread, with one more use.
func (t *tree) templateOf(size int) *template {
	s, k := &t.spread, list
	if s.pairs {
		k = pairs
	}
	s.form = append(s.form, byte(size), byte(size>>8), byte(size>>16), byte(size>>24), byte(k))
	tmpl := t.templates[string(s.form)]
	if tmpl == nil {
		key := string(s.form)
		tmpl = &template{form: form{key[:len(key)-5], s.fields, s.pairs}, key: key, size: size, lists: len(s.perBlock), linked: s.linked}
		t.templates[key] = tmpl
	}
	tmpl.refs++
	return tmpl
}

// unuse ends one use of a template.
func (t *tree) unuse(tmpl *template) {
	if tmpl.refs--; tmpl.refs == 0 {
		delete(t.templates, tmpl.key)
	}
}

// remove applies an event that removes blocks.
func (t *tree) remove(ev *events.Event, raw []byte) {
	p := t.placeOf(ev)
	if s := &t.spread; s.read(raw, len(ev.Hashes), slotOfRemoval) {
		if p.removal == nil || string(s.form) != p.removal.text || s.pairs != p.removal.pairs {
			p.removal = &form{string(s.form), s.fields, s.pairs}
		}
	} else if p.removal == nil {
		t.doubt()
	}
	for i, hash := range ev.Hashes {
		n := t.nodes[hash]
		if n == nil {
			continue
		}
		r := n.find(p)
		switch {
		case r == nil || r.copies == 0:
		case ev.Remaining != nil && ev.Remaining[i] > 0:
			r.copies, r.absent = int32(min(ev.Remaining[i], 1<<30)), false
		case ev.Remaining == nil && r.copies > 1:
			r.copies--
			r.absent = true
		default:
			t.leave(r)
		}
	}
}

// leave takes the last copy of a record away.
func (t *tree) leave(r *record) {
	r.copies, r.absent = 0, false
	t.n.Blocks--
	t.n.Kept++
	t.falling = append(t.falling, r.node)
	t.fall()
}

// needed reports whether a record without copies has to stay: others need tokens, and it was
// the first of its node to have them.
func (r *record) needed() bool {
	if !r.tokens || r.node.needs == 0 {
		return false
	}
	for o := r.node.records; o != nil; o = o.next {
		if o.tokens && o.order < r.order {
			return false
		}
	}
	return true
}

// fall drops records that nothing needs any more.
func (t *tree) fall() {
	for len(t.falling) > 0 {
		n := t.falling[len(t.falling)-1]
		t.falling = t.falling[:len(t.falling)-1]
		for r := n.records; r != nil; {
			next := r.next
			if r.copies == 0 && !r.needed() {
				t.n.Kept--
				t.n.Blocks++
				t.drop(r)
				next = n.records
			}
			r = next
		}
		t.prune(n)
	}
}

// prune forgets a node that has nothing.
func (t *tree) prune(n *node) {
	if n.records == nil && n.needs == 0 && t.nodes[n.hash] == n {
		delete(t.nodes, n.hash)
	}
}

// drop takes a record out, as one that has copies. What it needed may fall then.
func (t *tree) drop(r *record) {
	n := r.node
	for at := &n.records; *at != nil; at = &(*at).next {
		if *at == r {
			*at = r.next
			break
		}
	}
	if !r.tokens {
		n.needs--
	}
	if r.parent != nil {
		r.parent.needs--
		t.falling = append(t.falling, r.parent)
	}
	t.falling = append(t.falling, n)
	t.unuse(r.template)
	t.n.Blocks--
	t.n.Bytes -= int64(recordBytes + len(r.own))
}
