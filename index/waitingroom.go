package index

import "unsafe"

// waitingRoom is the waiting room of a source: blocks with tokens whose parent's key is not
// known yet. Links are found by their own engine hash and by the parent they wait on, and
// leave oldest first when the room is full.
//
//	byEngine  engine hash -> link          at most one a hash
//	byParent  parent -> link <-> link      siblings, the newest first
//	oldest    link <-> link <-> newest     by arrival
//	free      record -> record             unused records, chained by newer
//
// A link may have to leave by any of the three orders: because its parent came, because its
// block was stored again, or because the room is full. So each list is doubly linked, and a
// link leaves all of them in constant time.
//
// Records are named by number and not by pointer, so the 65,536 links of a full room are one
// object to the garbage collector. 0 is the number of a record, so the zero value says
// nothing by its numbers: free, oldest and newest are valid only while links wait.
type waitingRoom struct {
	links    []link
	free     int32 // first unused record, chained by newer; valid while used > 0
	used     int   // links that wait
	decided  int   // of them, those that wait for an event about a parent, and not for the identity of blocks that came
	byEngine flat[int32]
	byParent flat[int32] // parent -> its first child
	oldest   int32       // valid while used > 0
	newest   int32
}

// link says: the block `engine` follows `parent` and has these tokens.
type link struct {
	engine, parent, local uint64
	clientHash            uint64        // as one of an identity that is a guess
	of                    chainIdentity // that identity
	says                  Says          // what the event said of it
	undecided             bool          // see StoreResult.Undecided
	prev, next            int32         // siblings: links with the same parent
	older, newer          int32         // by arrival
}

const none int32 = -1

// linkOf returns the link of an engine hash.
func (r *waitingRoom) linkOf(engine uint64) int32 {
	if i := r.byEngine.find(engine); i != nil {
		return *i
	}
	return none
}

// firstChild returns a link that waits on a parent.
func (r *waitingRoom) firstChild(parent uint64) int32 {
	if i := r.byParent.find(parent); i != nil {
		return *i
	}
	return none
}

// pushLink adds a link as the newest. The engine hash has none yet.
//
// An empty room begins from the start, whatever it had before. That also sets the numbers
// of a zero room to none.
func (r *waitingRoom) pushLink(l link) {
	if r.used == 0 {
		r.links, r.free, r.oldest, r.newest = r.links[:0], none, none, none
	}
	i := r.free
	if i == none {
		i = int32(len(r.links))
		r.links = append(r.links, link{})
	} else {
		r.free = r.links[i].newer
	}
	l.prev, l.next = none, r.firstChild(l.parent)
	l.older, l.newer = r.newest, none
	r.links[i] = l
	if r.newest == none {
		r.oldest = i
	} else {
		r.links[r.newest].newer = i
	}
	r.newest = i
	// The new link stands before its siblings, and byParent names it as the first one.
	if n := r.links[i].next; n != none {
		r.links[n].prev = i
	}
	*r.byParent.insertKey(l.parent) = i
	*r.byEngine.insertKey(l.engine) = i
	r.used++
	if !l.undecided {
		r.decided++
	}
}

// removeLink takes a link out of all three orders, and chains its record into the free
// ones.
//
// A room that has become empty gives its memory back. Rooms fill when a follower comes late
// and misses the beginnings of many prompts, which happens once; a room that was large then
// would otherwise stay large for good. A few records stay, or a source with a link now and
// then would allocate for each.
func (r *waitingRoom) removeLink(i int32) {
	l := &r.links[i]
	if l.next != none {
		r.links[l.next].prev = l.prev
	}
	switch {
	// Who was the first child hands the entry of the parent on to the next one, or takes
	// the entry with it.
	case l.prev != none:
		r.links[l.prev].next = l.next
	case l.next != none:
		*r.byParent.find(l.parent) = l.next
	default:
		r.byParent.deleteKey(l.parent)
	}
	r.byEngine.deleteKey(l.engine)
	if l.older == none {
		r.oldest = l.newer
	} else {
		r.links[l.older].newer = l.newer
	}
	if l.newer == none {
		r.newest = l.older
	} else {
		r.links[l.newer].older = l.older
	}
	if !l.undecided {
		r.decided--
	}
	// From here on l has nothing of the link any more.
	*l = link{newer: r.free}
	r.free = i
	if r.used--; r.used == 0 && len(r.links) > minSlots {
		*r = waitingRoom{}
	}
}

// each yields the links, the oldest first. It counts and does not look for none, as the
// numbers of an empty room mean nothing. The room must not change meanwhile.
func (r *waitingRoom) each(yield func(link) bool) {
	for i, n := r.oldest, 0; n < r.used; i, n = r.links[i].newer, n+1 {
		if !yield(r.links[i]) {
			return
		}
	}
}

func (r *waitingRoom) bytes() int {
	return cap(r.links)*int(unsafe.Sizeof(link{})) + r.byEngine.bytes() + r.byParent.bytes()
}

// dropLink takes a link out of the room, and with it the links only it was kept for.
func (h *holders) dropLink(s *source, i int32) {
	parent := s.room.links[i].parent
	s.room.removeLink(i)
	h.forgetIdleLinks(s, parent)
}

// forgetIdleLinks drops the link of an engine hash that the source does not hold and
// nothing waits on, and goes on with its parent.
//
// A link is useful as long as its block is held or something waits behind it: it carries
// the tokens by which those get their keys. Without this, links of blocks that engines
// evicted before their parents came would fill the room, and push out links of blocks that
// are still held.
func (h *holders) forgetIdleLinks(s *source, engine uint64) {
	for {
		i := s.room.linkOf(engine)
		if i == none || s.room.firstChild(engine) != none || !h.tree.findHeldRaw(s, engine).isNone() {
			return
		}
		engine = s.room.links[i].parent
		s.room.removeLink(i)
	}
}

// sweepRoom is forgetIdleLinks for all links, after an owner has lost everything at once
// and no removal named the blocks. Other owners of the source may still hold some.
//
// The links to be dropped are collected first, since the table must not change while it is
// read. It is enough to collect those without children, because forgetIdleLinks goes on
// from child to parent.
func (h *holders) sweepRoom(s *source) {
	var gone []uint64
	for engine := range s.room.byEngine.each {
		if s.room.firstChild(engine) == none && h.tree.findHeldRaw(s, engine).isNone() {
			gone = append(gone, engine)
		}
	}
	for _, engine := range gone {
		h.forgetIdleLinks(s, engine)
	}
}

// emptyIdleRoom ends what waits of a source that holds nothing. All links are useless then
// (forgetIdleLinks says why), and no raw block can be left. So the source is simple again,
// and its next events need not look for either.
func (h *holders) emptyIdleRoom(s *source) {
	if s.held == 0 && (s.raw || s.room.used > 0) {
		s.raw, s.undecided = false, false
		s.room = waitingRoom{}
	}
}
