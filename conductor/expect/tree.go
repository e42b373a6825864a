package expect

import (
	"container/heap"
	"slices"

	"example.com/conductor/conductor/steady"
)

// insertPrompt makes the blocks of a prompt expected, and returns the node with the last of them; nil for a prompt
// without blocks. The table's lock is held.
func (t *Target) insertPrompt(keys []uint64, now int64) (leaf *node) {
	for len(keys) > 0 {
		p := t.findNode(keys[0])
		for p != nil && leaf != nil && !p.attachTo(leaf) {
			p = p.next.firstOf(t)
		}
		if p == nil {
			return t.addNode(leaf, keys, now)
		}
		n := commonPrefix(p.keys, keys)
		if n < len(p.keys) {
			p = t.splitNode(p, n)
		}
		leaf, keys = p, keys[n:]
	}
	return leaf
}

// attachTo reports whether a node is behind another one in the tree. If nothing is in front of the node yet, because the
// target had those blocks when the node was reported, or has announced them since, attachTo first makes parent its parent.
func (p *node) attachTo(parent *node) bool {
	above := p.liveParent()
	q := parent
	for ; q != above && q != nil; q = q.liveParent() {
		if q == p || q.born <= p.last { // a client's hashes may repeat, or its reports contradict each other
			return false
		}
	}
	if q == above {
		p.parent = parent
	}
	return q == above
}

// liveParent returns the node with the blocks in front of this one, nil if there is none. It skips parents that have left
// the tree, and forgets them.
func (p *node) liveParent() *node {
	for p.parent != nil && p.parent.gone {
		p.parent = p.parent.parent
	}
	return p.parent
}

// findNode returns the node of the target whose first block has this key, nil if there is none.
func (t *Target) findNode(key uint64) *node { return t.space.firstNode(key).firstOf(t) }

// firstNode returns a node that begins with a block, from which next leads to all others; nil if there is none.
func (s *Space) firstNode(key uint64) *node {
	if !s.sieve.has(key) {
		return nil
	}
	return s.heads[key]
}

// firstOf returns the first node of a target in the list that begins with p, nil if it has none there.
func (p *node) firstOf(t *Target) *node {
	for p != nil && p.target != t {
		p = p.next
	}
	return p
}

// commonPrefix returns how many leading keys of two lists are equal.
func commonPrefix(a, b []uint64) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// addNode makes a node of new blocks behind a parent, and returns it; the parent, if the blocks contradict earlier reports.
func (t *Target) addNode(parent *node, keys []uint64, now int64) *node {
	p := &node{target: t, parent: parent, keys: slices.Clone(keys), room: int32(len(keys)), born: t.space.table.totals.Reports, since: now}
	if t.Capacity > 0 {
		p.until = -1
	}
	t.linkNewest(p)
	t.adjustCounts(len(keys), nodeBytes+len(keys)*keyBytes)
	if t.addHead(p); p.gone {
		return parent
	}
	return p
}

// adjustCounts adds to the number of blocks that are expected, and to the bytes that they take. Both may be negative.
func (t *Target) adjustCounts(blocks, bytes int) {
	t.blocks += int64(blocks)
	t.space.blocks.Add(int64(blocks))
	t.space.table.totals.Pending += t.space.tokensOf(blocks)
	t.space.table.addBytes(t, int64(bytes))
	t.noteAwaits()
}

// splitNode divides a node behind its first n blocks, and returns the first part. The second stays the node of the
// expectations that end there.
func (t *Target) splitNode(p *node, n int) (first *node) {
	t.removeHead(p)
	first = &node{target: t, parent: p.parent, keys: slices.Clone(p.keys[:n]), room: int32(n), uses: p.uses, born: p.born, last: p.last,
		since: p.since, until: p.until}
	p.parent = first
	freed := p.keepKeys(p.keys[n:])
	if first.until > 0 {
		heap.Push(&t.ends, first)
	}
	t.linkAfter(first, p)
	t.adjustCounts(0, nodeBytes+n*keyBytes-freed)
	t.addHead(first)
	t.addHead(p)
	return first
}

// keepKeys leaves only some of a node's keys in it, and returns how many bytes that frees. It frees nothing until less than
// half of their memory is in use: then it copies them.
func (p *node) keepKeys(keys []uint64) (freed int) {
	if p.keys = keys; len(keys) < int(p.room)/2 {
		freed = (int(p.room) - len(keys)) * keyBytes
		p.keys, p.room = slices.Clone(keys), int32(len(keys))
	}
	return freed
}

// mostTwins bounds the nodes of a target that begin with one block. Reports make a second one if the engine has
// evicted blocks before it in between. More come from hashes that a client invents, and each report would walk them all.
const mostTwins = 4

