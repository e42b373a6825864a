package ingest

import (
	"sync/atomic"

	"example.com/conductor/events"
	"example.com/conductor/index"
)

// EventCounts says what became of the events about device blocks since the start,
// each counted once whatever the number of its blocks. Events of attention groups
// that are not indexed are in none of them.
type EventCounts struct {
	Stored, Removed, Cleared EventOutcomes
	// DuplicateStores are stored events whose every block its holder had already.
	DuplicateStores uint64
}

// EventOutcomes counts events of one kind. An event that fits several is counted
// under the last of them in the order here.
type EventOutcomes struct {
	OK            uint64
	BlockUnknown  uint64 // removed: a block its holder did not have
	ParentUnknown uint64 // stored: blocks wait for their parent
	NoRoom        uint64 // stored: blocks were refused or shed for want of room
	Invalid       uint64 // stored: no blocks of the registered size
}

// eventCounts is EventCounts while it grows.
type eventCounts struct {
	stored, removed, cleared eventOutcomes
	duplicates               atomic.Uint64
}

type eventOutcomes struct{ ok, blockUnknown, parentUnknown, noRoom, invalid atomic.Uint64 }

func (o *eventOutcomes) load() EventOutcomes {
	return EventOutcomes{
		OK: o.ok.Load(), BlockUnknown: o.blockUnknown.Load(), ParentUnknown: o.parentUnknown.Load(),
		NoRoom: o.noRoom.Load(), Invalid: o.invalid.Load(),
	}
}

// countStored counts a stored event by what the index made of its blocks. Joined ones have one block each.
func (n *eventCounts) countStored(e *events.Event, res *index.StoreResult) {
	all := e.Count()
	noRoom := min(all, res.Refused+res.Shed)
	waiting := min(all-noRoom, res.Orphaned)
	ok := all - noRoom - waiting
	add(&n.stored.noRoom, noRoom)
	add(&n.stored.parentUnknown, waiting)
	add(&n.stored.ok, ok)
	if e.Joined > 0 {
		add(&n.duplicates, min(ok, res.Copies))
	} else if res.Added == 0 && res.Copies > 0 {
		add(&n.duplicates, ok)
	}
}

// countRemoved counts a removed event. Its holder did not have unknown blocks of it. Joined ones are about one block each.
func (n *eventCounts) countRemoved(e *events.Event, unknown int) {
	lacking := min(e.Count(), unknown)
	add(&n.removed.blockUnknown, lacking)
	add(&n.removed.ok, e.Count()-lacking)
}

// add adds to a counter. Most events leave most counters alone, which other sources share.
func add(to *atomic.Uint64, n int) {
	if n > 0 {
		to.Add(uint64(n))
	}
}
