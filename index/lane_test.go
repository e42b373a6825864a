package index

import (
	"runtime"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestLockWaitsForHalfApplied holds that a call which locks all lanes waits for the events that
// are half applied, and for no others: while it waits, no event begins next to others.
func TestLockWaitsForHalfApplied(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), NameAll: true})
	a, b := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	for i, o := range []Owner{a, b} {
		k := uint64(100 * i)
		x.Store(&Store{Owner: o, Engine: []uint64{k + 1, k + 2, k + 3}, Local: []uint64{k + 11, k + 12, k + 13}})
	}
	half := storing{x: x, e: &Store{Owner: a, Engine: []uint64{1, 2, 99}}} // what 99 means is not known
	at, c, more := half.storeBesideOthers()
	if at != 2 || !more || x.tree.lanes.halves.Load() != 1 {
		t.Fatalf("applied %d blocks of the first event, more %t, %d half applied", at, more, x.tree.lanes.halves.Load())
	}

	defer x.tree.lanes.halves.Store(0) // a failed test leaves no call waiting
	last, means := &x.tree.lanes.each[lanes-1].lane.mu, make(chan bool, 1)
	last.Lock()
	go func() {
		_, known := x.means(101)
		means <- known
	}()
	for x.tree.lanes.each[0].lane.mu.TryLock() { // until the call has locked this lane, and waits for the last one
		x.tree.lanes.each[0].lane.mu.Unlock()
		runtime.Gosched()
	}
	if n := x.tree.lanes.waiters.Load(); n != 1 {
		t.Errorf("%d calls wait for all lanes, want 1", n)
	}
	last.Unlock()

	for range 100 {
		store := storing{x: x, e: &Store{Owner: b, Engine: []uint64{101, 102, 103}, Local: []uint64{111, 112, 113}}}
		if i, _, more := store.storeBesideOthers(); i != 0 || !more {
			t.Fatalf("a store began next to others while a call waited: %d blocks, more %t", i, more)
		}
		removal := removing{x: x, policy: CopySet}
		if i, more := removal.removeBesideOthers(b, []uint64{103}, nil); i != 0 || !more {
			t.Fatalf("a removal began next to others while a call waited: %d blocks, more %t", i, more)
		}
		if n := x.tree.lanes.halves.Load(); n != 1 {
			t.Fatalf("%d events are half applied, want 1", n)
		}
	}
	select {
	case <-means:
		t.Fatal("the call did not wait for the event that is half applied")
	default:
	}

	half.storeAlone(at, c)
	if n := x.tree.lanes.halves.Load(); n != 0 {
		t.Fatalf("%d events are half applied after the last one has ended", n)
	}
	if !<-means {
		t.Error("101 means nothing")
	}
	if n := x.tree.lanes.waiters.Load(); n != 0 {
		t.Errorf("%d calls wait for all lanes after the last one has returned", n)
	}
	removal := removing{x: x, policy: CopySet}
	if i, more := removal.removeBesideOthers(b, []uint64{103}, nil); i != 1 || more {
		t.Errorf("after the call, a removal applied %d blocks next to others, more %t", i, more)
	}
	must.Report(t, x.Check())
}

// TestOnlyBegunEventsAreHalfApplied holds that an event is not half applied before its first
// block or behind its last one. Such events keep no call waiting.
func TestOnlyBegunEventsAreHalfApplied(t *testing.T) {
	for _, c := range []struct {
		name    string
		engine  []uint64
		removal bool
		applied int // blocks, next to others
		more    bool
		half    int32
	}{
		{name: "store", engine: []uint64{1, 2}, applied: 2},
		{name: "store of an unknown hash", engine: []uint64{99}, more: true},
		{name: "store that ends with an unknown hash", engine: []uint64{1, 2, 99}, applied: 2, more: true, half: 1},
		{name: "removal", engine: []uint64{2}, removal: true, applied: 1},
		{name: "removal of an unknown hash", engine: []uint64{99}, removal: true, more: true},
		{name: "removal that ends with an unknown hash", engine: []uint64{2, 99}, removal: true, applied: 1, more: true, half: 1},
		{name: "removal of all blocks of a source", engine: []uint64{2, 1}, removal: true, applied: 2, more: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := New(Options{Scheme: hash.DefaultScheme(), NameAll: true})
			o := x.NewOwner(x.NewSource())
			x.Store(&Store{Owner: o, Engine: []uint64{1, 2}, Local: []uint64{11, 12}})
			var i int
			var more bool
			if c.removal {
				e := removing{x: x, policy: CopySet}
				i, more = e.removeBesideOthers(o, c.engine, nil)
			} else {
				e := storing{x: x, e: &Store{Owner: o, Engine: c.engine}}
				i, _, more = e.storeBesideOthers()
			}
			if n := x.tree.lanes.halves.Load(); i != c.applied || more != c.more || n != c.half {
				t.Errorf("%d blocks applied, more %t, %d half applied; want %d, %t, %d", i, more, n, c.applied, c.more, c.half)
			}
		})
	}
}
