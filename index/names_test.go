package index

import (
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// A name that one source means alone leaves with the owner that was cleared, also before the
// sweep has come to its block: the hash means again what it means to others.
func TestPrivateNameLeavesBeforeTheSweep(t *testing.T) {
	x := New(Options{})
	x.names.perEvent.sweep = 0
	other, own := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: other, Engine: []uint64{1}, Local: []uint64{1}})
	x.Store(&Store{Owner: own, Engine: []uint64{1}, Local: []uint64{2}})
	x.ClearOwner(own)
	// The hash 1 means the first block, until it turns out to mean the second one.
	if got := x.Store(&Store{Owner: own, Engine: []uint64{6, 1}, Local: []uint64{1, 1}}); got.Conflicts != 1 || got.Added != 2 {
		t.Errorf("%+v", got)
	}
	if n := x.BlocksOf(own); n != 1 {
		t.Errorf("%d blocks", n)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// pooled is a chain of three blocks that two engines name in different ways, and a pool that holds
// its second block by both names.
type pooled struct {
	x                   *Index
	first, second, pool Owner
	local, keys         []uint64
}

func newPooled() *pooled {
	scheme := hash.DefaultScheme()
	x := New(Options{Scheme: scheme, NameAll: true, KeepClientHashes: true, Contradicts: func() bool { return true }})
	b := &pooled{x: x, first: x.NewOwner(x.NewSource()), second: x.NewOwner(x.NewSource()), pool: x.NewOwner(x.NewSource()),
		local: []uint64{1, 2, 3}}
	b.keys = []uint64{1, scheme.Next(1, 2), scheme.Next(scheme.Next(1, 2), 3)}
	return b
}

// engine stores the chain by the names 10*n + 1 to 3.
func (b *pooled) engine(o Owner, n uint64) {
	b.x.Store(&Store{Owner: o, Engine: []uint64{10*n + 1, 10*n + 2, 10*n + 3}, Local: b.local})
}

// put stores the second block by a name that an engine has announced, maybe long ago.
func (b *pooled) put(engine uint64, policy CopyPolicy) {
	b.x.Store(&Store{Owner: b.pool, Engine: []uint64{engine}, Key: b.keys[1], HasKey: true, Rootless: true, Copies: policy})
}

// holds reports whether the answer for the chain says that an owner holds the second block.
func (b *pooled) holds(o Owner) bool {
	var m Match
	b.x.matchKeys(0, b.keys, &m)
	return slices.Contains(m.Later, Span{Owner: uint32(o), From: 1, To: 2})
}

// TestBlockUnderTwoNamesKeepsCopies: a pool has a block of a chain by the name that one engine announced,
// and by a name that a second engine will announce later. Until then the index cannot tell that both are
// one block. Once it can, a removal by one name leaves what was put by the other.
func TestBlockUnderTwoNamesKeepsCopies(t *testing.T) {
	for _, c := range []struct {
		puts, removals []uint64
	}{
		{[]uint64{12, 22}, []uint64{12, 22}},
		{[]uint64{12, 22}, []uint64{22, 12}},
		{[]uint64{12, 22, 22}, []uint64{12, 22, 22}},
		{[]uint64{12, 12, 22, 22}, []uint64{22, 12, 22, 12}},
	} {
		b := newPooled()
		b.engine(b.first, 1)
		for _, name := range c.puts {
			b.put(name, CopyCount)
		}
		b.engine(b.second, 2)
		for n, name := range c.removals {
			if !b.holds(b.pool) {
				t.Errorf("%v: the block is gone before removal %d", c, n)
			}
			b.x.Remove(b.pool, []uint64{name}, nil, CopyCount)
			must.Report(t, b.x.Check())
		}
		if n := b.x.BlocksOf(b.pool); n != 0 {
			t.Errorf("%v: %d blocks are left", c, n)
		}
	}
	b := newPooled()
	b.engine(b.first, 1)
	b.put(12, CopySet)
	b.put(22, CopySet)
	b.engine(b.second, 2)
	if b.x.Remove(b.pool, []uint64{12}, nil, CopySet); b.x.BlocksOf(b.pool) != 0 {
		t.Error("an owner without copies keeps the block")
	}
}

// TestRestoredNamesAreOneBlock: a snapshot tells all names of a block. The index that restores it keeps
// one block, which one removal takes from an engine.
func TestRestoredNamesAreOneBlock(t *testing.T) {
	b := newPooled()
	b.engine(b.first, 1)
	b.engine(b.second, 2)
	b.put(12, CopyCount)
	b.put(22, CopyCount)
	b.x.ClearOwner(b.second)
	restored := newPooled()
	b.x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
		restored.x.RestoreStretch(s.Owner, s, s.ClientHashes, false)
		return true
	})
	if n := restored.x.BlocksOf(b.first); n != 3 {
		t.Errorf("the engine holds %d blocks", n)
	}
	restored.engine(b.second, 2)
	must.Report(t, restored.x.Check())
	if got := restored.x.Remove(b.first, []uint64{12}, nil, CopyCount); got.Removed != 1 || restored.x.BlocksOf(b.first) != 2 {
		t.Errorf("the removal did %+v, %d blocks are left", got, restored.x.BlocksOf(b.first))
	}
	for n := range 2 {
		if !restored.holds(b.pool) {
			t.Errorf("the pool lost the block before removal %d", n)
		}
		restored.x.Remove(b.pool, []uint64{12 + 10*uint64(n)}, nil, CopyCount)
	}
	if n := restored.x.BlocksOf(b.pool); n != 0 {
		t.Errorf("the pool holds %d blocks", n)
	}
	must.Report(t, restored.x.Check())
}

// TestContestMovesOneCopy: a pool has a block by two names, and no engine holds it. When one of the
// names turns out to mean another block as well, the copy of the other name stays.
func TestContestMovesOneCopy(t *testing.T) {
	b := newPooled()
	b.engine(b.first, 1)
	b.put(12, CopyCount)
	b.engine(b.second, 2)
	b.put(22, CopyCount)
	for n, o := range []Owner{b.first, b.second} {
		by := 10 * uint64(n+1)
		b.x.Remove(o, []uint64{by + 3, by + 2, by + 1}, nil, CopyCount)
	}
	b.x.Store(&Store{Owner: b.first, Engine: []uint64{12}, Local: []uint64{7}})
	if !b.x.holdsKey(b.pool, 7) { // no engine holds the other block, so the contest is decided at once
		t.Fatal("the copy of the contested name is not where the name leads")
	}
	if got := b.x.Remove(b.pool, []uint64{22}, nil, CopyCount); got.Removed != 1 {
		t.Errorf("the removal by the other name did %+v", got)
	}
	must.Report(t, b.x.Check())
}
