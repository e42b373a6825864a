package truth

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// prompt returns n blocks of 16 tokens, different for every name.
func prompt(name uint32, n int) []uint32 {
	tokens := make([]uint32, 16*n)
	for i := range tokens {
		tokens[i] = name<<16 + uint32(i)
	}
	return tokens
}

// TestRowOfScenarios holds the worked scenarios of the published description, with the
// host and disk blocks of an engine in place of a shared pool.
func TestRowOfScenarios(t *testing.T) {
	const r0, r1 = 0, 1
	type at struct {
		rank   int
		tier   Tier
		blocks []int
	}
	f := func(name string, n int, holds []at, want Row) {
		t.Helper()
		tree := New(16, 0, 2, 0)
		path := tree.Intern(prompt(1, n), nil)
		for _, h := range holds {
			for _, b := range h.blocks {
				tree.Set(path[b], h.rank, h.tier)
			}
		}
		got := tree.Row(tree.Walk(prompt(1, n), nil), 0, make([]Rank, 2))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
	}
	f("nothing", 3, nil, Row{Ranks: make([]Rank, 2)})
	f("three tiers", 3,
		[]at{{r0, Device, []int{0, 1}}, {r0, Host, []int{0, 1, 2}}, {r0, Disk, []int{0, 1, 2}}},
		Row{48, 32, 48, 48, []Rank{{48, 32, 48, 48}, {}}, Share{}})
	f("one after the other", 4,
		[]at{{r0, Device, []int{0, 1}}, {r0, Host, []int{2}}, {r0, Disk, []int{3}}},
		Row{64, 32, 16, 16, []Rank{{64, 32, 48, 64}, {}}, Share{}})
	f("device, then disk", 3,
		[]at{{r0, Device, []int{0}}, {r0, Disk, []int{1, 2}}},
		Row{48, 16, 0, 32, []Rank{{48, 16, 16, 48}, {}}, Share{}})
	f("device alone", 3,
		[]at{{r0, Device, []int{0, 1, 2}}},
		Row{48, 48, 0, 0, []Rank{{48, 48, 48, 48}, {}}, Share{}})
	f("the cascade never returns to the host", 4,
		[]at{{r0, Device, []int{0}}, {r0, Host, []int{2}}, {r0, Disk, []int{1, 3}}},
		Row{64, 16, 16, 32, []Rank{{64, 16, 16, 32}, {}}, Share{}})
	f("two ranks", 2,
		[]at{{r0, Device, []int{0}}, {r1, Device, []int{1}}},
		Row{32, 32, 0, 0, []Rank{{16, 16, 16, 16}, {16, 0, 0, 0}}, Share{}})
	f("two ranks and lower tiers", 4,
		[]at{{r0, Device, []int{0, 1}}, {r1, Device, []int{0}}, {r0, Host, []int{2}}, {r0, Disk, []int{3}}},
		Row{64, 32, 16, 16, []Rank{{64, 32, 48, 64}, {16, 16, 16, 16}}, Share{}})
	f("a hole", 3,
		[]at{{r0, Device, []int{0, 2}}},
		Row{16, 16, 0, 0, []Rank{{16, 16, 16, 16}, {}}, Share{}})
	f("a hole filled by the host", 3,
		[]at{{r0, Device, []int{0, 2}}, {r0, Host, []int{1}}},
		Row{48, 32, 16, 0, []Rank{{48, 16, 32, 32}, {}}, Share{}})
	f("without the first block nothing counts", 3,
		[]at{{r0, Device, []int{1, 2}}, {r1, Disk, []int{2}}},
		Row{Ranks: make([]Rank, 2)})
}

