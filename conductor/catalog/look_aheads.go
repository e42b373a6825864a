package catalog

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/events"
)

// An engine with a look-ahead of L tokens hashes a block together with the L tokens
// behind it. Its blocks have canonical keys of their own: the local hash covers the same
// window. A query asks for each look-ahead that a holder of the
// deployment uses:
//
//	prompt --windows of size tokens---> chain 0 --+
//	       --windows of size+1 tokens-> chain 1 --+--> one index, one answer
//
// A chain ends before the block behind which the prompt has fewer than L tokens, as the
// engine's own look-up does.

// LookAheads is a set of look-aheads. Bit L stands for L tokens. The empty set means that
// blocks have come without tokens only, and counts as look-ahead 0.
type LookAheads uint64

const (
	NoLookAhead LookAheads = 1
	// DynamoLookAheads are those of blocks in Dynamo's own index: plain ones, and those of
	// EAGLE engines.
	DynamoLookAheads LookAheads = 1<<0 | 1<<1
)

// LookAhead returns the set of one look-ahead.
func LookAhead(ahead int) LookAheads {
	if ahead < 0 || ahead > events.MaxAhead {
		panic("BUG: a look-ahead out of range")
	}
	return 1 << ahead
}

// All yields the look-aheads in ascending order.
func (a LookAheads) All(yield func(int) bool) {
	for w := uint64(a); w != 0; w &= w - 1 {
		if !yield(bits.TrailingZeros64(w)) {
			return
		}
	}
}

// Count returns the number of look-aheads.
func (a LookAheads) Count() int { return bits.OnesCount64(uint64(a)) }

// List returns the look-aheads in ascending order, nil if there is none but 0.
func (a LookAheads) List() (all []int) {
	if a&^NoLookAhead == 0 {
		return nil
	}
	return slices.Collect(a.All)
}

// LookAheadsOf returns the set of a list. It leaves out numbers that are out of range.
func LookAheadsOf(list []int) (a LookAheads) {
	for _, n := range list {
		if n >= 0 && n <= events.MaxAhead {
			a |= LookAhead(n)
		}
	}
	return a
}

// usedLookAheads counts the users of each look-ahead. Blocks may be named after their users have left,
// so look-aheads without one are known until there are too many: a broken publisher costs no query.
type usedLookAheads struct {
	users       [events.MaxAhead + 1]int32 // namespaces; guarded by Catalog.mu
	used, known atomic.Uint64              // written under Catalog.mu
}

// LookAheads returns the look-aheads that a query asks for.
func (d *Deployment) LookAheads() LookAheads {
	return max(LookAheads(d.lookAheads.used.Load()), NoLookAhead)
}

// NamedLookAheads returns the look-aheads that known names may have, empty if there is no name.
func (d *Deployment) NamedLookAheads() LookAheads { return LookAheads(d.lookAheads.known.Load()) }

// addUsers adds users of each look-ahead of a set, or takes them away where more is negative. It returns the
// look-aheads in use from then on. Catalog.mu is held.
func (x *usedLookAheads) addUsers(a LookAheads, more int32) (used LookAheads) {
	for n := range a.All {
		x.users[n] += more
	}
	for n, users := range x.users {
		if users > 0 {
			used |= LookAhead(n)
		}
	}
	known := LookAheads(x.known.Load()) | used
	if known.Count() > normalize.MaxLookAheads {
		known = used
	}
	x.used.Store(uint64(used))
	x.known.Store(uint64(known))
	return used
}

// UseLookAheads notes the look-aheads of blocks that the namespace is about to hold.
// Queries ask for them until the source leaves the namespace.
func (ns *Namespace) UseLookAheads(a LookAheads) {
	more := a &^ ns.LookAheads
	if more == 0 {
		return
	}
	d := ns.Deployment
	d.mu.Lock()
	ns.LookAheads |= more
	used := d.lookAheads.addUsers(more, 1)
	d.mu.Unlock()
	if used&^NoLookAhead != 0 {
		d.Index.NameAllBlocks() // an engine hash may mean a block for each look-ahead
	}
}

// UseAnyLookAhead is UseLookAheads for blocks known by their hashes alone: they may have
// any look-ahead of the names that the deployment knows.
func (ns *Namespace) UseAnyLookAhead() {
	ns.UseLookAheads(ns.Deployment.NamedLookAheads() | NoLookAhead)
}

// LookAheadOf returns the look-ahead of an instance's blocks: an engine has one.
func (d *Deployment) LookAheadOf(instance int32) (ahead int) {
	set := d.LookAheads()
	if set.Count() > 1 {
		set = NoLookAhead
		d.mu.RLock()
		defer d.mu.RUnlock()
		for _, ns := range d.holders {
			if ns.InstanceID == instance {
				set |= ns.LookAheads
			}
		}
	}
	for ahead = range set.All {
	}
	return ahead
}
