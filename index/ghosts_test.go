package index

import (
	"runtime"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// newGhostLab is a lab whose index keeps ghosts, as many as given.
func newGhostLab(t *testing.T, ghosts int64) lab {
	l := lab{t, New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, Ghosts: NewGhosts(ghosts * ghostBytes)})}
	l.x.KeepGhosts()
	return l
}

// byHash stores blocks without tokens.
func (l lab) byHash(o Owner, engine ...uint64) StoreResult {
	return l.x.Store(&Store{Owner: o, Rootless: true, Engine: engine, Copies: CopySet})
}

// A block that has lost its owners is in no answer and in no count. Its names lead to it, and
// blocks that are stored by them are there.
func TestGhostIsFoundByItsNames(t *testing.T) {
	l := newGhostLab(t, 100)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	l.store(a, 100, 1, 3)
	l.x.Remove(a, []uint64{103, 102, 101}, nil, CopySet)
	l.want(3, "")
	keys := seqs(3)
	st := l.x.Stats()
	if st.Blocks+st.Aliases+st.Memberships != 0 || st.Ghosts != 3 || st.GhostBytes != 3*ghostBytes || !l.x.IsEmpty() {
		t.Errorf("%+v", st)
	}
	if key, known := l.x.means(102); !known || key != keys[1] || l.x.has(a, 102) || l.x.holdsKey(a, 1) || !l.x.knows(Source(1), 102) {
		t.Errorf("the name means %d, %t", key, known)
	}
	for i, got := range l.x.askAll(Source(1), []uint64{101, 102, 103}) {
		l.equal(got, Known{Key: keys[i], Named: true, Own: true})
	}
	l.equal(l.x.Remove(b, []uint64{102}, nil, CopySet), RemoveResult{Unknown: 1})
	l.x.Inspect().EachAlias(func(_ Source, _ Identity, engine, _ uint64) bool {
		t.Errorf("the name %d is listed", engine)
		return true
	})
	for _, s := range linesOf(l.x.Checkpoint().Snapshot()) {
		t.Errorf("a snapshot has %s", s)
	}
	must.Report(t, l.x.Check())

	l.equal(l.byHash(b, 101, 102), StoreResult{Added: 2})
	l.want(3, "[1]x2")
	l.equal(l.store(a, 100, 4, 4), StoreResult{Added: 1}) // its parent is known
	l.byHash(b, 103)
	l.want(4, "[1]x3 [0]x1")
	if st := l.x.Stats(); st.Ghosts != 0 || st.Aliases != 4 {
		t.Errorf("%+v", st)
	}
	must.Report(t, l.x.Check())
}

// A ghost gets its owner and one more name from a store by tokens, and keeps the names that it had.
func TestGhostGetsAnotherName(t *testing.T) {
	l := newGhostLab(t, 100)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	l.store(a, 100, 1, 2)
	l.x.Remove(a, []uint64{102, 101}, nil, CopySet)
	l.equal(l.store(b, 200, 1, 2), StoreResult{Added: 2})
	l.equal(l.x.Stats().Aliases, 4)
	l.equal(l.byHash(a, 101, 102), StoreResult{Added: 2})
	l.want(2, "[0 1]x2")
	must.Report(t, l.x.Check())
}

// A query hashes a prompt no further than it is held.
func TestQueryHashesNoGhosts(t *testing.T) {
	l := newGhostLab(t, 100)
	o := l.x.NewOwner(l.x.NewSource())
	local := make([]uint64, 60)
	for i := range local {
		local[i] = uint64(i + 1)
	}
	l.store(o, 100, 1, 60)
	engine, _ := blocks(100, 1, 60)
	slices.Reverse(engine)
	f := func(held, asked int) {
		t.Helper()
		l.x.Remove(o, engine[:60-held], nil, CopySet)
		c := &counted{local: local}
		var m Match
		l.x.matchChain(0, c, &m)
		if m.Blocks != held || c.most != asked {
			t.Errorf("%d blocks, %d hashes were asked for, want %d and %d", m.Blocks, c.most, held, asked)
		}
	}
	f(60, 60)
	f(20, 33)
	f(1, 17)
	f(0, 1)
}

