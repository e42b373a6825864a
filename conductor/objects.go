package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/pool"
	"kvconductor/events"
)

// applyObject applies a stored or removed object of a pool.
func (s *source) applyObject(e *events.Event) {
	var r pool.Result
	if e.Kind == events.Removed {
		r = s.pool.Remove(e)
	} else {
		r = s.pool.Store(e)
	}
	if r.Seen {
		s.doctor.Observe(&doctor.Observation{Event: e, Medium: r.Medium, Count: 1})
	}
	found := s.applyChanges(r.Changes)
	switch {
	case r.Dropped != "":
		s.drop(r.Dropped, 1)
	case !r.Unbound || found > 0:
	case r.ByHashes:
		var c normalize.Change
		s.normal.Event(e, int32(s.reg.Rank), &c)
		s.applyBlocks(&c)
	default:
		s.drop(events.UnknownHash, 1)
	}
	if e.Kind == events.Removed && len(s.spaces) > 1 {
		s.quitEmpty()
	}
}

// applyChanges stores the blocks that appear in the pool and removes those that vanish.
// Engines that hash in several ways have each their own objects of a block, which the
// index counts as copies. It returns how many blocks it removed.
func (s *source) applyChanges(changes []pool.Change) (removed int) {
	for i := range changes {
		c := &changes[i]
		e := s.pool.Event(c)
		at, medium := s.pool.Context(c)
		key := normalize.Owner{Rank: int32(s.reg.Rank), Medium: medium.Name, Backend: *e.Backend, Objects: c.Object}
		if c.Vanishes {
			removed += s.withdraws(&e, key)
		} else {
			s.place(&normalize.Change{Kind: normalize.Stored, Event: &e, Owner: key, Medium: medium, Context: at, Cut: &e, Parts: 1})
		}
	}
	return removed
}
