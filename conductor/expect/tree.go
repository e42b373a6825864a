package expect

import "slices"

// insert makes the blocks of a prompt expected, and returns the piece with the last of them; nil for a prompt
// without blocks. The table's lock is held.
func (t *Target) insert(keys []uint64, now int64) (leaf *piece) {
	for len(keys) > 0 {
		p := t.find(keys[0])
		for p != nil && leaf != nil && !p.follows(leaf) {
			p = p.next.of(t)
		}
		if p == nil {
			return t.grow(leaf, keys, now)
		}
		n := common(p.keys, keys)
		if n < len(p.keys) {
			p = t.split(p, n)
		}
		leaf, keys = p, keys[n:]
	}
	return leaf
}

// follows reports whether a piece is behind another one in the tree. If an earlier report began with the piece, because the
// target had the blocks before it then, or if those have been announced since, follows puts it there first.
func (p *piece) follows(parent *piece) bool {
	above := p.above()
	q := parent
	for ; q != above && q != nil; q = q.above() {
		if q == p || q.born <= p.last { // a client's hashes may repeat, or its reports contradict each other
			return false
		}
	}
	if q == above {
		p.parent = parent
	}
	return q == above
}

// above returns the next piece on the way to the beginning of the prompt, nil if there is none. It forgets parents that
// have left the tree.
func (p *piece) above() *piece {
	for p.parent != nil && p.parent.gone {
		p.parent = p.parent.parent
	}
	return p.parent
}

// find returns a piece of the target that begins with a block, nil if none does.
func (t *Target) find(key uint64) *piece { return t.space.first(key).of(t) }

// first returns a piece that begins with a block, from which next leads to all others; nil if there is none.
func (s *Space) first(key uint64) *piece {
	if !s.sieve.has(key) {
		return nil
	}
	return s.heads[key]
}

// of returns the piece itself or the next one under the same key that is of a target, nil if none is.
func (p *piece) of(t *Target) *piece {
	for p != nil && p.target != t {
		p = p.next
	}
	return p
}

// common returns how many leading keys of two lists are equal.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// grow makes a piece of new blocks behind a parent.
func (t *Target) grow(parent *piece, keys []uint64, now int64) *piece {
	p := &piece{target: t, parent: parent, keys: slices.Clone(keys), room: int32(len(keys)), born: t.space.table.totals.Reports, since: now}
	if t.Capacity > 0 {
		p.until = -1
	}
	t.enter(p)
	t.link(p)
	t.count(len(keys), pieceBytes+len(keys)*keyBytes)
	return p
}

// count changes how many blocks are expected, and what they take.
func (t *Target) count(blocks, bytes int) {
	t.blocks += int64(blocks)
	t.space.blocks.Add(int64(blocks))
	t.space.table.totals.Pending += t.space.tokens(blocks)
	t.space.table.account(t, int64(bytes))
	t.noteAwaits()
}

// split divides a piece behind its first n blocks, and returns the first part. The second stays the piece of the
// expectations that end there.
func (t *Target) split(p *piece, n int) (first *piece) {
	t.leave(p)
	first = &piece{target: t, parent: p.parent, keys: slices.Clone(p.keys[:n]), room: int32(n), uses: p.uses, born: p.born, last: p.last, since: p.since, until: p.until}
	p.parent = first
	freed := p.keep(p.keys[n:])
	t.enter(first)
	t.enter(p)
	t.linkAfter(first, p)
	t.count(0, pieceBytes+n*keyBytes-freed)
	return first
}

// keep leaves a part of its keys in a piece, and returns how many bytes that frees: they are copied once they are less
// than half of what they take.
func (p *piece) keep(keys []uint64) (freed int) {
	if p.keys = keys; len(keys) < int(p.room)/2 {
		freed = (int(p.room) - len(keys)) * keyBytes
		p.keys, p.room = slices.Clone(keys), int32(len(keys))
	}
	return freed
}

// enter enters a piece under its first block.
func (t *Target) enter(p *piece) {
	if len(p.keys) == 0 {
		return
	}
	if t.space.heads == nil {
		t.space.heads = make(map[uint64]*piece)
	}
	s, key := t.space, p.keys[0]
	p.next = s.first(key)
	if s.heads[key] = p; p.next == nil && !s.sieve.add(key) {
		s.sieve.grow(s.heads)
	}
}

