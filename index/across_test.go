package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// countedKeys is a chain that counts how far it was asked.
type countedKeys struct {
	list  []uint64
	asked int
}

func (k *countedKeys) Len() int { return len(k.list) }

func (k *countedKeys) At(i int) uint64 {
	k.asked = max(k.asked, i+1)
	return k.list[i]
}

// TestMatchPlaces compares with a look at every block in every place.
func TestMatchPlaces(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := New(Options{Scheme: hash.DefaultScheme()})
		const blocks, constant = 12, 0x5555_0000_0000_0001
		x.NewIdentity(constant)
		chains := [3][]uint64{} // of the hashes that blocks wait under
		for j := range chains {
			for i := range blocks {
				chains[j] = append(chains[j], uint64(100*j+i))
			}
		}
		held := map[uint64][]uint32{}
		src := x.NewSource()
		for range 6 {
			o := x.NewOwner(src)
			gone := rng.IntN(4) == 0
			for j := range chains {
				for i := range blocks {
					if rng.IntN(4) == 0 {
						continue
					}
					key := chains[j][i]
					x.Store(&Store{Owner: o, Rootless: true, Engine: []uint64{key}})
					if !gone {
						held[key] = append(held[key], uint32(o))
					}
				}
			}
			if gone {
				x.ClearOwner(o)
			}
		}
		var want [][]uint32
		for i := range blocks {
			var all []uint32
			for j := range chains {
				all = append(all, held[chains[j][i]]...)
			}
			if len(all) == 0 {
				break
			}
			slices.Sort(all)
			want = append(want, slices.Compact(all))
		}
		for i := range chains[2] {
			chains[2][i] ^= constant // canonical sequence hashes
		}
		var m Match
		c := [3]*countedKeys{{list: chains[0]}, {list: chains[1]}, {list: chains[2]}}
		others := []Lookup{{Chain: c[1], Loose: rng.IntN(2) == 0}, {Constant: constant, Chain: c[2]}}
		for range 2 { // reuse
			x.Match(Lookup{Chain: c[0]}, others, &m)
			var got [][]uint32
			for owners, blocks := range ownersHolding(&m) {
				for range blocks {
					got = append(got, owners)
				}
			}
			if wrong := m.sound(); wrong != "" {
				t.Fatalf("seed %d: %s", seed, wrong)
			}
			if m.Blocks != len(want) || !slices.EqualFunc(got, want, slices.Equal) {
				t.Fatalf("seed %d: got %v, want %v", seed, got, want)
			}
		}
		for j := range c {
			if c[j].asked > len(want)+1 && x.names.sweep.left == 0 {
				t.Fatalf("seed %d: chain %d was asked for %d blocks, %d are held", seed, j, c[j].asked, len(want))
			}
		}
	}
}

// TestStoresMoveOthers: what others teach moves blocks held under the hash itself, with
// their copies.
func TestStoresMoveOthers(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	engine, pool := x.NewSource(), x.NewSource()
	e, p := x.NewOwner(engine), x.NewOwner(pool)
	for range 2 {
		x.Store(&Store{Owner: p, Engine: []uint64{7}, Rootless: true})
	}
	var m Match
	if x.matchKeys(0, []uint64{7}, &m); len(m.Prefixes) != 1 || !x.HasLoose() {
		t.Fatalf("holders under the hash: %v", m.Prefixes)
	}
	x.Store(&Store{Owner: e, Engine: []uint64{7}, Local: []uint64{70}})
	key, known := x.means(7)
	if !known || key != 70 {
		t.Fatalf("7 means %d, %v", key, known)
	}
	x.matchKeys(0, []uint64{70}, &m)
	if len(m.Prefixes) != 2 {
		t.Fatalf("holders of the key: %v", m.Prefixes)
	}
	if x.matchKeys(0, []uint64{7}, &m); m.Blocks != 0 || x.HasLoose() {
		t.Fatalf("still held under the hash: %v", m.Prefixes)
	}
	for i, want := range []RemoveResult{{Copies: 1}, {Removed: 1}, {Unknown: 1}} {
		if got := x.Remove(p, []uint64{7}, nil, CopyCount); got != want {
			t.Fatalf("removal %d: %+v, want %+v", i, got, want)
		}
	}
	must.Succeed(t, x.Check())
}

