package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"

	"example.com/conductor/lab/sim"
)

// counted returns a policy that knows how many requests each rank has that have no first token, as Envoy knows its active requests.
// Decoding takes no time in the simulation. choose may not keep or change active.
func counted(name string, ranks int, choose func(prompt []uint32, active []int) int) sim.Policy {
	active := make([]int, ranks)
	return sim.Policy{Name: name, Choose: func(_ context.Context, prompt []uint32) (rank int, computed func()) {
		rank = choose(prompt, active)
		active[rank]++
		return rank, func() { active[rank]-- }
	}}
}

// leastRequest is Envoy's LEAST_REQUEST with choice_count 2: of two random ranks it takes the one with fewer active requests.
func leastRequest(ranks int, seed uint64) sim.Policy {
	dice := rand.New(rand.NewPCG(seed, 0x6c65617374))
	return counted("least request, of 2", ranks, func(_ []uint32, active []int) int {
		a, b := dice.IntN(ranks), dice.IntN(ranks)
		if active[b] < active[a] {
			return b
		}
		return a
	})
}

// leastOfAll is Envoy's LEAST_REQUEST with FULL_SCAN: it takes the rank with the fewest active requests, and a random one of equals.
func leastOfAll(ranks int, seed uint64) sim.Policy {
	dice := rand.New(rand.NewPCG(seed, 0x66756c6c))
	return counted("least request, of all", ranks, func(_ []uint32, active []int) int {
		best := -1
		for _, n := range dice.Perm(ranks) {
			if best < 0 || active[n] < active[best] {
				best = n
			}
		}
		return best
	})
}

// PrefixTokens are the first tokens of a prompt that decide where prefix hashing sends it.
const PrefixTokens = 1024

// balance is Envoy's hash_balance_factor: a rank may have 1.25 times its share of the active requests.
const balance = 125

// prefixHash is consistent hashing, as of Envoy's RING_HASH or MAGLEV, by a header that has a hash of the first tokens of the prompt,
// which something in front of Envoy has to compute. Each hash has its own order of the ranks, and the first is taken. If the load is
// bounded, a rank is passed over that has its share of the active requests, as with Envoy's hash_balance_factor.
func prefixHash(ranks int, bounded bool) sim.Policy {
	name := fmt.Sprintf("prefix hash, %d tokens", PrefixTokens)
	if bounded {
		name += ", bounded"
	}
	return counted(name, ranks, func(prompt []uint32, active []int) int {
		h := fnv.New64a()
		_ = binary.Write(h, binary.LittleEndian, prompt[:min(len(prompt), PrefixTokens)]) // a hash takes all
		order := rand.New(rand.NewPCG(h.Sum64(), 0x72696e67)).Perm(ranks)
		if !bounded {
			return order[0]
		}
		sum := 0
		for _, n := range active {
			sum += n
		}
		allowed := ((sum+1)*balance + 99) / 100
		allowed = (allowed + ranks - 1) / ranks
		least := order[0]
		for _, n := range order {
			if active[n] < allowed {
				return n
			}
			if active[n] < active[least] {
				least = n
			}
		}
		return least
	})
}
