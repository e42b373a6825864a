package index

import (
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// storeRoot stores a first block in an event of its own. Its local hash is also its key.
func (l lab) storeRoot(o Owner, engine, local uint64) StoreResult {
	return l.x.Store(&Store{Owner: o, Engine: []uint64{engine}, Local: []uint64{local}, Copies: CopySet})
}

// storeBehind stores a block behind another one, in an event of its own.
func (l lab) storeBehind(o Owner, parent, engine, local uint64) StoreResult {
	return l.x.Store(&Store{Owner: o, Parent: parent, HasParent: true, Engine: []uint64{engine}, Local: []uint64{local}, Copies: CopySet})
}

// A first block that comes and goes costs no allocation.
func TestFirstBlocksDoNotAllocate(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	for i := range uint64(100) {
		l.storeRoot(o, 1000+i, 1+i)
	}
	e := Store{Owner: o, Engine: []uint64{500}, Local: []uint64{600}}
	behind := Store{Owner: o, Parent: 500, HasParent: true, Engine: []uint64{501}, Local: []uint64{601}}
	gone := []uint64{501, 500}
	if n := alloctest.PerRun(100, func() {
		l.x.Store(&e)
		l.x.Store(&behind)
		l.x.Remove(o, gone, nil, CopySet)
	}); n > 3 { // the result of each event
		t.Errorf("%v allocations for three events", n)
	}
}

// Blocks that wait for a first block lie behind it in its chain, once it comes.
func TestFirstBlockOfWaitingBlocks(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.storeBehind(o, 10, 11, 2)
	l.storeBehind(o, 11, 12, 3)
	l.storeBehind(o, 10, 13, 4)
	l.equal(l.storeRoot(o, 10, 1), StoreResult{Added: 1, Resolved: 3})
	l.want(3, "[0]x3")
	l.wantChain([]uint64{1, l.x.tree.followKey(1, 0, 4)}, "[0]x2")
	l.equal(l.x.tree.looseBlocks.Load(), int64(0))
}

// First blocks of events without client hashes have their local hashes instead.
func TestFirstBlocksGetClientHashes(t *testing.T) {
	l := lab{t, New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, WideBase: true})}
	o := l.x.NewOwner(l.x.NewSource())
	f := func(local, clientHash uint64) {
		e := Store{Owner: o, Engine: []uint64{local + 500}, Local: []uint64{local}}
		if clientHash != 0 {
			e.ClientHashes = func(Identity) []uint64 { return []uint64{clientHash} }
		}
		l.x.Store(&e)
	}
	f(1, 0)
	f(2, 0)
	f(3, 33)
	l.x.Remove(o, []uint64{501}, nil, CopySet) // leaves room
	f(4, 44)
	f(5, 55)
	l.storeBehind(o, 504, 604, 6)
	got := map[uint64]uint64{}
	l.x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
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

// A query that has read a first block looks again at its end: the owner that it saw may have
// lost the block since, and have got the next one.
func TestQueryLooksAgainAfterLoss(t *testing.T) {
	l := newLab(t, 0)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	// Block 3 outlives both its parent and the piece that it was a fork of.
	l.storeRoot(b, 1, 1)
	l.storeBehind(b, 1, 2, 2)
	l.storeBehind(b, 1, 3, 3)
	l.x.Remove(b, []uint64{2, 1}, nil, CopySet)
	l.storeRoot(a, 1, 1)
	key := l.x.tree.followKey(1, 0, 3)
	query := &midway{prompt{[]uint64{1, 3}, []uint64{1, key}}, func() {
		l.storeBehind(a, 1, 4, 4)
		l.x.Remove(a, []uint64{1}, nil, CopySet)
		l.x.Store(&Store{Owner: a, Engine: []uint64{3}})
	}}
	var m Match
	l.x.matchChain(0, query, &m)
	if query.change != nil || m.Blocks != 0 {
		t.Errorf("%d blocks, never held by one owner at once", m.Blocks)
	}
	if got := l.x.BlocksOf(a); got != 2 {
		t.Errorf("%d blocks, want 3 and 4", got)
	}
}

// A local hash may be the key of a longer prefix, by chance or by a publisher's choice. The first block of
// a prompt is another block than a later one all the same.
func TestFirstBlockWithKeyOfLongerPrefix(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	key := l.x.tree.followKey(1, 0, 5)
	l.storeRoot(o, 101, key)
	l.storeRoot(o, 102, 1)
	l.storeBehind(o, 102, 103, 5)
	l.wantChain([]uint64{1, key}, "[0]x2")
	l.storeBehind(o, 103, 104, 6)
	l.wantChain([]uint64{1, key, l.x.tree.followKey(key, 0, 6)}, "[0]x3")
	l.wantChain([]uint64{key}, "[0]x1")
	l.x.Remove(o, []uint64{101}, nil, CopySet)
	l.wantChain([]uint64{key}, "")
	l.wantChain([]uint64{1, key, l.x.tree.followKey(key, 0, 6)}, "[0]x3")
}