// What a name of a ghost means can be replaced. A ghost without a name is none.
func TestGhostGivesItsNameUp(t *testing.T) {
	l := newGhostLab(t, 100)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	l.storeRoot(a, 101, 1)
	l.x.Remove(a, []uint64{101}, nil, CopySet)
	l.equal(l.x.Stats().Ghosts, 1)
	l.equal(l.storeRoot(b, 101, 2), StoreResult{Added: 1})
	l.equal(l.x.Stats().Ghosts, 0)
	l.equal(l.byHash(a, 101), StoreResult{Added: 1})
	l.wantChain([]uint64{2}, "[0 1]x1")
	must.Report(t, l.x.Check())
}

// Ghosts leave in the order in which they lost their owners. One that had an owner for a while is
// a new one.
func TestGhostsLeaveInOrder(t *testing.T) {
	l := newGhostLab(t, 2)
	o := l.x.NewOwner(l.x.NewSource())
	leave := func(engine, local uint64) {
		l.storeRoot(o, engine, local)
		l.x.Remove(o, []uint64{engine}, nil, CopySet)
	}
	want := func(names ...uint64) {
		t.Helper()
		var got []uint64
		for engine := uint64(1); engine < 10; engine++ {
			if _, known := l.x.means(engine); known {
				got = append(got, engine)
			}
		}
		if !slices.Equal(got, names) {
			t.Errorf("the ghosts are %d, want %d", got, names)
		}
		must.Report(t, l.x.Check())
	}
	leave(1, 11)
	leave(2, 12)
	want(1, 2)
	leave(1, 11)
	leave(3, 13)
	want(1, 3)
	leave(4, 14)
	want(3, 4)
	used, most := l.x.names.ghosts.count.of.Used()
	l.equal([2]int64{used, most}, [2]int64{2 * ghostBytes, 2 * ghostBytes})
}

// Blocks that come and go do not make the queue longer than the ghosts are many.
func TestGhostQueueStaysShort(t *testing.T) {
	l := newGhostLab(t, 1<<20)
	o := l.x.NewOwner(l.x.NewSource())
	for n := range uint64(2000) {
		l.storeRoot(o, 1+n%5, 11+n%5)
		l.x.Remove(o, []uint64{1 + n%5}, nil, CopySet)
	}
	if n := len(l.x.names.ghosts.queue) - l.x.names.ghosts.first; n > 2*5+queueSlack {
		t.Errorf("%d entries of 5 ghosts", n)
	}
	must.Report(t, l.x.Check())
}

// A store by the name of a ghost that had to go is lost. While its block is held, answers that may
// end because of it say so.
func TestLostNames(t *testing.T) {
	l := newGhostLab(t, 4)
	a, pool := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	f := func(n int, truncated bool) {
		t.Helper()
		var m Match
		if l.x.matchKeys(0, seqs(n), &m); m.Truncated != truncated {
			t.Errorf("truncated %t of %+v", m.Truncated, m)
		}
	}
	l.store(a, 100, 1, 6)
	l.x.Remove(a, []uint64{106, 105, 104, 103}, nil, CopySet)
	f(6, false)
	l.storeRoot(a, 900, 900)
	l.x.Remove(a, []uint64{900}, nil, CopySet) // a fifth ghost: the stretch before it goes
	l.equal(l.x.Stats().Ghosts, 1)
	l.equal(l.byHash(pool, 999), StoreResult{Added: 1, HashOnly: 1})
	f(6, false)
	l.equal(l.x.Inspect().GhostsWanted(), int64(0))
	l.equal(l.byHash(pool, 103), StoreResult{Added: 1, HashOnly: 1, Lost: 1})
	l.equal(l.x.Inspect().GhostsWanted(), int64((4+4)*ghostBytes))
	f(6, true)
	f(1, false)
	must.Report(t, l.x.Check())
	l.x.Remove(pool, []uint64{103}, nil, CopySet)
	f(6, false)
	l.byHash(pool, 103)
	f(6, true)
	l.store(a, 100, 1, 6) // now the hash has a meaning
	f(7, false)
	must.Report(t, l.x.Check())
}

