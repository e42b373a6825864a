package placement

import (
	"cmp"
	"math"
	"slices"
)

// plan is a placement while it is made. Shards and replicas are numbers: their places in
// shards, sorted by key, and in replicas, sorted by ID.
type plan struct {
	opts     Options
	shards   []Shard
	replicas []Replica
	rank     [][]int32 // of each shard: all replicas, best first
	heavy    []int     // shards by load of a copy, heaviest first

	want   []int     // owners that each shard gets
	copies []float64 // load of each owner of a shard
	owners [][]int32 // of each shard, in no order
	load   []float64 // of each replica
	home   []float64 // bound of each replica below which copies return to it
	low    []float64 // bound below which it takes copies that have no owner
	high   []float64 // bound above which copies leave it
}

func newPlan(shards []Shard, replicas []Replica, opts Options) *plan {
	p := &plan{opts: opts, shards: shards, replicas: replicas, owners: make([][]int32, len(shards))}
	p.rank = p.rankReplicas()
	return p
}

// setBounds decides how many owners each shard gets, and computes how much load each replica may have.
func (p *plan) setBounds() {
	base := min(p.opts.Owners, len(p.replicas))
	most := min(p.opts.MaxOwners, len(p.replicas))
	total, weights := 0.0, 0.0
	for _, s := range p.shards {
		total += float64(float64(base)*s.Load) + s.Queries
	}
	mean := total / float64(len(p.replicas))

	p.want, p.copies = make([]int, len(p.shards)), make([]float64, len(p.shards))
	total = 0
	for i, s := range p.shards {
		had := len(p.opts.Previous[s.Key])
		n := min(leastParts(s.Queries, p.opts.Hot*mean), most)
		if n < had {
			n = min(leastParts(s.Queries, p.opts.Cool*mean), had, most)
		}
		n = max(n, base)
		p.want[i], p.copies[i] = n, s.Load+s.Queries/float64(n)
		total += float64(float64(n) * p.copies[i])
		p.heavy = append(p.heavy, i)
	}
	slices.SortStableFunc(p.heavy, func(a, b int) int { return cmp.Compare(p.copies[b], p.copies[a]) })

	for _, r := range p.replicas {
		weights += r.Weight
	}
	p.load = make([]float64, len(p.replicas))
	for _, r := range p.replicas {
		share := total / weights * r.Weight * rounding
		p.home = append(p.home, share*(1+p.opts.Slack/4))
		p.low = append(p.low, share*(1+p.opts.Slack/2))
		p.high = append(p.high, share*(1+p.opts.Slack))
	}
}

// leastParts returns into how many equal parts v must be divided at least, so that each is at most one.
func leastParts(v, one float64) int {
	if v <= 0 {
		return 0
	}
	return int(min(math.Ceil(v/one/rounding), math.MaxInt32))
}

// keepOwners gives shards the owners of the previous placement. A shard that had more than it gets now keeps the best.
func (p *plan) keepOwners() {
	index := make(map[string]int32, len(p.replicas))
	for r, replica := range p.replicas {
		index[replica.ID] = int32(r)
	}
	had := make([]bool, len(p.replicas))
	for s := range p.shards {
		var found bool
		for _, id := range p.opts.Previous[p.shards[s].Key] {
			if r, ok := index[id]; ok {
				had[r], found = true, true
			}
		}
		if !found {
			continue
		}
		for _, r := range p.rank[s] {
			if had[r] && len(p.owners[s]) < p.want[s] {
				p.addOwner(s, r)
			}
			had[r] = false
		}
	}
}

// fillOwners gives shards the owners that they still lack, heavy shards first.
func (p *plan) fillOwners() {
	for _, s := range p.heavy {
		for len(p.owners[s]) < p.want[s] {
			r := p.bestWithRoom(s)
			if r < 0 {
				r = p.lightestReplica(s)
			}
			p.addOwner(s, r)
		}
	}
}

// moveToBestRanked moves copies from their worst ranked owner to one of the best ranked replicas that
// has room again, or is new. It reports whether any moved.
func (p *plan) moveToBestRanked() (moved bool) {
	for _, s := range p.heavy {
		for _, r := range p.rank[s][:p.want[s]] {
			if p.load[r]+p.copies[s] <= p.home[r] && !slices.Contains(p.owners[s], r) {
				p.moveCopy(s, p.worstOwner(s), r)
				moved = true
			}
		}
	}
	return moved
}

// worstOwner returns the owner of a shard with the lowest rank.
func (p *plan) worstOwner(s int) int32 {
	for _, r := range slices.Backward(p.rank[s]) {
		if slices.Contains(p.owners[s], r) {
			return r
		}
	}
	panic("BUG: a shard without owners")
}

// bestWithRoom returns the best ranked replica with room for one more copy of a shard, -1 for none.
func (p *plan) bestWithRoom(s int) int32 {
	for _, bounds := range [...][]float64{p.low, p.high} {
		for _, r := range p.rank[s] {
			if p.load[r]+p.copies[s] <= bounds[r] && !slices.Contains(p.owners[s], r) {
				return r
			}
		}
	}
	return -1
}

// lightestReplica returns the replica with the least load for its weight once it has a copy of a
// shard, among those that have none; -1 if all have one.
func (p *plan) lightestReplica(s int) (best int32) {
	best = -1
	for _, r := range p.rank[s] {
		if !slices.Contains(p.owners[s], r) && (best < 0 || p.loadPerWeight(r, p.copies[s]) < p.loadPerWeight(best, p.copies[s])) {
			best = r
		}
	}
	return best
}

// loadPerWeight returns what the load of a replica, with more added to it, is for each unit of its weight.
func (p *plan) loadPerWeight(r int32, more float64) float64 {
	return (p.load[r] + more) / p.replicas[r].Weight
}

func (p *plan) addOwner(s int, r int32) {
	p.owners[s] = append(p.owners[s], r)
	p.load[r] += p.copies[s]
}

func (p *plan) moveCopy(s int, from, to int32) {
	p.owners[s][slices.Index(p.owners[s], from)] = to
	p.load[from] -= p.copies[s]
	p.load[to] += p.copies[s]
}

// ownersByKey returns the IDs of the owners, by rank.
func (p *plan) ownersByKey() map[string][]string {
	out := make(map[string][]string, len(p.shards))
	for s := range p.shards {
		ids := make([]string, 0, len(p.owners[s]))
		for _, r := range p.rank[s] {
			if slices.Contains(p.owners[s], r) {
				ids = append(ids, p.replicas[r].ID)
			}
		}
		out[p.shards[s].Key] = ids
	}
	return out
}
