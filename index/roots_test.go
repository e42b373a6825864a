package index

import (
	"math/rand/v2"
	"testing"

	"kvconductor/index/hash"
	"kvconductor/internal/must"
)

// storeRoot stores a first block in an event of its own. Its local hash is also its key.
func (l lab) storeRoot(o Owner, engine, local uint64) StoreResult {
	return l.x.Store(&Store{Owner: o, Engine: []uint64{engine}, Local: []uint64{local}, Copies: CopySet})
}

// storeBehind stores a block behind another one, in an event of its own.
func (l lab) storeBehind(o Owner, parent, engine, local uint64) StoreResult {
	return l.x.Store(&Store{Owner: o, Parent: parent, HasParent: true, Engine: []uint64{engine}, Local: []uint64{local}, Copies: CopySet})
}

// inRoots reports whether a key is that of a block in a roots piece.
func (l lab) inRoots(key uint64) bool {
	p := l.x.headOf(key)
	return !p.isNone() && l.x.at(p.piece).roots()
}

// A chain of one block costs at most 64 bytes by account, its name included, of one source
// or many, and after half of the chains have been replaced again and again.
func TestRootsBytes(t *testing.T) {
	sizes := []int{20_000, 50_000, 80_000}
	if underRace {
		sizes = sizes[:1]
	}
	for _, blocks := range sizes {
		for _, sources := range []int{1, 16} {
			l, rng := newLab(t, 0), rand.New(rand.NewPCG(1, 2))
			var owners []Owner
			for range sources {
				owners = append(owners, l.x.NewOwner(l.x.NewSource()))
			}
			held := make([]uint64, blocks)
			store := func(i int) {
				held[i] = rng.Uint64()
				l.storeRoot(owners[i%sources], held[i]^7, held[i])
			}
			check := func(when string) {
				t.Helper()
				st := l.x.Stats()
				if each := float64(st.Bytes) / float64(blocks); st.Blocks != blocks || each > 64 {
					t.Errorf("%d blocks of %d sources %s: %.1f bytes each", st.Blocks, sources, when, each)
				}
			}
			for i := range blocks {
				store(i)
			}
			check("stored")
			for range 4 {
				again := rng.Perm(blocks)[:blocks/2]
				for _, i := range again {
					l.x.Remove(owners[i%sources], []uint64{held[i] ^ 7}, nil, CopySet)
				}
				for _, i := range again {
					store(i)
				}
			}
			check("replaced")
			must.Report(t, l.x.Check())
		}
	}
}

// A first block that comes and goes costs no allocation.
func TestRootsDoNotAllocate(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	for i := range uint64(100) {
		l.storeRoot(o, 1000+i, 1+i)
	}
	e := Store{Owner: o, Engine: []uint64{500}, Local: []uint64{600}}
	behind := Store{Owner: o, Parent: 500, HasParent: true, Engine: []uint64{501}, Local: []uint64{601}}
	gone := []uint64{501, 500}
	if n := testing.AllocsPerRun(100, func() {
		l.x.Store(&e)
		l.x.Store(&behind)
		l.x.Remove(o, gone, nil, CopySet)
	}); n > 3 { // the result of each event
		t.Errorf("%v allocations for three events", n)
	}
}

// A first block of an event with more blocks begins a piece, as does one without a local
// hash that is its key.
func TestRootsAreAlone(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 1, 2)
	l.storeRoot(o, 50, 0)
	if l.inRoots(1) || l.inRoots(zeroKey) {
		t.Error("a first block is in a roots piece")
	}
	l.storeRoot(o, 51, 51)
	if !l.inRoots(51) {
		t.Error("a single first block is in a piece of its own")
	}
	l.wantChain([]uint64{0}, "[0]x1")
	l.wantChain([]uint64{51}, "[0]x1")
}

