package conductor

import (
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// Blocks whose hash no engine has announced with tokens wait under it. A query of a
// context whose engines hash in a known way computes what they would call the prompt's
// blocks, and looks those up too:
//
//	tokens --seq hashes-----> the context asked for    owners 0..
//	       --digests, lazily-> contexts where blocks wait   owners from 1<<placeShift..
//
// Where nothing waits, no digest is computed. A query by the hashes of an engine brings them: see
// query_names.go.

// placeShift makes room for the owners of one index, maxPlaces for the indexes.
const (
	placeShift = 27
	maxPlaces  = 1<<(32-placeShift) - 1
)

// waiters returns the contexts in which blocks wait that a prompt may be about.
func (d *deployment) waiters(q *Query, dst []*indexContext) []*indexContext {
	list := d.awaiting.Load()
	if list == nil || q.ByHash && !d.mayWait(q) || q.ByClientHash || q.SearchUnscoped {
		return dst
	}
	for _, w := range *list {
		if (w.key.Lora == "" || w.key.Lora == q.Lora) && (w.key.Salt == "" || w.key.Salt == q.Salt) && len(dst) < maxPlaces {
			dst = append(dst, w)
		}
	}
	return dst
}

// matchAcross is lookup under the digests of the engines as well. x is nil where
// nothing is known of the context but how its engines hash. It reports false where
// there is nothing to look up besides the context.
func (sc *scratch) matchAcross(d *deployment, x *indexContext, q *Query, c *Conductor) (owners []tiers.Owner, ok bool) {
	sc.waiters = d.waiters(q, sc.waiters[:0])
	if len(sc.waiters) == 0 {
		return nil, false
	}
	defer clear(sc.waiters)
	if q.ByHash {
		return sc.matchNamesAcross(x, q), true
	}
	if !sc.digestsOf(d, q, c) {
		return nil, false
	}
	return sc.matchWaiters(x, q), true
}

// matchWaiters looks a prompt up in the contexts sc.waiters under the digests sc.digests as well.
func (sc *scratch) matchWaiters(x *indexContext, q *Query) []tiers.Owner {
	base := x
	sc.lookups = sc.lookups[:0]
	if x != nil {
		sc.lookups = sc.resetPromptChains(x, q, sc.lookups)
	} else {
		base = sc.waiters[0]
	}
	for n := range sc.digests {
		for i, w := range sc.waiters {
			switch {
			case w != base:
				sc.lookups = append(sc.lookups, index.Lookup{Index: w.index, Chain: &sc.digests[n], First: uint32(i+1) << placeShift})
			case x != nil || n > 0:
				sc.lookups = append(sc.lookups, index.Lookup{Index: w.index, Chain: &sc.digests[n]})
			}
		}
	}
	timedLookups(sc.lookups, sc.clock)
	if x != nil {
		base.index.MatchAcross(index.Lookup{Chain: timed(&sc.chain, sc.clock)}, sc.lookups, &sc.match)
		sc.sample(&sc.chain, sc.chain.Computed())
	} else {
		base.index.MatchAcross(index.Lookup{Chain: timed(&sc.digests[0], sc.clock)}, sc.lookups, &sc.match)
	}
	sc.forgetPrompt()
	return sc.renumberOwners(base)
}

// digestsOf prepares the digests of the prompt for each look-ahead of the deployment, used
// now or until lately. It reports false if no profile says how to compute them.
func (sc *scratch) digestsOf(d *deployment, q *Query, c *Conductor) bool {
	profile, known := d.profile(q.Lora)
	if !known {
		return false
	}
	n := 0
	var last hash.Profile
	for ahead := range max(d.lookAheads.ofNames(), noLookAhead).all {
		p := profile.WithAhead(ahead)
		if n > 0 && p == last {
			continue
		}
		if sc.digests = sc.digests[:n]; n == cap(sc.digests) {
			sc.digests = append(sc.digests, hash.DigestChain{})
		}
		sc.digests = sc.digests[:n+1]
		chain := &sc.digests[n]
		if chain.Under(p, q.Lora, q.Salt) != nil {
			return false
		}
		chain.Memo(c.memo)
		chain.Reset(q.Tokens, q.BlockSize)
		last = p
		n++
	}
	return true
}

// renumberOwners numbers the owners of all places through, those of base first, and returns
// what they are.
func (sc *scratch) renumberOwners(base *indexContext) []tiers.Owner {
	owners := base.table()
	bases := &sc.bases
	clear(bases[:])
	if len(sc.waiters) > 1 || sc.waiters[0] != base {
		sc.owners = append(sc.owners[:0], owners...)
		for i, w := range sc.waiters {
			if w != base {
				bases[i+1] = uint32(len(sc.owners))
				sc.owners = append(sc.owners, w.table()...)
			}
		}
		owners = sc.owners
	}
	at := func(o uint32) uint32 { return bases[o>>placeShift] + o&(1<<placeShift-1) }
	for i := range sc.match.Prefixes {
		sc.match.Prefixes[i].Owner = at(sc.match.Prefixes[i].Owner)
	}
	for i := range sc.match.Later {
		sc.match.Later[i].Owner = at(sc.match.Later[i].Owner)
	}
	return owners
}
