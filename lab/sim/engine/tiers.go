package engine

import (
	"container/list"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// block is one physical copy of a block on one tier.
type block struct {
	id     truth.ID
	hash   digest.Digest
	parent digest.Digest // of the block before; meaningless when first
	first  bool          // the first block of a prompt

	users   int           // device: requests that use this copy
	twin    *block        // device: another copy of the same block
	leaving bool          // device: on its way out, see lastCopies
	place   *list.Element // in the list of its tier, oldest first
}

// device holds copies: a block two requests computed may be there twice.
type device struct {
	capacity int
	used     int // copies, pinned and free
	by       map[truth.ID]*block
	free     list.List // copies no request uses, oldest first
}

func newDevice(capacity int) device {
	return device{capacity: capacity, by: make(map[truth.ID]*block)}
}

// find returns one copy of the block, nil if there is none.
func (d *device) find(id truth.ID) *block { return d.by[id] }

func (d *device) pin(b *block) {
	if b.users == 0 {
		d.free.Remove(b.place)
	}
	b.users++
}

func (d *device) unpin(b *block) {
	if b.users--; b.users == 0 {
		b.place = d.free.PushBack(b)
	}
}

// add puts a pinned copy on the device; true if it is the first of its block.
func (d *device) add(b *block) bool {
	b.users = 1
	d.used++
	b.twin = d.by[b.id]
	d.by[b.id] = b
	return b.twin == nil
}

// drop takes a copy off the device that is on no list; true if it was the last
// of its block.
func (d *device) drop(b *block) bool {
	d.used--
	head := d.by[b.id]
	if head == b {
		if b.twin == nil {
			delete(d.by, b.id)
			return true
		}
		d.by[b.id] = b.twin
		return false
	}
	for at := head; ; at = at.twin {
		if at.twin == b {
			at.twin = b.twin
			return false
		}
	}
}

// lastCopies returns, in the order of victims, one copy of each block that the device no
// longer holds once all victims are gone.
func (d *device) lastCopies(victims []*block) []*block {
	for _, b := range victims {
		b.leaving = true
	}
	last := make([]*block, 0, len(victims))
	for _, b := range victims {
		if !b.leaving {
			continue // another copy of it came first
		}
		all := true
		for c := d.by[b.id]; c != nil; c = c.twin {
			all = all && c.leaving
		}
		if !all {
			continue
		}
		last = append(last, b)
		for c := d.by[b.id]; c != nil; c = c.twin {
			c.leaving = false
		}
	}
	return last
}

// lower is host or disk: one copy a block, least recently used leaves first.
type lower struct {
	tier     truth.Tier
	capacity int
	below    *lower // where evicted blocks go, nil for nowhere
	by       map[truth.ID]*block
	lru      list.List // oldest first
}

func newLower(tier truth.Tier, capacity int, below *lower) *lower {
	return &lower{tier: tier, capacity: capacity, below: below, by: make(map[truth.ID]*block)}
}

// count returns the place of the tier in Stats.
func (l *lower) count() int { return int(l.tier / truth.Host) }

// oldest returns the n least recently used blocks, none when n is negative.
func (l *lower) oldest(n int) []*block {
	var old []*block
	for at := l.lru.Front(); len(old) < n; at = at.Next() {
		old = append(old, at.Value.(*block))
	}
	return old
}

// touch makes a block the newest; false if it is not there.
func (l *lower) touch(id truth.ID) bool {
	b := l.by[id]
	if b == nil {
		return false
	}
	l.lru.MoveToBack(b.place)
	return true
}

func (l *lower) add(b *block) {
	l.by[b.id] = b
	b.place = l.lru.PushBack(b)
}

func (l *lower) drop(b *block) {
	delete(l.by, b.id)
	l.lru.Remove(b.place)
}
