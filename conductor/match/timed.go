package match

import (
	"example.com/conductor/conductor/stage"
	"example.com/conductor/index"
)

// timedChain is a chain. A clock measures its hashing.
type timedChain struct {
	index.Chain
	clock *stage.Clock
	known int // blocks that are hashed
}

// At implements index.Chain.
func (t *timedChain) At(i int) uint64 {
	if i < t.known {
		return t.Chain.At(i)
	}
	t.clock.Enter(stage.Hash)
	key := t.Chain.At(i)
	t.clock.Enter(stage.Match)
	t.known = i + 1
	return key
}

// timedLocals is timedChain of a chain with local hashes.
type timedLocals struct {
	timedChain
	chain index.LocalChain
}

// Locals implements index.LocalChain.
func (t *timedLocals) Locals(n int) []uint64 {
	if n <= t.known {
		return t.chain.Locals(n)
	}
	t.clock.Enter(stage.Hash)
	all := t.chain.Locals(n)
	t.clock.Enter(stage.Match)
	t.known = n
	return all
}

// timed returns a chain whose hashing the clock measures, and the chain itself without a clock.
func timed(c index.Chain, clock *stage.Clock) index.Chain {
	if clock == nil {
		return c
	}
	t := timedChain{Chain: c, clock: clock}
	if l, ok := c.(index.LocalChain); ok {
		return &timedLocals{t, l}
	}
	return &t
}

// timedLookups replaces the chains of lookups by timed ones.
func timedLookups(lookups []index.Lookup, clock *stage.Clock) []index.Lookup {
	if clock != nil {
		for i := range lookups {
			lookups[i].Chain = timed(lookups[i].Chain, clock)
		}
	}
	return lookups
}
