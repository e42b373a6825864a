package conductor

import (
	"sync/atomic"

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

// store counts a stored event by what the index made of its blocks.
func (n *eventCounts) store(res *index.StoreResult) {
	switch {
	case res.Refused > 0 || res.Shed > 0:
		n.stored.noRoom.Add(1)
	case res.Orphaned > 0:
		n.stored.parentUnknown.Add(1)
	default:
		n.stored.ok.Add(1)
		if res.Added == 0 && res.Copies > 0 {
			n.duplicates.Add(1)
		}
	}
}

// remove counts a removed event. Its holder did not have unknown blocks of it.
func (n *eventCounts) remove(unknown int) {
	if unknown > 0 {
		n.removed.blockUnknown.Add(1)
		return
	}
	n.removed.ok.Add(1)
}