// A block that is promoted keeps its owners, their copies, and all its names: of its own
// family, of another one, and of a source that means it alone.
func TestPromoteKeepsOwnersAndNames(t *testing.T) {
	for _, nameAll := range []bool{false, true} {
		l := lab{t, New(Options{Scheme: hash.Default(), NameAll: nameAll})}
		first, other, alone := l.x.NewSource(), l.x.NewSource(), l.x.NewSource()
		a, b, c := l.x.NewOwner(first), l.x.NewOwner(other), l.x.NewOwner(alone)
		l.storeRoot(a, 100, 10)
		l.storeRoot(a, 200, 20)
		l.storeRoot(a, 300, 30)
		l.storeRoot(b, 1200, 20)
		l.x.Store(&Store{Owner: b, Engine: []uint64{1200}, Local: []uint64{20}}) // a copy
		if nameAll {
			l.storeRoot(c, 100, 20) // others mean another block by 100
		} else {
			l.storeRoot(c, 2200, 20)
		}
		if !l.inRoots(20) {
			t.Fatal("the block is in no roots piece")
		}
		key := l.x.follow(20, 21)
		l.equal(l.storeBehind(a, 200, 201, 21), StoreResult{Added: 1})
		if l.inRoots(20) || !l.inRoots(10) || !l.inRoots(30) {
			t.Error("not the block with a child has moved, or not it alone")
		}
		l.wantChain([]uint64{20, key}, "[0 1 2]x1 [0]x1")
		l.equal(l.storeBehind(b, 1200, 1201, 21), StoreResult{Added: 1})
		l.wantChain([]uint64{20, key}, "[0 1 2]x1 [0 1]x1")
		l.equal(l.x.Remove(b, []uint64{1200}, nil, CopyCount), RemoveResult{Copies: 1})
		l.equal(l.x.Remove(b, []uint64{1200}, nil, CopyCount), RemoveResult{Removed: 1})
		if nameAll {
			l.equal(l.x.Remove(c, []uint64{100}, nil, CopyCount), RemoveResult{Removed: 1})
		} else {
			l.equal(l.x.Remove(c, []uint64{2200}, nil, CopyCount), RemoveResult{Removed: 1})
		}
		l.wantChain([]uint64{20, key}, "[0]x1 [0 1]x1")
		l.equal(l.x.Remove(a, []uint64{200, 100, 300}, nil, CopyCount), RemoveResult{Removed: 3})
		l.equal(l.x.Remove(a, []uint64{201}, nil, CopyCount), RemoveResult{Removed: 1})
		l.equal(l.x.Remove(b, []uint64{1201}, nil, CopyCount), RemoveResult{Removed: 1})
		if st := l.x.Stats(); st.Blocks+st.Aliases+st.Sets+int(l.x.lines.live.Load()) != 0 {
			t.Errorf("something is left: %+v", st)
		}
	}
}

// Blocks that wait for a first block lie behind it in its chain, once it comes.
func TestPromoteForWaitingBlocks(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.storeBehind(o, 10, 11, 2)
	l.storeBehind(o, 11, 12, 3)
	l.storeBehind(o, 10, 13, 4)
	l.equal(l.storeRoot(o, 10, 1), StoreResult{Added: 1, Resolved: 3})
	l.want(3, "[0]x3")
	l.wantChain([]uint64{1, l.x.follow(1, 4)}, "[0]x2")
	l.equal(l.x.looseBlocks.Load(), int64(0))
}

// A block whose name has no entry, since others mean another block by it, is promoted while
// all blocks get their entries, after the way over all pieces has passed the new piece.
func TestPromoteWhileNaming(t *testing.T) {
	l := newLab(t, 0)
	o, other := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	const chains = 20_000
	for i := range uint64(chains) {
		l.x.Store(&Store{Owner: o, Engine: []uint64{i<<32 | 1, i<<32 | 2, i<<32 | 3}, Local: []uint64{i<<32 | 3, i<<32 | 4, i<<32 | 5}})
	}
	l.storeRoot(other, 5001, 6001) // takes late lines
	for i := range uint64(3) {     // leaves early lines to the new piece
		l.x.Remove(o, []uint64{i<<32 | 3, i<<32 | 2, i<<32 | 1}, nil, CopySet)
	}
	l.storeRoot(o, 5000, 6000)
	l.storeRoot(other, 5000, 6002)
	if l.x.naming != catchingUp || !l.inRoots(6002) {
		t.Fatalf("naming %d", l.x.naming)
	}
	l.equal(l.x.Has(other, 5000), true)
	l.storeBehind(other, 5000, 7000, 8000)
	if p := l.x.headOf(6002); l.x.naming != catchingUp || int(p.piece)/pageLines >= l.x.namedPages {
		t.Fatalf("the new piece is in line %d, of %d named pages", p.piece, l.x.namedPages)
	}
	for l.x.naming == catchingUp {
		l.x.Remove(other, []uint64{1}, nil, CopySet)
	}
	l.wantChain([]uint64{6002, l.x.follow(6002, 8000)}, "[1]x2")
	l.equal(l.x.Remove(other, []uint64{5000}, nil, CopySet), RemoveResult{Removed: 1})
	l.wantChain([]uint64{6002}, "")
	l.wantChain([]uint64{6000}, "[0]x1")
}