// Once the filter has thrown keys away, every answer that ends early may be too short, until no
// lost block is held.
func TestLostNamesAreForgotten(t *testing.T) {
	l := newGhostLab(t, 1)
	a, pool := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	leave := func(n uint64) {
		l.storeRoot(a, 1000+n, 5000+n)
		l.x.Remove(a, []uint64{1000 + n}, nil, CopySet)
	}
	leave(0)
	leave(1)
	leave(2)
	l.equal(l.byHash(pool, 1000), StoreResult{Added: 1, HashOnly: 1, Lost: 1})
	f := func(key uint64, truncated bool) {
		t.Helper()
		var m Match
		if l.x.matchKeys(0, []uint64{key}, &m); m.Truncated != truncated {
			t.Errorf("truncated %t of %+v", m.Truncated, m)
		}
	}
	f(5000, true)
	f(77, false)
	for n := uint64(3); n < 4*fewLost; n++ {
		leave(n)
	}
	f(5000, true)
	f(77, true)
	l.x.Remove(pool, []uint64{1000}, nil, CopySet)
	f(5000, false)
	lost := 0
	for n := range uint64(16) {
		lost += l.byHash(pool, 1000+n).Lost
	}
	if lost > 8 { // a filter may take any name for one of its own, but not half of them
		t.Errorf("%d of 16 forgotten names count as lost", lost)
	}
	must.Report(t, l.x.Check())
}

// Indexes that share a bound have equal parts, and give theirs back with their end.
func TestGhostsAreShared(t *testing.T) {
	g := NewGhosts(8 * ghostBytes)
	open := func() (*Index, func(n uint64)) {
		x := New(Options{Scheme: hash.DefaultScheme(), Ghosts: g})
		o := x.NewOwner(x.NewSource())
		x.KeepGhosts()
		x.KeepGhosts()
		return x, func(n uint64) {
			for i := range n {
				x.Store(&Store{Owner: o, Engine: []uint64{100 + i}, Local: []uint64{100 + i}})
				x.Remove(o, []uint64{100 + i}, nil, CopySet)
			}
		}
	}
	want := func(x *Index, ghosts int) {
		t.Helper()
		if st := x.Stats(); st.Ghosts != ghosts {
			t.Errorf("%d ghosts, want %d", st.Ghosts, ghosts)
		}
		must.Report(t, x.Check())
	}
	x, leave := open()
	leave(20)
	want(x, 8)
	y, other := open()
	other(20)
	want(y, 4)
	leave(3)
	want(x, 4)
	if used, most := g.Used(); used != 8*ghostBytes || most != 8*ghostBytes {
		t.Errorf("%d of %d bytes are used", used, most)
	}
	x = nil
	for n := 0; g.indexes.Load() > 1 && n < 1000; n++ {
		runtime.GC()
		runtime.Gosched()
	}
	other(20)
	want(y, 8)
	if NewGhosts(0) != nil {
		t.Error("a bound of nothing")
	}
	var none *Ghosts
	if used, most := none.Used(); used+most != 0 {
		t.Error("no bound is in use")
	}
	New(Options{}).KeepGhosts()
}