// addHead enters a node into heads, under its first block. If the target has too many nodes under that block, the node is
// removed at once.
func (t *Target) addHead(p *node) {
	if len(p.keys) == 0 {
		return
	}
	if t.space.heads == nil {
		t.space.heads = make(map[uint64]*node)
	}
	s, key := t.space, p.keys[0]
	p.next = s.firstNode(key)
	if s.heads[key] = p; p.next == nil && !s.sieve.add(key) {
		s.sieve.rebuildFor(s.heads)
	}
	twins := 0
	for q := p; q != nil; q = q.next.firstOf(t) {
		twins++
	}
	if twins > mostTwins {
		t.removeNode(p, Dropped)
	}
}

// removeHead takes a node out of heads.
func (t *Target) removeHead(p *node) {
	if len(p.keys) == 0 {
		return
	}
	s, key := t.space, p.keys[0]
	if s.heads[key] == p {
		if p.next != nil {
			s.heads[key] = p.next
		} else {
			delete(s.heads, key)
			s.sieve.remove(key)
			if shrinkMap(&s.heads, &s.mostHeads) {
				s.sieve.rebuildFor(s.heads)
			}
			if len(s.heads) == 0 {
				s.named.Store(false)
			}
		}
	} else {
		before := s.heads[key]
		for before.next != p {
			before = before.next
		}
		before.next = p.next
	}
	p.next = nil
}

// linkNewest makes a node the one that was used last.
func (t *Target) linkNewest(p *node) {
	if p.older = t.newest; p.older != nil {
		p.older.newer = p
	} else {
		t.oldest = p
	}
	t.newest = p
}

// linkAfter makes a node the next one to be used after another.
func (t *Target) linkAfter(p, other *node) {
	p.older, p.newer = other, other.newer
	if p.newer != nil {
		p.newer.older = p
	} else {
		t.newest = p
	}
	other.newer = p
}

// unlink takes a node out of the list by use.
func (t *Target) unlink(p *node) {
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		t.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		t.newest = p.older
	}
	p.older, p.newer = nil, nil
}

// touchPrompt makes a prompt the one that was reported last for an approximate target. It evicts what is beyond the
// capacity then: the last blocks of the prompt that was reported longest ago.
func (t *Target) touchPrompt(leaf *node, now int64, ttl int64) {
	if leaf == nil {
		return
	}
	t.space.table.tenant(t.space.owner).approximate[t] = true
	for p := leaf; p != nil; p = p.liveParent() { // a node is used after those behind it
		t.unlink(p)
		t.linkNewest(p)
		if ttl == 0 {
			t.setUntil(p, 0)
		} else if p.until != 0 {
			t.setUntil(p, max(p.until, now+ttl))
		}
	}
	for more := int(t.blocks) - t.Capacity; more > 0; more = int(t.blocks) - t.Capacity {
		if p := t.oldest; more >= len(p.keys) {
			t.removeNode(p, Evicted)
		} else {
			freed := p.keepKeys(p.keys[:len(p.keys)-more])
			t.countEnded(Evicted, more)
			t.adjustCounts(-more, -freed)
		}
	}
}

// setUntil sets when a node leaves an approximate target, and keeps the heap of those that do.
func (t *Target) setUntil(p *node, until int64) {
	was := p.until
	switch p.until = until; {
	case was > 0 && until > 0:
		heap.Fix(&t.ends, p.position)
	case was > 0:
		heap.Remove(&t.ends, p.position)
	case until > 0:
		heap.Push(&t.ends, p)
	}
}

// expireBlocks removes the blocks of an approximate target whose time is over.
func (t *Target) expireBlocks(now int64) {
	for len(t.ends) > 0 && t.ends[0].until <= now {
		t.removeNode(t.ends[0], Evicted)
	}
}

// removeNode takes a node out of its tree.
func (t *Target) removeNode(p *node, why Ending) {
	n := len(p.keys)
	if why == Expired && n > 0 {
		t.rememberExpired(p)
	}
	t.countEnded(why, n)
	t.removeHead(p)
	t.unlink(p)
	t.setUntil(p, 0)
	room := int(p.room)
	p.keys, p.room, p.gone = nil, 0, true
	if t.oldest == nil && t.Capacity > 0 {
		delete(t.space.table.tenants[t.space.owner].approximate, t)
	}
	t.adjustCounts(-n, -nodeBytes-room*keyBytes)
}