// leave takes a piece out from under its first block.
func (t *Target) leave(p *piece) {
	if len(p.keys) == 0 {
		return
	}
	s, key := t.space, p.keys[0]
	if s.heads[key] == p {
		if p.next != nil {
			s.heads[key] = p.next
		} else if delete(s.heads, key); len(s.heads) > 0 {
			s.sieve.remove(key)
		} else {
			s.heads, s.sieve = nil, sieve{} // a map does not shrink
			s.named.Store(false)
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

// link makes a piece the one that was used last.
func (t *Target) link(p *piece) {
	if p.older = t.newest; p.older != nil {
		p.older.newer = p
	} else {
		t.oldest = p
	}
	t.newest = p
}

// linkAfter makes a piece the next one to be used after another.
func (t *Target) linkAfter(p, other *piece) {
	p.older, p.newer = other, other.newer
	if p.newer != nil {
		p.newer.older = p
	} else {
		t.newest = p
	}
	other.newer = p
}

// unlink takes a piece out of the list by use.
func (t *Target) unlink(p *piece) {
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

// touch notes that a prompt was reported for an approximate target, and takes out what its capacity has no room
// for: the last blocks of the prompt that was reported longest ago.
func (t *Target) touch(leaf *piece, now int64, ttl int64) {
	if leaf == nil {
		return
	}
	t.space.table.tenant(t.space.owner).approximate[t] = true
	for p := leaf; p != nil; p = p.above() { // a piece is used after those behind it
		t.unlink(p)
		t.link(p)
		if ttl == 0 {
			p.until = 0
		} else if p.until != 0 {
			p.until = max(p.until, now+ttl)
		}
	}
	if ttl != 0 && (t.nextUntil == 0 || now+ttl < t.nextUntil) {
		t.nextUntil = now + ttl
	}
	for more := int(t.blocks) - t.Capacity; more > 0; more = int(t.blocks) - t.Capacity {
		if p := t.oldest; more >= len(p.keys) {
			t.remove(p, Evicted)
		} else {
			freed := p.keep(p.keys[:len(p.keys)-more])
			t.counted(Evicted, more)
			t.count(-more, -freed)
		}
	}
}

// expire takes blocks out of an approximate target whose time there is over. In the list by use a piece comes after
// those behind it, and if all reports have one ttl, the first ones end first.
func (t *Target) expire(now int64) {
	if t.nextUntil == 0 || now < t.nextUntil {
		return
	}
	t.nextUntil = 0
	var next *piece
	for p := t.oldest; p != nil; p = next {
		next = p.newer
		switch {
		case p.until == 0:
		case p.until <= now:
			t.remove(p, Evicted)
		default:
			if t.nextUntil == 0 || p.until < t.nextUntil {
				t.nextUntil = p.until
			}
			if !t.mixed {
				return
			}
		}
	}
}

// remove takes a piece out of its tree.
func (t *Target) remove(p *piece, why Ending) {
	n := len(p.keys)
	if why == Expired && n > 0 {
		t.watch(p)
	}
	t.counted(why, n)
	t.leave(p)
	t.unlink(p)
	room := int(p.room)
	p.keys, p.room, p.gone = nil, 0, true
	if t.oldest == nil && t.Capacity > 0 {
		delete(t.space.table.tenants[t.space.owner].approximate, t)
	}
	t.count(-n, -pieceBytes-room*keyBytes)
}

// empty takes out all that is expected of the target, and its reports.
func (t *Target) empty(why Ending) {
	table := t.space.table
	if of := table.tenants[t.space.owner]; of != nil {
		for e := of.oldest; e != nil; {
			next := e.newer
			if e.target == t {
				table.end(e, why)
			}
			e = next
		}
	}
	for t.oldest != nil {
		t.remove(t.oldest, why)
	}
	t.late = nil
	t.relieve()
	t.noteAwaits()
}

// confirm ends expected blocks that the target has announced, and returns how many. Those that turn out to be there
// already do not count. Blocks are found at the beginning of pieces, because engines announce a prompt from its
// beginning on.
func (t *Target) confirm(keys []uint64, now int64, counts bool) (confirmed int) {
	for i := range keys {
		for p := t.find(keys[i]); p != nil; p = t.find(keys[i]) {
			n := common(p.keys, keys[i:])
			if counts {
				t.delays.add(now-p.since, n)
				t.counted(Confirmed, n)
				t.confirmed = now
			}
			confirmed += n
			t.leave(p)
			freed := p.keep(p.keys[n:])
			t.count(-n, -freed)
			if len(p.keys) == 0 {
				t.remove(p, Confirmed)
			} else {
				t.enter(p)
			}
		}
		if len(t.late) > 0 && counts {
			t.arrived(keys[i], now)
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

// Match appends which blocks of a prompt are expected where, by ascending From. mix is XORed into the keys. The first
// held blocks of the prompt have owners; behind them Match stops at the first block that is expected nowhere. The stretches of one
// target do not overlap.
func (s *Space) Match(dst []Found, prompt Prompt, mix uint64, held int) []Found {
	if s.Empty() {
		return dst
	}
	t := s.table
	now := t.now().UnixNano()
	if end := t.nextEnd.Load(); end != 0 && end <= now {
		t.mu.Lock()
		t.expire(now)
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
			n := common(w.p.keys[w.at:], keys)
			dst[w.found].To = max(dst[w.found].To, uint32(base+n))
			if reach = max(reach, base+n); n == len(keys) {
				left = append(left, walk{w.p, w.at + n, w.found})
			}
		}
		walks = left
		for i := 0; i < len(keys) && base+i <= reach; i++ {
			for p := s.first(keys[i]); p != nil; p = p.next {
				if p.until != 0 && p.until <= now {
					continue
				}
				n := common(p.keys, keys[i:])
				found := stretch(&dst, from, p.target, base+i, base+i+n)
				if reach = max(reach, base+i+n); i+n == len(keys) {
					walks = append(walks, walk{p, n, found})
				}
			}
		}
	}
	return dst
}

// window is how many keys of a prompt Match asks for at a time.
const window = 16

// walk is how far Match has come in a piece, all of whose blocks before at are in the prompt.
type walk struct {
	p     *piece
	at    int // the next one of its keys
	found int // place of its stretch in the list of what was found
}

// stretch adds blocks [from, to) of a target to a list, whose part from first on is of the same prompt. They become a
// part of a stretch that reaches them. It returns the place of that.
func stretch(all *[]Found, first int, t *Target, from, to int) int {
	for at := len(*all) - 1; at >= first; at-- {
		if f := &(*all)[at]; f.Target == t && int(f.To) >= from {
			f.To = max(f.To, uint32(to))
			return at
		}
	}
	*all = append(*all, Found{t, uint32(from), uint32(to)})
	return len(*all) - 1
}
