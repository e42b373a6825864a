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
// Where nothing waits, no digest is computed.

// placeShift makes room for the owners of one index, maxPlaces for the indexes.
const (
	placeShift = 27
	maxPlaces  = 1<<(32-placeShift) - 1
)

// waiters returns the contexts in which blocks wait that a prompt may be about.
func (d *deployment) waiters(q *Query, dst []*indexContext) []*indexContext {
	list := d.awaiting.Load()
	if list == nil || q.ByHash || q.ByLocal || q.Mixed {
		return dst
	}
	for _, w := range *list {
		if (w.key.lora == "" || w.key.lora == q.Lora) && (w.key.salt == "" || w.key.salt == q.Salt) && len(dst) < maxPlaces {
			dst = append(dst, w)
		}
	}
	return dst
}

// lookupBeside is lookup under the digests of the engines as well. x is nil where
// nothing is known of the context but how its engines hash. It reports false where
// there is nothing to look up beside the context.
func (sc *scratch) lookupBeside(d *deployment, x *indexContext, q *Query, c *Conductor) (owners []tiers.Owner, ok bool) {
	sc.waiters = d.waiters(q, sc.waiters[:0])
	if len(sc.waiters) == 0 {
		return nil, false
	}
	defer clear(sc.waiters)
	profile, known := d.profile(q.Lora)
	if !known || sc.digests.Under(profile, q.Lora, q.Salt) != nil {
		return nil, false
	}
	sc.digests.Memo(c.memo)
	sc.digests.Reset(q.Tokens, q.BlockSize)
	base := x
	if x == nil {
		base = sc.waiters[0]
	}
	sc.places = sc.places[:0]
	for i, w := range sc.waiters {
		switch {
		case w != base:
			sc.places = append(sc.places, index.Beside{Index: w.index, Chain: &sc.digests, First: uint32(i+1) << placeShift})
		case x != nil:
			sc.places = append(sc.places, index.Beside{Index: w.index, Chain: &sc.digests})
		}
	}
	defer clear(sc.places)
	if x != nil {
		sc.chain.Reset(x.scheme, q.Tokens, q.BlockSize)
		base.index.MatchBeside(&sc.chain, sc.places, &sc.match)
	} else {
		base.index.MatchBeside(&sc.digests, sc.places, &sc.match)
	}
	// The tokens are the caller's.
	sc.chain.Reset(hash.Scheme{}, nil, q.BlockSize)
	sc.digests.Reset(nil, q.BlockSize)
	return sc.gather(base), true
}

// gather numbers the owners of all places through, those of base first, and returns
// what they are.
func (sc *scratch) gather(base *indexContext) []tiers.Owner {
	owners := base.table()
	var bases [maxPlaces + 1]uint32
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
	for _, r := range sc.match.Runs {
		for i, o := range r.Owners {
			r.Owners[i] = bases[o>>placeShift] + o&(1<<placeShift-1)
		}
		sc.runs = append(sc.runs, tiers.Run{Owners: r.Owners, Blocks: r.Blocks})
	}
	return owners
}
