package sim

import (
	"math/rand/v2"
	"strconv"
	"sync"
)

// router picks a rank for a request the way a scheduler in front of the engines
// would: the longest match the server answered, minus the load. It believes the
// server, right or wrong.
type router struct {
	mu   sync.Mutex // guards the rest
	rng  *rand.Rand
	load []float64 // tokens computed lately, by rank
}

// forget is how much of a rank's load is left after one request of the fleet.
// With it a rank is charged for about the last 30 requests.
const forget = 0.97

func newRouter(ranks int, seed uint64) *router {
	return &router{rng: rand.New(rand.NewPCG(seed, 0x726f75746572)), load: make([]float64, ranks)}
}

// pick returns the rank for a prompt. Rows may be missing.
func (o *router) pick(f *Fleet, rows map[string]*row, prompt int) *rank {
	o.mu.Lock()
	defer o.mu.Unlock()

	best, ties := (*instance)(nil), 0
	var bestScore float64
	for _, in := range f.instances {
		score := 0.0
		if r := rows[in.id]; r != nil && r.Longest != nil {
			score = float64(*r.Longest)
		}
		for _, r := range in.ranks {
			score -= o.load[in.first+r.n] / float64(len(in.ranks))
		}
		if better(o.rng, score, bestScore, &ties, best == nil) {
			best, bestScore = in, score
		}
	}

	chosen, ties := (*rank)(nil), 0
	hit := 0
	for _, r := range best.ranks {
		reuse := 0
		if row := rows[best.id]; row != nil {
			if c := row.Ranks[strconv.Itoa(r.n)]; c != nil && c.Disk != nil {
				reuse = *c.Disk
			}
		}
		score := float64(reuse) - o.load[best.first+r.n]
		if better(o.rng, score, bestScore, &ties, chosen == nil) {
			chosen, bestScore, hit = r, score, reuse
		}
	}

	for i := range o.load {
		o.load[i] *= forget
	}
	o.load[best.first+chosen.n] += float64(max(prompt-hit, 0))
	return chosen
}

// better reports whether a candidate beats the best so far; equal scores win
// with the chance that makes all of them equally likely.
func better(rng *rand.Rand, score, best float64, ties *int, first bool) bool {
	switch {
	case first || score > best:
		*ties = 1
		return true
	case score < best:
		return false
	}
	*ties++
	return rng.IntN(*ties) == 0
}
