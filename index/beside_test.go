package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kvconductor/index/hash"
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

// TestMatchBeside compares with a look at every block in every place.
func TestMatchBeside(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		places := []*Index{New(Options{Scheme: hash.Default()}), New(Options{Scheme: hash.Default()})}
		const blocks = 12
		chains := [3][]uint64{}
		for j := range chains {
			for i := range blocks {
				chains[j] = append(chains[j], uint64(100*j+i))
			}
		}
		of := []int{0, 0, 1} // which index each chain is looked up in
		held := map[[2]uint64][]uint32{}
		for p, x := range places {
			src := x.NewSource()
			for range 3 {
				o := x.NewOwner(src)
				gone := rng.IntN(4) == 0
				for j, at := range of {
					for i := range blocks {
						if at != p || rng.IntN(4) == 0 {
							continue
						}
						key := chains[j][i]
						x.Store(&Store{Owner: o, Rootless: true, Engine: []uint64{key}})
						if !gone {
							held[[2]uint64{uint64(p), key}] = append(held[[2]uint64{uint64(p), key}], uint32(o))
						}
					}
				}
				if gone {
					x.Clear(o)
				}
			}
		}
		first := uint32(10)
		var want [][]uint32
		for i := range blocks {
			var all []uint32
			for j, p := range of {
				for _, o := range held[[2]uint64{uint64(p), chains[j][i]}] {
					all = append(all, o+uint32(p)*first)
				}
			}
			if len(all) == 0 {
				break
			}
			slices.Sort(all)
			want = append(want, slices.Compact(all))
		}
		var m Match
		c := [3]*countedKeys{{list: chains[0]}, {list: chains[1]}, {list: chains[2]}}
		others := []Beside{{Index: places[0], Chain: c[1]}, {Index: places[1], Chain: c[2], First: first}}
		for range 2 { // reuse
			places[0].MatchBeside(c[0], others, &m)
			var got [][]uint32
			for i, r := range m.Runs {
				if i > 0 && slices.Equal(r.Owners, m.Runs[i-1].Owners) {
					t.Fatalf("seed %d: runs %d and %d are one", seed, i-1, i)
				}
				for range r.Blocks {
					got = append(got, r.Owners)
				}
			}
			if m.Blocks != len(want) || !slices.EqualFunc(got, want, slices.Equal) {
				t.Fatalf("seed %d: got %v, want %v", seed, got, want)
			}
		}
		for j := range c {
			if c[j].asked > len(want)+1 && !anyRetired(places) {
				t.Fatalf("seed %d: chain %d was asked for %d blocks, %d are held", seed, j, c[j].asked, len(want))
			}
		}
	}
}

func anyRetired(places []*Index) bool {
	return slices.ContainsFunc(places, func(x *Index) bool { return x.gen.Load().ids.gone > 0 })
}

// TestTeachMoves: what others teach moves blocks held under the hash itself, with
// their copies.
func TestTeachMoves(t *testing.T) {
	x := New(Options{Scheme: hash.Default()})
	engine, pool := x.NewSource(), x.NewSource()
	e, p := x.NewOwner(engine), x.NewOwner(pool)
	for range 2 {
		x.Store(&Store{Owner: p, Engine: []uint64{7}, Rootless: true})
	}
	if got := x.HeldOf([]uint64{5, 7, 9}, nil); !slices.Equal(got, []uint64{7}) {
		t.Fatalf("held of 5, 7, 9: %v", got)
	}
	x.Store(&Store{Owner: e, Engine: []uint64{7}, Local: []uint64{70}})
	key, known := x.Means(7)
	if !known || key != 70 {
		t.Fatalf("7 means %d, %v", key, known)
	}
	if !x.Teach(pool, 7, key) || x.Teach(pool, 7, key) {
		t.Fatal("the block did not move once")
	}
	var m Match
	x.Match([]uint64{70}, &m)
	if len(m.Runs) != 1 || len(m.Runs[0].Owners) != 2 {
		t.Fatalf("holders of the key: %v", m.Runs)
	}
	if got := x.HeldOf([]uint64{7}, nil); len(got) != 0 {
		t.Fatalf("still held under the hash: %v", got)
	}
	for i, want := range []RemoveResult{{Copies: 1}, {Removed: 1}, {Unknown: 1}} {
		if got := x.Remove(p, []uint64{7}, nil, CopyCount); got != want {
			t.Fatalf("removal %d: %+v, want %+v", i, got, want)
		}
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestForgotten: a name outlives its block until a rebuild, which hands it out.
func TestForgotten(t *testing.T) {
	x := New(Options{Scheme: hash.Default(), KeepForgotten: 2})
	o := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: o, Engine: []uint64{1, 2, 3}, Local: []uint64{10, 20, 30}})
	key, _ := x.Means(1)
	x.Remove(o, []uint64{1, 2, 3}, nil, CopySet)
	if got, known := x.Means(1); !known || got != key || x.Knows(0, 1) {
		t.Fatalf("after its removal 1 means %d, %v", got, known)
	}
	n := 0
	x.Names(func(Name) bool { n++; return true })
	if n != 3 || x.Forgotten() != nil {
		t.Fatalf("%d names, or some forgotten already", n)
	}
	x.Compact()
	if got := x.Forgotten(); len(got) != 2 || x.Forgotten() != nil {
		t.Fatalf("forgotten: %v", got)
	}
	if _, known := x.Means(1); known {
		t.Fatal("a name is known after it was forgotten")
	}
}
