package conductor

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/index/hash"
)

// An engine with a look-ahead of L tokens hashes a block together with the L tokens
// behind it. Its blocks have canonical keys of their own: the local hash covers the same
// window. Blocks of several look-aheads share an index, and a query asks for each
// look-ahead that a holder of the context uses:
//
//	prompt --windows of size tokens---> chain 0 --+
//	       --windows of size+1 tokens-> chain 1 --+--> one index, one list of runs
//
// A chain ends before the block behind which the prompt has fewer than L tokens, as the
// engine's own look-up does.

// aheads is a set of look-aheads; bit L stands for L tokens. The empty set means that
// blocks have come without tokens only, and counts as look-ahead 0.
type aheads uint64

const (
	noAhead aheads = 1
	// dynamoAheads are those of blocks in Dynamo's own index: plain ones, and those of
	// EAGLE engines.
	dynamoAheads aheads = 1<<0 | 1<<1
)

// aheadsOf returns the set of one look-ahead.
func aheadsOf(ahead int) aheads {
	if ahead < 0 || ahead > events.MaxAhead {
		panic("BUG: a look-ahead out of range")
	}
	return 1 << ahead
}

// all yields the look-aheads in ascending order.
func (a aheads) all(yield func(int) bool) {
	for w := uint64(a); w != 0; w &= w - 1 {
		if !yield(bits.TrailingZeros64(w)) {
			return
		}
	}
}

// list returns the look-aheads in ascending order, nil if there is none but 0.
func (a aheads) list() (all []int) {
	if a&^noAhead == 0 {
		return nil
	}
	return slices.Collect(a.all)
}

// setOf returns a set of look-aheads, and leaves out what is none.
func setOf(list []int) (a aheads) {
	for _, n := range list {
		if n >= 0 && n <= events.MaxAhead {
			a |= aheadsOf(n)
		}
	}
	return a
}

// sharedAheads counts who uses which look-ahead.
type sharedAheads struct {
	set   atomic.Uint64              // those with a user
	users [events.MaxAhead + 1]int32 // namespaces; guarded by Conductor.mu
}

// load returns the look-aheads that a query asks for.
func (x *sharedAheads) load() aheads { return max(aheads(x.set.Load()), noAhead) }

// join adds a user of some look-aheads, leave removes it. Conductor.mu is held.
func (x *sharedAheads) join(a aheads) {
	for n := range a.all {
		x.users[n]++
	}
	x.set.Store(x.set.Load() | uint64(a))
}

func (x *sharedAheads) leave(a aheads) {
	for n := range a.all {
		if x.users[n]--; x.users[n] == 0 {
			x.set.Store(x.set.Load() &^ uint64(aheadsOf(n)))
		}
	}
}

// uses notes the look-aheads of blocks that the namespace is about to hold, so that
// queries ask for them until it is left.
func (ns *namespace) uses(c *Conductor, a aheads) {
	more := a &^ ns.aheads
	if more == 0 {
		return
	}
	ns.aheads |= more
	d := ns.context.deployment
	c.mu.Lock()
	defer c.mu.Unlock()
	d.aheads.Store(d.aheads.Load() | uint64(more))
	ns.context.aheads.join(more)
}

// usesAny is uses for blocks known by their hashes alone: they may have any look-ahead
// that the deployment has seen.
func (ns *namespace) usesAny(c *Conductor) {
	ns.uses(c, aheads(ns.context.deployment.aheads.Load())|noAhead)
}

// aheads returns the look-aheads of what the source holds. turn is held.
func (s *source) aheads() aheads {
	var all aheads
	for _, ns := range s.spaces {
		if ns.blocks() > 0 {
			all |= ns.aheads
		}
	}
	return all
}

// prompts sets the chain of the prompt's tokens for the first look-ahead of a context,
// and appends a place for each further one.
func (sc *scratch) prompts(x *indexContext, q *Query, places []index.Beside) []index.Beside {
	set := x.aheads.load()
	if n := bits.OnesCount64(uint64(set)) - 1; len(sc.chains) < n {
		sc.chains = make([]hash.Chain, n)
	}
	first := true
	for n := range set.all {
		if first {
			sc.chain.Reset(x.scheme, q.Tokens, q.BlockSize, n)
			first = false
			continue
		}
		c := &sc.chains[len(places)]
		c.Reset(x.scheme, q.Tokens, q.BlockSize, n)
		places = append(places, index.Beside{Index: x.index, Chain: c})
	}
	return places
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
	clear(sc.places)
}
