package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kvconductor/index/hash"
)

// TestStoreKeys stores blocks with their keys at once and one at a time, next to chains that
// another source has taught in part.
func TestStoreKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	scheme := hash.Default()
	rounds := 2000
	if underRace {
		rounds = 200
	}
	for round := range rounds {
		const blocks = 100 // of several pieces
		var engine, locals, keys []uint64
		for i := range uint64(blocks) {
			engine, locals = append(engine, 1000+i), append(locals, 1+i)
			if i == 0 {
				keys = append(keys, locals[0])
			} else {
				keys = append(keys, scheme.Next(keys[i-1], locals[i]))
			}
		}
		a, b := New(Options{Scheme: scheme}), New(Options{Scheme: scheme})
		var owners [2]Owner // of two sources, in both
		for i := range owners {
			src := a.NewSource()
			owners[i] = a.NewOwner(src)
			b.NewOwner(b.NewSource())
		}
		for range rng.IntN(4) {
			from := rng.IntN(blocks)
			to := from + rng.IntN(blocks-from) + 1
			e := &Store{Owner: owners[0], Engine: engine[from:to], Local: locals[from:to]}
			if from > 0 {
				e.Parent, e.HasParent = engine[from-1], true
			}
			if rng.IntN(4) == 0 {
				e.Owner = owners[1]
			}
			a.Store(e)
			b.Store(e)
		}
		for range 1 + rng.IntN(3) {
			e := &Store{Owner: owners[1], Rootless: true, Copies: CopyPolicy(rng.IntN(2))}
			from := rng.IntN(blocks)
			for i := from; i < min(from+1+rng.IntN(blocks), blocks); i++ {
				if rng.IntN(10) > 0 {
					e.Engine, e.Keys = append(e.Engine, engine[i]), append(e.Keys, keys[i])
				}
			}
			got, want := a.Store(e), StoreResult{}
			for i := range e.Engine {
				res := b.Store(&Store{Owner: e.Owner, Rootless: true, Copies: e.Copies, Engine: e.Engine[i : i+1], Key: e.Keys[i], HasKey: true})
				want.Added += res.Added
				want.Copies += res.Copies
				want.Resolved += res.Resolved
				want.Conflicts += res.Conflicts
			}
			if got := got.counts(); got != want {
				t.Fatalf("round %d: %+v, want %+v", round, got, want)
			}
			if k := rng.IntN(blocks); rng.IntN(2) == 0 {
				for _, x := range []*Index{a, b} {
					x.Remove(owners[k%2], engine[:k], nil, CopySet)
				}
			}
		}
		for i, x := range []*Index{a, b} {
			if err := x.Check(); err != nil {
				t.Fatalf("round %d, index %d: %v", round, i, err)
			}
		}
		var got, want Match
		for i := range keys {
			a.Match(0, keys[i:i+1], &got)
			b.Match(0, keys[i:i+1], &want)
			if !slices.Equal(got.Prefixes, want.Prefixes) {
				t.Fatalf("round %d: block %d is held by %v, want %v", round, i, got.Prefixes, want.Prefixes)
			}
			if has := b.Has(owners[1], engine[i]); a.Has(owners[1], engine[i]) != has {
				t.Fatalf("round %d: the owner has block %d: %t, want %t", round, i, !has, has)
			}
		}
		a.Match(0, keys, &got)
		b.Match(0, keys, &want)
		if !slices.Equal(got.Prefixes, want.Prefixes) || !slices.Equal(got.Later, want.Later) {
			t.Fatalf("round %d: %+v, want %+v", round, got, want)
		}
	}
}
