package conductor

import (
	"kvconductor/events/stream"
	"kvconductor/tiers"
)

// A source that runs, and misses a part of what its publisher sent, takes the blocks and the mark
// of a snapshot:
//
//	snapshot --Recovery--> stand-in, whose owners are hidden --Replace--> a new source begins with
//	                       the source goes on meanwhile                   these blocks, behind the mark
//
// In each context the owners of the stand-in show as those of the source vanish: no query sees
// blocks of both. Other sources go on. The new stream verifies the mark, as after a takeover.

// Heal begins a recovery of sources that run, and of no others. Replace ends it in the place of
// Done.
func (c *Conductor) Heal(keys []Key) *Recovery {
	r := c.Recover(0)
	r.instead = make(map[Key]*source, len(keys))
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, key := range keys {
		if s := c.sources[key]; s != nil && !s.recovered && !s.reg.pool() {
			r.instead[key] = s
		}
	}
	return r
}

// standIn returns a source that takes the parts of a snapshot about one that runs, nil if that one
// is not to be healed.
func (r *Recovery) standIn(reg Registration) *source {
	old := r.instead[reg.Key()]
	if old == nil || old.deploymentKey() != reg.deploymentKey() {
		return nil
	}
	s := r.c.unjoined(old.reg)
	s.stream, s.recovered = newUnfollowed(r.c.now()), true
	s.beginFilling()
	return s
}

// Replace ends a recovery of Heal. A source is replaced if the snapshot has its whole history up to
// a mark, and fits says that its stream can go on there. Replace returns the keys of those.
func (r *Recovery) Replace(fits func(Key, stream.Mark) bool) (replaced []Key) {
	r.Done()
	for key, by := range r.sources {
		if by == nil {
			continue
		}
		if by.marked && by.mark.Missing == "" && fits(key, by.mark) && r.c.replace(r.instead[key], by) {
			replaced = append(replaced, key)
		}
		by.guard(by.end)
	}
	return replaced
}

// replace lets a new source begin with the blocks of by, in the place of old. It reports false if the source has
// ended meanwhile.
func (c *Conductor) replace(old, by *source) bool {
	if !c.swap(old, by) {
		return false
	}
	c.retire(old)
	return true
}

// swap is replace, but that old is still to be stopped. It applies nothing any more.
func (c *Conductor) swap(old, by *source) bool {
	old.turn.Lock()
	defer old.turn.Unlock()
	by.turn.Lock()
	defer by.turn.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := old.reg.Key()
	if c.closed || c.sources[key] != old || old.gone {
		return false
	}
	c.removeSource(old)
	s := c.newSource(old.reg, old.static)
	if old.stream.Status().State == stream.Paused {
		s.setPaused(true)
	}
	s.inheritFrom(by)
	s.showInstead(by.hidden, old)
	old.gone = true
	s.journal.Omitted(1) // the journal does not have the blocks
	c.sources[key] = s
	go s.run()
	return true
}

// showInstead shows the hidden owners of s, and hides those of another source.
func (s *source) showInstead(hidden []hiddenOwner, of *source) {
	changed := make(map[*indexContext][]hiddenOwner)
	for _, h := range hidden {
		if s.byContext[h.ns.key()] == h.ns {
			changed[h.ns.context] = append(changed[h.ns.context], h)
		}
	}
	for _, ns := range of.namespaces {
		for _, h := range ns.owners {
			gone := hiddenOwner{ns, h.current, tiers.Owner{Instance: tiers.Retired}}
			changed[ns.context] = append(changed[ns.context], gone)
			if gone.owner = h.previous; h.hasPrevious {
				changed[ns.context] = append(changed[ns.context], gone)
			}
		}
	}
	for x, owners := range changed {
		x.show(owners)
	}
}