// endAll ends all reports for the target, and removes the blocks that are still expected of it.
func (t *Target) endAll(why Ending) {
	table := t.space.table
	if of := table.tenants[t.space.owner]; of != nil {
		for e := of.oldest; e != nil && t.open > 0; {
			next := e.newer
			if e.target == t {
				table.endExpectation(e, why)
			}
			e = next
		}
	}
	for t.oldest != nil {
		t.removeNode(t.oldest, why)
	}
	t.late = nil
	t.endDoubt()
	t.noteAwaits()
}

// confirmBlocks ends expected blocks that the target has announced, and returns how many. Those that turn out to be there
// already do not count. Blocks are found at the beginning of nodes, because engines announce a prompt from its
// beginning on.
func (t *Target) confirmBlocks(keys []uint64, now int64, counts bool) (confirmed int) {
	for i := range keys {
		for p := t.findNode(keys[i]); p != nil; p = t.findNode(keys[i]) {
			n := commonPrefix(p.keys, keys[i:])
			if counts {
				t.delays.add(now-p.since, n)
				t.countEnded(Confirmed, n)
				t.confirmed = now
			}
			confirmed += n
			t.removeHead(p)
			freed := p.keepKeys(p.keys[n:])
			t.adjustCounts(-n, -freed)
			if len(p.keys) == 0 {
				t.removeNode(p, Confirmed)
			} else {
				t.addHead(p)
			}
		}
		if len(t.late) > 0 && counts {
			t.learnLateBlock(keys[i], now)
		}
	}
	return confirmed
}

// Found is blocks [From, To) of a prompt that are expected of a target.
type Found struct {
	*Target
	From, To uint32
}

// Prompt is the keys of the blocks of a prompt, possibly computed when asked for.
type Prompt interface {
	Len() int
	At(i int) uint64
}

// Match appends the stretches of a prompt that each target is expected to have, sorted by From. mix is XORed into the keys. The first
// held blocks of the prompt have owners; behind them Match stops at the first block that is expected nowhere. The stretches of one
// target do not overlap.
func (s *Space) Match(dst []Found, prompt Prompt, mix uint64, held int) []Found {
	if s.Empty() {
		return dst
	}
	t := s.table
	now := steady.Nanos(t.now())
	if end := t.nextEnd.Load(); end != 0 && end <= now {
		t.mu.Lock()
		t.expireReports(now)
		t.mu.Unlock()
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	var some [8]walk
	var buffer [window]uint64
	walks, from, reach := some[:0], len(dst), held
	for base := 0; base < prompt.Len() && base <= reach; base += window {
		keys := buffer[:min(window, prompt.Len()-base)]
		for i := range keys {
			keys[i] = prompt.At(base+i) ^ mix
		}
		left := walks[:0]
		for _, w := range walks {
			n := commonPrefix(w.p.keys[w.at:], keys)
			dst[w.found].To = max(dst[w.found].To, uint32(base+n))
			if reach = max(reach, base+n); n == len(keys) {
				left = append(left, walk{w.p, w.at + n, w.found})
			}
		}
		walks = left
		for i := 0; i < len(keys) && base+i <= reach; i++ {
			for p := s.firstNode(keys[i]); p != nil; p = p.next {
				if p.until != 0 && p.until <= now {
					continue
				}
				n := commonPrefix(p.keys, keys[i:])
				found := addStretch(&dst, from, p.target, base+i, base+i+n)
				if reach = max(reach, base+i+n); i+n == len(keys) {
					walks = append(walks, walk{p, n, found})
				}
			}
		}
	}
	return dst[:from+cutToWhole(dst[from:])]
}

// cutToWhole leaves out what targets do not use because the prompt does not have all of it (Report.Whole). It returns how
// many stretches are left, which it moves to the beginning of the list.
func cutToWhole(all []Found) (n int) {
	for _, f := range all {
		if f.To -= f.To % max(f.Target.whole, 1); f.From < f.To {
			all[n] = f
			n++
		}
	}
	clear(all[n:])
	return n
}

// window is how many keys of a prompt Match asks for at a time.
const window = 16

// walk is how far Match has come in a node, all of whose blocks before at are in the prompt.
type walk struct {
	p     *node
	at    int // the next one of its keys
	found int // place of its stretch in the list of what was found
}

// addStretch adds blocks [from, to) of a target to a list, whose part from first on is of the same prompt. They become a
// part of a stretch that reaches them, if there is one. It returns the index of their stretch in the list.
func addStretch(all *[]Found, first int, t *Target, from, to int) int {
	for at := len(*all) - 1; at >= first; at-- {
		if f := &(*all)[at]; f.Target == t && int(f.To) >= from {
			f.To = max(f.To, uint32(to))
			return at
		}
	}
	*all = append(*all, Found{t, uint32(from), uint32(to)})
	return len(*all) - 1
}