// First blocks from before client hashes came stay where they are. Later ones have them.
func TestRootsGetClientHashes(t *testing.T) {
	l := lab{t, New(Options{Scheme: hash.Default(), KeepClientHashes: true})}
	o := l.x.NewOwner(l.x.NewSource())
	f := func(local, clientHash uint64) {
		e := Store{Owner: o, Engine: []uint64{local + 500}, Local: []uint64{local}}
		if clientHash != 0 {
			e.ClientHashes = []uint64{clientHash}
		}
		l.x.Store(&e)
	}
	f(1, 0)
	f(2, 0)
	f(3, 33)
	l.x.Remove(o, []uint64{501}, nil, CopySet) // leaves a place without a client hash
	f(4, 44)
	f(5, 55)
	l.storeBehind(o, 504, 604, 6)
	got := map[uint64]uint64{}
	l.x.Snapshot().Walk(all, func(s *Stretch) bool {
		for i, engine := range s.Engine {
			got[engine] = s.ClientHashes[i]
		}
		return true
	})
	for engine, clientHash := range map[uint64]uint64{502: 2, 503: 33, 504: 44, 505: 55} {
		if got[engine] != clientHash {
			t.Errorf("block %d has client hash %d, want %d", engine, got[engine], clientHash)
		}
	}
	must.Report(t, l.x.Check())
}

// midway is a prompt whose hashes behind the first block are asked for while the index
// changes.
type midway struct {
	prompt
	change func()
}

func (m *midway) Locals(n int) []uint64 {
	if n > 1 && m.change != nil {
		change := m.change
		m.change = nil
		change()
	}
	return m.local[:n]
}

// A query that has read a first block before it is promoted looks again: the owner that it
// saw may have lost the block since, and have got the next one.
func TestQueryLooksAgainAfterPromotion(t *testing.T) {
	l := newLab(t, 0)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	// Block 3 outlives both its parent and the piece that it was a fork of.
	l.storeRoot(b, 1, 1)
	l.storeBehind(b, 1, 2, 2)
	l.storeBehind(b, 1, 3, 3)
	l.x.Remove(b, []uint64{2, 1}, nil, CopySet)
	l.storeRoot(a, 1, 1)
	if !l.inRoots(1) {
		t.Fatal("the first block is in no roots piece")
	}
	key := l.x.follow(1, 3)
	query := &midway{prompt{[]uint64{1, 3}, []uint64{1, key}}, func() {
		l.storeBehind(a, 1, 4, 4)
		l.x.Remove(a, []uint64{1}, nil, CopySet)
		l.x.Store(&Store{Owner: a, Engine: []uint64{3}})
	}}
	var m Match
	l.x.MatchLazy(query, &m)
	if query.change != nil || m.Blocks != 0 {
		t.Errorf("%d blocks, never held by one owner at once", m.Blocks)
	}
	l.wantChain([]uint64{key}, "[0 1]x1")
}

// A snapshot says that each block of a roots piece begins prompts, and its reader keeps
// those blocks as cheaply.
func TestSnapshotOfRoots(t *testing.T) {
	l := lab{t, New(Options{Scheme: hash.Default(), KeepClientHashes: true})}
	src := l.x.NewSource()
	o := l.x.NewOwner(src)
	for i := range uint64(9) {
		l.storeRoot(o, 100+i, 1+i)
	}
	l.x.Remove(o, []uint64{103}, nil, CopySet)
	n := lab{t, replica(l.x, []Source{src}, map[Owner]Source{o: src}, func(s *Stretch) {
		if !s.Root || s.HasParent || len(s.Engine) != 1 {
			t.Errorf("%+v", *s)
		}
	})}
	for key := uint64(1); key < 10; key++ {
		if n.inRoots(key) != (key != 4) {
			t.Errorf("block %d is in a roots piece: %t", key, n.inRoots(key))
		}
	}
	must.Report(t, n.x.Check())
}

// A local hash may be the key of a longer prefix, by chance or by a publisher's choice. Both
// are one block then, in one place.
func TestRootWithKeyOfLongerPrefix(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	key := l.x.follow(1, 5)
	l.storeRoot(o, 101, key)
	l.storeRoot(o, 102, 1)
	l.storeBehind(o, 102, 103, 5)
	l.wantChain([]uint64{1, key}, "[0]x2")
	l.storeBehind(o, 103, 104, 6)
	l.wantChain([]uint64{1, key, l.x.follow(key, 6)}, "[0]x3")
	l.wantChain([]uint64{key, l.x.follow(key, 6)}, "[0]x2")
}