// An index begins to keep ghosts while it has blocks with names on demand. A block that leaves
// before its name had an entry is a ghost.
func TestGhostsFromNamesOnDemand(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), Ghosts: NewGhosts(1 << 20)})
	x.names.perEvent.naming = 0
	l := lab{t, x}
	a, pool := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	l.store(a, 100, 1, 200)
	x.KeepGhosts()
	l.equal(x.names.naming, catchingUp)
	x.ClearOwner(a)
	x.compactAll()
	l.equal(x.Stats().Ghosts, 200)
	must.Report(t, x.Check())
	engine, _ := blocks(100, 1, 200)
	l.equal(l.byHash(pool, engine...), StoreResult{Added: 200})
	l.want(200, "[1]x200")
	must.Report(t, x.Check())
}

// A ghost costs what it counts, however many there are.
func TestGhostsCost(t *testing.T) {
	skipUnderRace(t)
	million := 1 << 20
	if testing.Short() {
		million = 1 << 17
	}
	f := func(name string, chain, event int) {
		t.Helper()
		x := New(Options{Scheme: hash.DefaultScheme(), Ghosts: NewGhosts(int64(million) * ghostBytes)})
		o := x.NewOwner(x.NewSource())
		x.KeepGhosts()
		empty := x.Stats().Bytes
		for n := 0; n < million; n += chain {
			e := Store{Owner: o, Copies: CopySet}
			for i := range chain {
				e.Engine, e.Local = append(e.Engine, mix(uint64(n+i+1))), append(e.Local, mix(uint64(n+i+1)^1<<40))
			}
			x.Store(&e)
			slices.Reverse(e.Engine)
			for part := range slices.Chunk(e.Engine, event) {
				x.Remove(o, part, nil, CopySet)
			}
		}
		st := x.Stats()
		each := float64(st.Bytes-empty) / float64(st.Ghosts)
		t.Logf("%s: %d ghosts, %.1f bytes each, of names %.1f, of the queue %.1f, counted %d", name, st.Ghosts, each,
			float64(st.AliasBytes)/float64(st.Ghosts), float64(x.names.ghosts.bytes())/float64(st.Ghosts), ghostBytes)
		if st.Ghosts != million || each > ghostBytes {
			t.Errorf("%s: %d ghosts, %.1f bytes each, counted %d", name, st.Ghosts, each, ghostBytes)
		}
	}
	f("chains of 64", 64, 64)
	f("chains of 64, block by block", 64, 1)
	f("chains of 32", 32, 32)
	f("chains of 16", 16, 16)
}

// Where there is no room for a block, ghosts go before a block is refused.
func TestGhostsGoBeforeBlocksAreRefused(t *testing.T) {
	skipUnderRace(t)
	f := func(length int, tokens bool) {
		t.Helper()
		x := New(Options{Scheme: hash.DefaultScheme(), MaxBytes: 1 << 20, Ghosts: NewGhosts(1 << 30)})
		x.KeepGhosts()
		o := x.NewOwner(x.NewSource())
		event := func(n int) *Store {
			e := Store{Owner: o, Copies: CopySet}
			for i := range length {
				e.Engine = append(e.Engine, mix(uint64(n)<<20+uint64(i)))
			}
			if tokens {
				e.Local = e.Engine
			}
			return &e
		}
		refused := 0
		for n := range 1000 * 64 / length { // of blocks, four times what has room
			res := x.Store(event(n))
			refused += res.Refused
			x.Remove(o, event(n).Engine, nil, CopySet)
		}
		if st := x.Stats(); refused > 0 || tokens && st.Ghosts < 1000 {
			t.Errorf("%d refused, %+v", refused, st)
		}
		must.Report(t, x.Check())
		held := 0
		for n := 0; refused == 0; n++ { // blocks that stay
			res := x.Store(event(1<<20 + n))
			held, refused = held+res.Added, refused+res.Refused
		}
		if st := x.Stats(); st.Ghosts != 0 || st.Blocks != held || held < 5000 {
			t.Errorf("%d blocks are held, %d were refused: %+v", held, refused, st)
		}
		must.Report(t, x.Check())
	}
	f(64, true)
	f(200, true)
	f(1, true)
	f(64, false)
}
