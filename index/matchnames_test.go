package index

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// TestNamesLeadToEachPiece holds that a query by engine hashes goes from piece to piece,
// along branches and chains that grew in many ways, while most names have no entries.
func TestNamesLeadToEachPiece(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	rng := rand.New(rand.NewPCG(3, 5))
	trunk := make([]uint64, 300)
	for i := range trunk {
		trunk[i] = rng.Uint64()
	}
	prompts := [][]uint64{trunk, {rng.Uint64()}, {0, 1, 2}}
	for _, at := range []int{1, 63, 64, 70, 128, 200} {
		branch := slices.Clone(trunk[:at])
		for range 100 {
			branch = append(branch, rng.Uint64())
		}
		prompts = append(prompts, branch)
	}
	name := func(family int, keys []uint64) (names []uint64) {
		for _, key := range keys {
			names = append(names, nameOf(family, key))
		}
		return names
	}
	var owners []Owner
	for family, most := range []int{400, 16, 1} { // blocks an event
		o := x.NewOwner(x.NewSource())
		owners = append(owners, o)
		for _, local := range prompts {
			keys := x.tree.scheme.AppendChain(nil, local)
			for from := 0; from < len(local); from += most {
				to := min(from+most, len(local))
				e := Store{Owner: o, Engine: name(family+1, keys[from:to]), Local: local[from:to], Copies: CopySet}
				if from > 0 {
					e.Parent, e.HasParent = nameOf(family+1, keys[from-1]), true
				}
				x.Store(&e)
			}
		}
		// A branch that ends at a hole, and one without its beginning.
		keys := x.tree.scheme.AppendChain(nil, prompts[4])
		x.Remove(o, name(family+1, keys[90:95]), nil, CopySet)
	}
	check := func() {
		t.Helper()
		must.Succeed(t, x.Check())
		for i, local := range prompts {
			keys := x.tree.scheme.AppendChain(nil, local)
			for n := range len(keys) + 1 {
				var want, got Match
				x.matchKeys(0, keys[:n], &want)
				for family := range owners {
					x.matchNames(0, name(family+1, keys[:n]), &got)
					if got.Blocks != want.Blocks || !reflect.DeepEqual(spread(&got), spread(&want)) {
						t.Fatalf("prompt %d, %d blocks, family %d: %+v, want %+v", i, n, family+1, got, want)
					}
				}
			}
		}
	}
	check()
	if x.names.naming != onDemand || int(x.names.table.n.Load()) > x.tree.lanes.sharedNames()/2 {
		t.Errorf("%d entries for %d names", x.names.table.n.Load(), x.tree.lanes.sharedNames())
	}
	x.ClearOwner(owners[0])
	owners = owners[1:]
	var m Match
	keys := name(2, x.tree.scheme.AppendChain(nil, trunk))
	if x.matchNames(0, keys, &m); m.Blocks != len(trunk) || len(m.Prefixes) != 2 {
		t.Errorf("%d blocks of %d owners", m.Blocks, len(m.Prefixes))
	}
	if allocs := alloctest.PerRun(100, func() { x.matchNames(0, keys, &m) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	if x.matchNames(0, keys[1:], &m); m.Blocks != 0 {
		t.Errorf("%d blocks of a chain without its first one", m.Blocks)
	}
	mixed := slices.Concat(keys[:10], name(2, x.tree.scheme.AppendChain(nil, prompts[5]))[10:70], keys[200:])
	if x.matchNames(0, mixed, &m); m.Blocks != 70 {
		t.Errorf("%d blocks of a chain that goes on elsewhere, want 70", m.Blocks)
	}
}

// TestNamesBeginWithAPrompt holds that a chain whose beginning is not known has no answer
// by engine hashes, and loose blocks have none.
func TestNamesBeginWithAPrompt(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: o, Rootless: true, Engine: []uint64{11, 12}, Local: []uint64{21, 22}, Key: 77, HasKey: true, Complete: true})
	x.Store(&Store{Owner: o, Engine: []uint64{13}})
	x.Store(&Store{Owner: o, Engine: []uint64{0}, Local: []uint64{0}})
	x.Store(&Store{Owner: o, Engine: []uint64{14}, Local: []uint64{24}})
	f := func(blocks int, engine ...uint64) {
		t.Helper()
		var m Match
		if x.matchNames(0, engine, &m); m.Blocks != blocks {
			t.Errorf("%d blocks of %d, want %d", m.Blocks, engine, blocks)
		}
	}
	f(0, 11, 12)
	f(0, 13)
	f(1, 0, 14)
	f(1, 14, 14)
	f(0, 99)
	f(0)
}

// spread returns the owners of each block.
func spread(m *Match) (all [][]uint32) {
	for owners, blocks := range ownersHolding(m) {
		for range blocks {
			all = append(all, slices.Clone(owners))
		}
	}
	return all
}
