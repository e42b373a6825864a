package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestHashesInAnyOrder holds that blocks which are announced by their hashes alone, in any order and some twice, are
// held as if each had come in an event of its own.
func TestHashesInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var pair [2]*Index
		var host [2]Owner
		var chains [][]uint64
		for i := range pair {
			pair[i] = New(Options{Scheme: hash.DefaultScheme()})
			s := pair[i].NewSource()
			device := pair[i].NewOwner(s)
			host[i] = pair[i].NewOwner(s)
			if i == 0 {
				for range 1 + rng.IntN(4) {
					chain := make([]uint64, 1+rng.IntN(300))
					for j := range chain {
						chain[j] = rng.Uint64()
					}
					chains = append(chains, chain)
				}
			}
			for _, chain := range chains {
				local := make([]uint64, len(chain))
				for j := range local {
					local[j] = mix(chain[j])
				}
				pair[i].Store(&Store{Owner: device, Engine: chain, Local: local})
			}
		}
		for range 6 {
			var event []uint64
			for _, chain := range chains {
				from := rng.IntN(len(chain))
				event = append(event, chain[from:from+rng.IntN(len(chain)-from+1)]...)
			}
			if len(event) > 0 && rng.IntN(2) == 0 {
				event = append(event, event[rng.IntN(len(event))])
			}
			if rng.IntN(4) == 0 {
				event = append(event, rng.Uint64()) // of no chain
			}
			rng.Shuffle(len(event), func(i, j int) { event[i], event[j] = event[j], event[i] })
			policy := CopyPolicy(rng.IntN(2))
			var each StoreResult
			for _, h := range event {
				r := pair[1].Store(&Store{Owner: host[1], Engine: []uint64{h}, Copies: policy})
				each.Added, each.Copies, each.HashOnly = each.Added+r.Added, each.Copies+r.Copies, each.HashOnly+r.HashOnly
			}
			all := pair[0].Store(&Store{Owner: host[0], Engine: slices.Clone(event), Copies: policy})
			if all.Added != each.Added || all.Copies != each.Copies || all.HashOnly != each.HashOnly {
				t.Fatalf("%d blocks at once: %+v, one by one %+v", len(event), all, each)
			}
			gone := event[:rng.IntN(len(event)+1)]
			if a, b := pair[0].Remove(host[0], gone, nil, policy), pair[1].Remove(host[1], gone, nil, policy); a != b {
				t.Fatalf("removed %+v, where they came one by one %+v", a, b)
			}
		}
		for i, x := range pair {
			must.Succeed(t, x.Check())
			if a, b := x.Inspect().CountCopies(host[i]), pair[0].Inspect().CountCopies(host[0]); a != b {
				t.Fatalf("%d blocks and copies, one by one %d", b, a)
			}
		}
		for _, chain := range chains {
			var m [2]Match
			for i, x := range pair {
				x.Match(Lookup{Names: chain}, nil, &m[i])
			}
			if !slices.Equal(m[0].Prefixes, m[1].Prefixes) || !slices.Equal(m[0].Later, m[1].Later) {
				t.Fatalf("answer %v %v, one by one %v %v", m[0].Prefixes, m[0].Later, m[1].Prefixes, m[1].Later)
			}
		}
	}
}
