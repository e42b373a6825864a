package catalog

import (
	"sync/atomic"

	"example.com/conductor/tiers"
)

// Caches says of a deployment whether queries have to look for attention groups: see tiers.Cache. What it says never ends, because
// the engines of a model rarely change their layers.
type Caches struct {
	slots   atomic.Int32 // Slot of the next cache
	any     atomic.Bool
	gaps    atomic.Bool
	unknown atomic.Bool
}

// NewSlot returns a number for a tiers.Cache, or for a rank that has some.
func (c *Caches) NewSlot() int { return int(c.slots.Add(1) - 1) }

// Any reports whether owners of the deployment have a tiers.Cache, or had one.
func (c *Caches) Any() bool { return c.any.Load() }

// HaveGaps reports whether engines of the deployment take prefixes whose beginning they have evicted, or did: no group of theirs has
// full attention.
func (c *Caches) HaveGaps() bool { return c.gaps.Load() }

// HaveUnknown reports whether it is not known of some group what it needs, or was.
func (c *Caches) HaveUnknown() bool { return c.unknown.Load() }

// note lets queries look for the groups of an owner, if it has some.
func (c *Caches) note(o *tiers.Owner) {
	if o.Cache == nil {
		return
	}
	if !c.any.Load() {
		c.any.Store(true)
	}
	if !o.Cache.HasFull() && !c.gaps.Load() {
		c.gaps.Store(true)
	}
	if o.Cache.HasUnknown() && !c.unknown.Load() {
		c.unknown.Store(true)
	}
}
