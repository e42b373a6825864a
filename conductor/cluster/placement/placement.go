// Package placement says which replicas own which shards. A shard is all deployments of
// one model of a tenant: its owners follow every source of it and hold all of its blocks.
//
//	shards, replicas, loads --Assign--> owners of each shard, the primary first
//
//	rank    every shard ranks the replicas by weighted rendezvous hashing
//	keep    owners of the previous placement stay
//	fill    owners that are missing are taken by rank, where there is room
//	return  copies go home to better ranked replicas that have room again
//	relieve copies leave replicas above their bound
//
// Invariants:
//
//  1. The same shards, replicas and options give the same owners on every machine, in
//     whatever order they come. No clock, no chance, no order of a map, and no sum whose
//     rounding depends on the processor takes part.
//  2. A shard has min(n, replicas) distinct owners, where n is Options.Owners, or more if
//     its queries need more. Owners are sorted by rank.
//  3. A replica is above its bound, (1+Slack) times its share of the load, only if no copy
//     on it fits elsewhere.
//  4. A copy is placed where the load stays below (1+Slack/2) times the share if possible,
//     leaves above (1+Slack), and returns where the load stays below (1+Slack/4). Loads that
//     waver in between move nothing.
//
// Rule 4 and the number of owners look at the previous placement, so all replicas must pass
// the same one, or none.
//
// Assign costs one hash and one logarithm for each pair of shard and replica, and a sort of
// the replicas for each shard: 0.15 s for 10,000 shards and 100 replicas.
package placement

import (
	"cmp"
	"math"
	"slices"
)

// Replica is a server that can own shards.
type Replica struct {
	ID string // an empty one is left out
	// Weight is the capacity of the replica next to the others. A replica without a
	// positive weight, NaN included, takes no shard: it is drained.
	Weight float64
}

// Shard is all deployments of one model of a tenant. Both loads have the same unit, for instance
// the part of a replica that they fill. NaN and negative loads count as 0.
type Shard struct {
	Key string
	// Load is the work of each owner, however many there are: to decode every batch and
	// to hold every block.
	Load float64
	// Queries is the load of the shard's queries, which its owners divide.
	Queries float64
}

// Options says how shards are placed. A field that is 0, negative or NaN has its default.
type Options struct {
	Owners    int // owners of each shard, default 2
	MaxOwners int // the most owners of a shard with many queries, default all replicas
	// Slack is the part of its share that a replica may carry beyond it, default 0.25.
	Slack float64
	// Hot is the most load of queries that an owner has of one shard, in mean shares of a
	// replica. A shard above it gets more owners. Default 0.5.
	Hot float64
	// Cool is the load, in the same unit, below which those owners stay after one of them
	// leaves. At most Hot, default 0.7 times Hot.
	Cool float64
	// Previous is the placement that this one follows, nil for none.
	Previous map[string][]string
}

const (
	// These keep sums, products and quotients finite.
	minWeight = 1e-9
	maxWeight = 1e9
	maxLoad   = 1e15
	maxFactor = 1e6 // of Slack, Hot and Cool
	// maxRounds ends the search for a placement that stays when it is computed again. Nearly
	// every search takes two rounds.
	maxRounds = 16
	// rounding is the part of a bound by which a sum of loads may miss it.
	rounding = 1 + 1e-9
)

// Assign returns the owners of every shard, the primary first. Without a replica that can own
// shards, every shard has an empty list. Of replicas with one ID the largest weight counts,
// of shards with one key the largest of each load.
func Assign(shards []Shard, replicas []Replica, opts Options) map[string][]string {
	p := newPlan(distinctShards(shards), distinctReplicas(replicas), opts.withDefaults())
	if len(p.replicas) > 0 {
		p.setBounds()
		p.keepOwners()
		p.fillOwners()
		for range maxRounds {
			if moved, relieved := p.moveToBestRanked(), p.relieveReplicas(); !moved && !relieved {
				break
			}
		}
	}
	return p.ownersByKey()
}

func (o Options) withDefaults() Options {
	if o.Owners <= 0 {
		o.Owners = 2
	}
	if o.MaxOwners <= 0 {
		o.MaxOwners = math.MaxInt
	}
	o.MaxOwners = max(o.MaxOwners, o.Owners)
	o.Slack = min(positiveOr(o.Slack, 0.25), maxFactor)
	o.Hot = min(positiveOr(o.Hot, 0.5), maxFactor)
	o.Cool = min(positiveOr(o.Cool, 0.7*o.Hot), o.Hot)
	return o
}

// positiveOr returns otherwise for 0, negative values and NaN.
func positiveOr(v, otherwise float64) float64 {
	if v > 0 {
		return v
	}
	return otherwise
}

// distinctReplicas returns the replicas that can own shards, sorted by ID.
func distinctReplicas(all []Replica) (out []Replica) {
	for _, r := range all {
		if r.Weight > 0 && r.ID != "" {
			r.Weight = min(max(r.Weight, minWeight), maxWeight)
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.Weight, a.Weight))
	})
	return slices.CompactFunc(out, func(a, b Replica) bool { return a.ID == b.ID })
}

// distinctShards returns the shards sorted by key.
func distinctShards(all []Shard) (out []Shard) {
	for _, s := range all {
		s.Load, s.Queries = min(positiveOr(s.Load, 0), maxLoad), min(positiveOr(s.Queries, 0), maxLoad)
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Shard) int { return cmp.Compare(a.Key, b.Key) })
	last := 0
	for i, s := range out {
		if i == 0 {
			continue
		}
		if known := &out[last]; known.Key == s.Key {
			known.Load, known.Queries = max(known.Load, s.Load), max(known.Queries, s.Queries)
			continue
		}
		last++
		out[last] = s
	}
	return out[:min(last+1, len(out))]
}
