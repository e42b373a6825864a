package conductor

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
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

// lookAheads is a set of look-aheads. Bit L stands for L tokens. The empty set means that
// blocks have come without tokens only, and counts as look-ahead 0.
type lookAheads uint64

const (
	noLookAhead lookAheads = 1
	// dynamoLookAheads are those of blocks in Dynamo's own index: plain ones, and those of
	// EAGLE engines.
	dynamoLookAheads lookAheads = 1<<0 | 1<<1
)

// oneLookAhead returns the set of one look-ahead.
func oneLookAhead(ahead int) lookAheads {
	if ahead < 0 || ahead > events.MaxAhead {
		panic("BUG: a look-ahead out of range")
	}
	return 1 << ahead
}

// all yields the look-aheads in ascending order.
func (a lookAheads) all(yield func(int) bool) {
	for w := uint64(a); w != 0; w &= w - 1 {
		if !yield(bits.TrailingZeros64(w)) {
			return
		}
	}
}

// count returns the number of look-aheads.
func (a lookAheads) count() int { return bits.OnesCount64(uint64(a)) }

// list returns the look-aheads in ascending order, nil if there is none but 0.
func (a lookAheads) list() (all []int) {
	if a&^noLookAhead == 0 {
		return nil
	}
	return slices.Collect(a.all)
}

// lookAheadSet returns the set of a list. It leaves out numbers that are out of range.
func lookAheadSet(list []int) (a lookAheads) {
	for _, n := range list {
		if n >= 0 && n <= events.MaxAhead {
			a |= oneLookAhead(n)
		}
	}
	return a
}

// usedLookAheads counts the users of each look-ahead. Blocks may be named after their users have left,
// so look-aheads without one are known until there are too many: a broken publisher costs no query.
type usedLookAheads struct {
	users       [events.MaxAhead + 1]int32 // namespaces; guarded by registry.mu
	used, known atomic.Uint64              // written under registry.mu
}

// load returns the look-aheads that a query asks for.
func (x *usedLookAheads) load() lookAheads { return max(lookAheads(x.used.Load()), noLookAhead) }

// ofNames returns the look-aheads that known names may have, empty if there is no name.
func (x *usedLookAheads) ofNames() lookAheads { return lookAheads(x.known.Load()) }

// count adds users of each look-ahead of a set, or takes them away where more is negative. It returns the
// look-aheads in use from then on. registry.mu is held.
func (x *usedLookAheads) count(a lookAheads, more int32) (used lookAheads) {
	for n := range a.all {
		x.users[n] += more
	}
	for n, users := range x.users {
		if users > 0 {
			used |= oneLookAhead(n)
		}
	}
	known := x.ofNames() | used
	if known.count() > normalize.MaxLookAheads {
		known = used
	}
	x.used.Store(uint64(used))
	x.known.Store(uint64(known))
	return used
}

// useLookAheads notes the look-aheads of blocks that the namespace is about to hold.
// Queries ask for them until the source leaves the namespace.
func (ns *namespace) useLookAheads(c *registry, a lookAheads) {
	more := a &^ ns.lookAheads
	if more == 0 {
		return
	}
	d := ns.deployment
	c.mu.Lock()
	ns.lookAheads |= more
	used := d.lookAheads.count(more, 1)
	c.mu.Unlock()
	if used&^noLookAhead != 0 {
		d.index.NameAllBlocks() // an engine hash may mean a block for each look-ahead
	}
}

// useAnyLookAhead is useLookAheads for blocks known by their hashes alone: they may have
// any look-ahead of the names that the deployment knows.
func (ns *namespace) useAnyLookAhead(c *registry) {
	ns.useLookAheads(c, ns.deployment.lookAheads.ofNames()|noLookAhead)
}

// resetPromptChains sets the chain of the prompt's tokens for the first look-ahead of a
// deployment, and appends a lookup for each further one.
func (sc *scratch) resetPromptChains(d *deployment, constant uint64, q *Query, lookups []index.Lookup) []index.Lookup {
	set := d.lookAheads.load()
	if n := set.count() - 1; len(sc.chains) < n {
		sc.chains = make([]hash.Chain, n)
	}
	local := d.scheme
	if q.SearchUnscoped {
		local = hash.Scheme{Seed: dynamoSeed(scope.Variant{Lora: q.Lora, Salt: q.Salt})}
	}
	c := &sc.chain
	for n := range set.all {
		c.Reset(d.scheme, q.Tokens, q.BlockSize, n)
		c.Under(local)
		if c != &sc.chain {
			lookups = append(lookups, index.Lookup{Constant: constant, Chain: c})
		}
		if len(lookups) < len(sc.chains) {
			c = &sc.chains[len(lookups)]
		}
	}
	return lookups
}

// forgetPrompt drops the tokens of a query, which are the caller's.
func (sc *scratch) forgetPrompt() {
	sc.chain.Reset(hash.Scheme{}, nil, 0, 0)
	for i := range sc.chains {
		sc.chains[i].Reset(hash.Scheme{}, nil, 0, 0)
	}
	for i := range sc.digests {
		sc.digests[i].Reset(nil, 0)
	}
	clear(sc.lookups)
}