// TestPlacedKeepsNames holds that a block of known key keeps its names and holders when
// one of its sources, which holds other blocks under their hashes, gives it a place.
func TestPlacedKeepsNames(t *testing.T) {
	for _, more := range []bool{false, true} {
		x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
		var src [3]Source
		var own [3]Owner
		for i := range src {
			src[i] = x.NewSource()
			own[i] = x.NewOwner(src[i])
		}
		key := hash.DefaultScheme().Next(70, 71)
		e := &Stretch{Engine: []uint64{1}, Key: key, HasKey: true, ClientHashes: []uint64{71}}
		x.Store(&Store{Owner: own[0], Engine: []uint64{5}}) // source 0 holds something under its hash
		x.RestoreStretch(own[0], e, e.ClientHashes, false)
		x.RestoreStretch(own[1], &Stretch{Engine: []uint64{2}, Key: key, HasKey: true, ClientHashes: []uint64{71}}, e.ClientHashes, false)
		if more {
			x.Store(&Store{Owner: own[2], Engine: []uint64{key}}) // source 2 knows the key alone
		}
		x.RestoreStretch(own[0], e, e.ClientHashes, true)
		for _, engine := range []uint64{1, 2} {
			if got, known := x.means(engine); got != key || !known {
				t.Errorf("%t: %d means %d, %t, want %d", more, engine, got, known, key)
			}
		}
		for o, engine := range map[Owner]uint64{own[0]: 1, own[2]: key} {
			if got := x.Remove(o, []uint64{engine}, nil, CopySet); got.Removed != 1 && (more || o == own[0]) {
				t.Errorf("%t: removal of %d: %+v", more, engine, got)
			}
		}
		must.Report(t, x.Check())
	}
}

// TestPlacedKeepsCopies holds that a block of known key keeps its copies when it gets a
// place, and that the event counts as one more.
func TestPlacedKeepsCopies(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	o := x.NewOwner(x.NewSource())
	e := &Stretch{Engine: []uint64{2}, Key: hash.DefaultScheme().Next(70, 71), HasKey: true, ClientHashes: []uint64{71},
		Copies: map[int]int{0: 1}}
	x.RestoreStretch(o, e, e.ClientHashes, false)
	x.Store(&Store{Owner: o, Engine: []uint64{1, 2}, Local: []uint64{70, 71}})
	for i, want := range []RemoveResult{{Copies: 1}, {Copies: 1}, {Removed: 1}} {
		if got := x.Remove(o, []uint64{2}, nil, CopyCount); got != want {
			t.Errorf("removal %d: %+v, want %+v", i, got, want)
		}
	}
	must.Report(t, x.Check())
}

// TestChildOfLooseIsKnown holds that a block whose parent has no place is the one that its
// engine hash means, where the keys are equal.
func TestChildOfLooseIsKnown(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	a, b := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	locals := []uint64{70, 71, 72}
	x.Store(&Store{Owner: a, Engine: []uint64{1, 2, 3}, Local: locals})
	x.Store(&Store{Owner: b, Engine: []uint64{3}})
	x.RestoreStretch(b, &Stretch{Engine: []uint64{12}, Key: hash.DefaultScheme().Next(70, 71), HasKey: true, ClientHashes: locals[1:2]},
		locals[1:2], false)
	got := x.Store(&Store{Owner: b, Parent: 12, HasParent: true, Engine: []uint64{3}, Local: locals[2:]})
	if want := (StoreResult{Copies: 1}); got.counts() != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	must.Report(t, x.Check())
}

// TestNamesLeaveWithBlocks: where no ghosts are kept, a name leaves with its block.
func TestNamesLeaveWithBlocks(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: o, Engine: []uint64{1, 2, 3}, Local: []uint64{10, 20, 30}})
	if key, known := x.means(1); !known || key != 10 {
		t.Fatalf("1 means %d, %v", key, known)
	}
	x.Remove(o, []uint64{1, 2, 3}, nil, CopySet)
	if _, known := x.means(1); known || x.knows(0, 1) {
		t.Fatal("a name is known after its block has left")
	}
	if n := x.Stats().Aliases; n != 0 {
		t.Errorf("%d names are left", n)
	}
}