// TestPooledRow: what pools hold counts for the row and for where a rank's
// cascade ends, and for no rank.
func TestPooledRow(t *testing.T) {
	const r0, r1, other, pool, second = 0, 1, 2, 3, 4
	type at struct {
		holder int
		tier   Tier
		blocks []int
	}
	f := func(name string, n int, holds []at, want Row) {
		t.Helper()
		tree := New(16, 0, 3, 2)
		path := tree.Intern(prompt(1, n), nil)
		for _, h := range holds {
			for _, b := range h.blocks {
				tree.Set(path[b], h.holder, h.tier)
			}
		}
		got := tree.Row(tree.Walk(prompt(1, n), nil), 0, make([]Rank, 2))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
	}
	f("another instance's blocks", 2, []at{{other, Host, []int{0, 1}}}, Row{Ranks: make([]Rank, 2)})
	f("the pool alone", 3,
		[]at{{pool, Host, []int{0, 1}}},
		Row{32, 0, 32, 0, []Rank{{0, 0, 32, 32}, {0, 0, 32, 32}}, Share{32, 32, 0}})
	f("behind a device", 4,
		[]at{{r0, Device, []int{0, 1}}, {pool, Host, []int{2}}, {pool, Disk, []int{3}}},
		Row{64, 32, 16, 16, []Rank{{32, 32, 48, 64}, {0, 0, 0, 0}}, Share{32, 16, 16}})
	f("a rank goes on where its device ends", 4,
		[]at{{r0, Device, []int{0, 1}}, {r1, Device, []int{0}}, {pool, Host, []int{1, 2}}, {pool, Disk, []int{3}}},
		Row{64, 32, 32, 16, []Rank{{32, 32, 48, 64}, {16, 16, 48, 64}}, Share{32, 32, 16}})
	f("own and pooled host blocks in one run", 3,
		[]at{{r0, Host, []int{0, 2}}, {pool, Host, []int{1}}},
		Row{48, 0, 48, 0, []Rank{{32, 0, 48, 48}, {0, 0, 0, 0}}, Share{32, 16, 0}})
	f("two pools in one run", 3,
		[]at{{pool, Host, []int{0}}, {second, Host, []int{1}}, {second, Disk, []int{1, 2}}},
		Row{48, 0, 32, 32, []Rank{{0, 0, 32, 48}, {0, 0, 32, 48}}, Share{48, 32, 32}})
	f("the cascade never returns to the pool's host", 4,
		[]at{{r0, Device, []int{0}}, {pool, Disk, []int{1, 3}}, {pool, Host, []int{2}}},
		Row{64, 16, 16, 32, []Rank{{16, 16, 16, 32}, {0, 0, 0, 0}}, Share{48, 16, 32}})
	f("a pool fills a hole", 3,
		[]at{{r0, Device, []int{0, 2}}, {pool, Disk, []int{1}}},
		Row{48, 32, 0, 16, []Rank{{32, 16, 16, 32}, {0, 0, 0, 0}}, Share{32, 0, 16}})
	f("a pool behind a hole", 3,
		[]at{{r0, Device, []int{0}}, {pool, Host, []int{2}}},
		Row{16, 16, 0, 0, []Rank{{16, 16, 16, 16}, {0, 0, 0, 0}}, Share{0, 0, 0}})
	f("on a device and in the pool", 2,
		[]at{{r0, Device, []int{0, 1}}, {pool, Host, []int{0, 1}}, {pool, Disk, []int{0}}},
		Row{32, 32, 32, 16, []Rank{{32, 32, 32, 32}, {0, 0, 32, 32}}, Share{0, 32, 16}})
}

func TestWalkFindsOnlyWhatIsThere(t *testing.T) {
	tree := New(16, 0, 1, 0)
	path := tree.Intern(prompt(1, 3), nil)
	f := func(tokens []uint32, want int) {
		t.Helper()
		got := tree.Walk(tokens, nil)
		if len(got) != want || !slices.Equal(got, path[:want]) {
			t.Errorf("walk over %d tokens found %v, want %v", len(tokens), got, path[:want])
		}
	}
	f(prompt(1, 3), 3)
	f(prompt(1, 5), 3)
	f(prompt(1, 3)[:47], 2)
	f(prompt(1, 1)[:15], 0)
	f(nil, 0)
	f(prompt(2, 3), 0)
	f(append(prompt(1, 1), prompt(2, 1)...), 1)
	f(prompt(1, 3)[16:], 0)

	if got := tree.Path(path[2]); !slices.Equal(got, prompt(1, 3)) {
		t.Errorf("the path of the last block is %v", got)
	}
}

