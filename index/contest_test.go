package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
)

// contestBench is an index of sources that announce tokens, and of a pool that announces
// hashes alone. Blocks begin prompts, and each belongs to one hash.
type contestBench struct {
	t      *testing.T
	index  *Index
	src    []Source
	owners []Owner             // of src, the pool's last
	means  []map[uint64]uint64 // by source: hash -> key of the block that it holds by the hash
	pooled map[uint64]bool     // hashes that the pool holds
	hashes uint64
}

func newContestBench(t *testing.T, sources int, named bool) *contestBench {
	b := &contestBench{t: t, hashes: 6, pooled: make(map[uint64]bool)}
	b.index = New(Options{Scheme: hash.DefaultScheme(), Contradicts: func() bool { return true }})
	if named {
		b.index.NameAllBlocks()
	}
	for range sources + 1 {
		s := b.index.NewSource()
		b.src, b.owners = append(b.src, s), append(b.owners, b.index.NewOwner(s))
		b.means = append(b.means, make(map[uint64]uint64))
	}
	return b
}

// holdsKey reports whether an owner holds the base block of a key, or a block under a hash itself.
func (x *Index) holdsKey(o Owner, key uint64) bool {
	var m Match
	x.matchKeys(0, []uint64{key}, &m)
	return slices.Contains(m.Prefixes, Prefix{Owner: uint32(o), Blocks: 1})
}

func (b *contestBench) pool() int { return len(b.src) - 1 }

// keyOf returns the key, and the local hash, of a block.
func keyOf(h, variant uint64) uint64 { return h*100 + variant }

func (b *contestBench) store(s int, h, variant uint64) {
	b.index.Store(&Store{Owner: b.owners[s], Engine: []uint64{h}, Local: []uint64{keyOf(h, variant)}, Copies: CopySet})
	b.means[s][h] = keyOf(h, variant)
	b.follow()
}

func (b *contestBench) remove(s int, h uint64) {
	res := b.index.Remove(b.owners[s], []uint64{h}, nil, CopySet)
	if _, held := b.means[s][h]; held != (res.Removed == 1) {
		b.t.Errorf("source %d removes %d: %+v, held %v", s, h, res, held)
	}
	delete(b.means[s], h)
	b.index.DecideContests([]uint64{h})
	b.follow()
}

func (b *contestBench) clear(s int) {
	b.index.ClearOwner(b.owners[s])
	clear(b.means[s])
	b.index.DecideContests(nil)
	b.follow()
}

func (b *contestBench) offload(h uint64) {
	b.index.Store(&Store{Owner: b.owners[b.pool()], Engine: []uint64{h}, Rootless: true, Copies: CopySet})
	b.pooled[h] = true
	b.follow()
}

func (b *contestBench) reload(h uint64) {
	res := b.index.Remove(b.owners[b.pool()], []uint64{h}, nil, CopySet)
	if b.pooled[h] != (res.Removed == 1) {
		b.t.Errorf("the pool removes %d: %+v, held %v", h, res, b.pooled[h])
	}
	delete(b.pooled, h)
}

// follow does what the application does after an event. What waits gets its place with the event,
// or when the contest is decided.
func (b *contestBench) follow() { b.index.TakeContests() }

// check compares the pool's blocks with the rule.
func (b *contestBench) check(what string) {
	b.t.Helper()
	if err := b.index.Check(); err != nil {
		b.t.Fatalf("after %s: %v", what, err)
	}
	contested, concerned := 0, make([]bool, b.pool())
	for h := uint64(1); h <= b.hashes; h++ {
		var meant []uint64
		for _, m := range b.means[:b.pool()] {
			if key, ok := m[h]; ok && !slices.Contains(meant, key) {
				meant = append(meant, key)
			}
		}
		if len(meant) > 1 {
			contested++
		}
		for s, m := range b.means[:b.pool()] {
			_, holds := m[h]
			concerned[s] = concerned[s] || holds && len(meant) > 1
		}
		held := 0
		for v := range uint64(4) {
			if key := keyOf(h, v); b.index.holdsKey(b.owners[b.pool()], key) {
				if held++; len(meant) > 0 && (len(meant) > 1 || meant[0] != key) {
					b.t.Fatalf("after %s: the pool holds block %d, engines mean %d by %d", what, key, meant, h)
				}
			}
		}
		waits := b.index.holdsKey(b.owners[b.pool()], h)
		if n := held + map[bool]int{true: 1}[waits]; n != map[bool]int{true: 1}[b.pooled[h]] {
			b.t.Fatalf("after %s: the pool holds %d blocks of hash %d, announced %v", what, n, h, b.pooled[h])
		}
		if waits && len(meant) == 1 {
			b.t.Fatalf("after %s: the pool's block waits by %d, which means %d", what, h, meant)
		}
		for s, m := range b.means[:b.pool()] {
			if key, ok := m[h]; ok != b.index.has(b.owners[s], h) || ok && !b.index.holdsKey(b.owners[s], key) {
				b.t.Fatalf("after %s: source %d does not hold block %d by %d", what, s, key, h)
			}
		}
	}
	if n := b.index.ContestedHashes(); n != contested {
		b.t.Fatalf("after %s: %d hashes are contested, want %d", what, n, contested)
	}
	open := b.index.Inspect().OpenContests()
	for s, want := range concerned {
		c, got := open[b.src[s]]
		other := slices.Index(b.src, c.Other)
		if got != want || got && (other < 0 || b.means[s][c.Engine] == 0 || b.means[other][c.Engine] == 0 ||
			b.means[s][c.Engine] == b.means[other][c.Engine]) {
			b.t.Fatalf("after %s: source %d has a part in the contest %+v, want %t", what, s, c, want)
		}
	}
}

