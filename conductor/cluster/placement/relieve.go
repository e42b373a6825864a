package placement

import (
	"cmp"
	"slices"
	"sort"
)

// relieveReplicas moves copies away from replicas above their bound, until none is above it or no
// copy fits elsewhere. Each move lowers the larger load of two replicas, so moves end; the
// bound of the rounds is for loads that differ so much that sums lose the small ones. It
// reports whether any moved.
func (p *plan) relieveReplicas() (moved bool) {
	for range maxRounds {
		again := false
		for r := range p.replicas {
			if p.load[r] > p.high[r] && p.relieveReplica(int32(r)) {
				again, moved = true, true
			}
		}
		if !again {
			break
		}
	}
	return moved
}

// relieveReplica moves copies away from a replica until it is below its bound: each time the
// lightest copy that suffices, or else the heaviest that fits elsewhere. It reports whether
// any moved.
func (p *plan) relieveReplica(r int32) (moved bool) {
	held := p.heldShards(r)
	for p.load[r] > p.high[r] {
		enough := sort.Search(len(held), func(i int) bool { return p.copies[held[i]] >= p.load[r]-p.high[r] })
		evicted := -1
		for i := enough; i < len(held) && evicted < 0; i++ {
			if p.evictCopy(held[i], r) {
				evicted = i
			}
		}
		for i := enough - 1; i >= 0 && evicted < 0; i-- {
			if p.evictCopy(held[i], r) {
				evicted = i
			}
		}
		if evicted < 0 {
			return moved
		}
		held, moved = slices.Delete(held, evicted, evicted+1), true
	}
	return moved
}

// heldShards returns the shards with a load that a replica owns, lightest first.
func (p *plan) heldShards(r int32) (out []int) {
	for s, owners := range p.owners {
		if p.copies[s] > 0 && slices.Contains(owners, r) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(p.copies[a], p.copies[b]) })
	return out
}

// evictCopy moves a copy from a replica to another with room for it, or to one that stays clearly
// lighter than the first one was, and reports whether there is one.
func (p *plan) evictCopy(s int, from int32) bool {
	to := p.bestWithRoom(s)
	if to < 0 {
		to = p.lightestReplica(s)
		if to < 0 || p.loadPerWeight(to, p.copies[s])*(1+p.opts.Slack/2) >= p.loadPerWeight(from, 0) {
			return false
		}
	}
	p.moveCopy(s, from, to)
	return true
}