// TestLookAhead: a block is found if the tokens behind it agree, and not without them.
func TestLookAhead(t *testing.T) {
	tree := New(4, 2, 1, 0)
	if path := tree.Intern([]uint32{1, 2, 3, 4, 5}, nil); len(path) != 0 || tree.Len() != 0 {
		t.Fatalf("a block with one token behind it became %v", path)
	}
	path := tree.Intern([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, nil)
	if len(path) != 2 || tree.BlockSize() != 4 || tree.Ahead() != 2 {
		t.Fatalf("path %v of blocks of %d and %d", path, tree.BlockSize(), tree.Ahead())
	}
	f := func(tokens []uint32, want int) {
		t.Helper()
		if got := tree.Walk(tokens, nil); !slices.Equal(got, path[:want]) {
			t.Errorf("the walk over %d found %v, want %v", tokens, got, path[:want])
		}
	}
	f([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 2)
	f([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1)
	f([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, 1)
	f([]uint32{1, 2, 3, 4, 5, 6, 0}, 1)
	f([]uint32{1, 2, 3, 4, 5, 0, 7, 8, 9, 10}, 0)
	f([]uint32{1, 2, 3, 4, 5}, 0)

	if got := tree.Tokens(path[1]); !slices.Equal(got, []uint32{5, 6, 7, 8}) {
		t.Errorf("tokens %d", got)
	}
	if got := tree.AheadTokens(path[1]); !slices.Equal(got, []uint32{9, 10}) {
		t.Errorf("tokens behind it %d", got)
	}
	if got := tree.Path(path[1]); !slices.Equal(got, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
		t.Errorf("the path of the last block is %d", got)
	}
	if got := tree.Path(Root); len(got) != 0 {
		t.Errorf("the path of the root is %d", got)
	}

	// Another token behind it makes another block.
	tree.Set(path[0], 0, Device)
	other := tree.Intern([]uint32{1, 2, 3, 4, 5, 7}, nil)
	if len(other) != 1 || other[0] == path[0] {
		t.Fatalf("path %v", other)
	}
	row := tree.Row(tree.Walk([]uint32{1, 2, 3, 4, 5, 7, 7, 8}, nil), 0, make([]Rank, 1))
	if !reflect.DeepEqual(row, Row{Ranks: make([]Rank, 1)}) {
		t.Errorf("row %+v of a prompt with other tokens behind its block", row)
	}
}

// TestLookAheadModel compares rows with a search of the tokens of held prefixes.
func TestLookAheadModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	draw := func() []uint32 {
		tokens := make([]uint32, rng.IntN(16))
		for i := range tokens {
			tokens[i] = uint32(rng.IntN(2))
		}
		return tokens
	}
	longest := 0
	for _, ahead := range []int{0, 1, 2, 5} {
		tree := New(2, ahead, 1, 0)
		held := map[string]bool{} // text of a prefix with the tokens behind it
		for range 30 {
			tokens := draw()
			path := tree.Intern(tokens, nil)
			for i, id := range path {
				if rng.IntN(3) > 0 {
					tree.Set(id, 0, Device)
					held[fmt.Sprint(tokens[:2*(i+1)+ahead])] = true
				}
			}
			if n := len(path); n > 0 {
				tree.Unpin(path[n-1])
			}
		}
		for range 2000 {
			prompt := draw()
			want := 0
			for want+2+ahead <= len(prompt) && held[fmt.Sprint(prompt[:want+2+ahead])] {
				want += 2
			}
			row := tree.Row(tree.Walk(prompt, nil), 0, make([]Rank, 1))
			if row.Longest != want || row.GPU != want || row.Ranks[0] != (Rank{want, want, want, want}) {
				t.Fatalf("look-ahead %d, prompt %d: %+v, want %d", ahead, prompt, row, want)
			}
			longest = max(longest, want)
		}
	}
	if longest < 4 {
		t.Errorf("the longest match had %d tokens", longest)
	}
}

// TestTreeAgainstStrings lets random paths be interned, held and let go, and compares with a
// set of prefixes kept as strings.
func TestTreeAgainstStrings(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	tree := New(4, 0, 2, 1)
	type hold struct {
		id     ID
		prefix string
		engine int
		tier   Tier
	}
	type key struct {
		prefix string
		engine int
	}
	var holds []hold
	model := map[key]Tier{}
	text := func(tokens []uint32) string {
		b := make([]byte, len(tokens))
		for i, t := range tokens {
			b[i] = byte(t)
		}
		return string(b)
	}
	for step := range 20_000 {
		if rng.IntN(2) == 0 || len(holds) == 0 {
			tokens := make([]uint32, 4*(1+rng.IntN(4)))
			for i := range tokens {
				tokens[i] = uint32(rng.IntN(2))
			}
			path := tree.Intern(tokens, nil)
			n := rng.IntN(len(path))
			h := hold{path[n], text(tokens[:4*(n+1)]), rng.IntN(3), Tier(1 << rng.IntN(3))}
			k := key{h.prefix, h.engine}
			if added := tree.Set(h.id, h.engine, h.tier); added != (model[k]&h.tier == 0) {
				t.Fatalf("step %d: set returned %t", step, added)
			} else if added {
				model[k] |= h.tier
				holds = append(holds, h)
			}
			tree.Unpin(path[len(path)-1])
		} else {
			n := rng.IntN(len(holds))
			h := holds[n]
			holds = slices.Delete(holds, n, n+1)
			if !tree.Unset(h.id, h.engine, h.tier) {
				t.Fatalf("step %d: %v was not held", step, h)
			}
			k := key{h.prefix, h.engine}
			if model[k] &^= h.tier; model[k] == 0 {
				delete(model, k)
			}
		}
		if step%100 == 0 {
			got := map[key]Tier{}
			for e := range 3 {
				tree.Each(e, func(id ID, held Tier) { got[key{text(tree.Path(id)), e}] = held })
			}
			if !reflect.DeepEqual(got, model) {
				t.Fatalf("step %d: the tree holds %v, want %v", step, got, model)
			}
		}
	}
	for _, h := range holds {
		tree.Unset(h.id, h.engine, h.tier)
	}
	if tree.Len() != 0 {
		t.Errorf("%d blocks live although nobody holds any", tree.Len())
	}
}