// Blocks of a pool count for the tokens that all holders of their hash mean, in whatever
// order the events come.
func TestContestsOfRandomEvents(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() || underRace { // one goroutine, which the detector slows down tenfold: make test runs all without it
		seeds = 30
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newContestBench(t, 3, seed%2 == 0)
		for i := range 120 {
			s, h, v := r.IntN(3), 1+r.Uint64N(b.hashes), r.Uint64N(4)
			switch n := r.IntN(20); {
			case n < 8:
				b.store(s, h, v)
			case n < 12:
				b.remove(s, h)
			case n < 13:
				b.clear(s)
			case n < 17:
				b.offload(h)
			default:
				b.reload(h)
			}
			if b.check(fmt.Sprintf("%d events of seed %d", i+1, seed)); t.Failed() {
				return
			}
		}
	}
}

// A contest names both sources. The pool's block waits until it is decided.
func TestContestTellsWho(t *testing.T) {
	b := newContestBench(t, 2, true)
	b.store(0, 1, 0)
	b.offload(1)
	b.index.Store(&Store{Owner: b.owners[1], Engine: []uint64{1}, Local: []uint64{keyOf(1, 1)}})
	if news := b.index.TakeContests(); !slices.Equal(news, []Contest{{Engine: 1, Source: b.src[1], Other: b.src[0]}}) {
		t.Errorf("news %+v", news)
	}
	if pool := b.owners[2]; !b.index.holdsKey(pool, 1) || b.index.holdsKey(pool, keyOf(1, 0)) || b.index.ContestedHashes() != 1 {
		t.Errorf("the pool's block does not wait, %d hashes are contested", b.index.ContestedHashes())
	}
	b.index.DropSource(b.src[0])
	b.index.DecideContests(nil)
	if news := b.index.TakeContests(); len(news) != 0 || b.index.ContestedHashes() != 0 {
		t.Errorf("news %+v, %d hashes are contested", news, b.index.ContestedHashes())
	}
	if pool := b.owners[2]; b.index.holdsKey(pool, 1) || !b.index.holdsKey(pool, keyOf(1, 1)) {
		t.Error("the pool's block still waits")
	}
	if key, known := b.index.means(1); !known || key != keyOf(1, 1) {
		t.Errorf("1 means %d, %v", key, known)
	}
}

// A contested hash leaves a block whose place is not known once the contest is decided. The source
// that has won holds that block as well, by another name.
func TestContestOfLooseBlock(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), NameAll: true, Contradicts: func() bool { return true }})
	loser, winner := x.NewSource(), x.NewSource()
	l, w := x.NewOwner(loser), x.NewOwner(winner)
	x.MarkTeaching(loser)
	for _, engine := range []uint64{1, 2} {
		x.Store(&Store{Owner: l, Engine: []uint64{engine}, Key: 77, HasKey: true, Rootless: true, Copies: CopySet})
	}
	x.Store(&Store{Owner: w, Engine: []uint64{1}, Local: []uint64{5}, Copies: CopySet})
	x.Store(&Store{Owner: w, Engine: []uint64{2}, Copies: CopySet})
	if n := x.ContestedHashes(); n != 1 {
		t.Fatalf("%d hashes are contested", n)
	}
	x.Remove(l, []uint64{1}, nil, CopySet)
	x.DecideContests(nil)
	if key, known := x.means(1); !known || key != 5 || x.ContestedHashes() != 0 {
		t.Errorf("1 means %d, %v, %d hashes are contested", key, known, x.ContestedHashes())
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	if res := x.Remove(w, []uint64{1, 2}, nil, CopySet); res.Removed != 2 {
		t.Errorf("%+v", res)
	}
}
