package index

import (
	"fmt"
	"strings"
	"testing"
)

// Check finds what is broken, and by its number.
func TestCheckFinds(t *testing.T) {
	f := func(invariant int, harm func(x *Index)) {
		t.Helper()
		l := newLab(t, 0)
		src := l.x.NewSource()
		a, b := l.x.NewOwner(src), l.x.NewOwner(src)
		c := l.x.NewOwner(l.x.NewSource())
		l.store(a, 100, 1, 3)
		l.store(a, 100, 1, 1)
		l.store(a, 300, 1, 1)
		l.store(b, 100, 1, 2)
		l.store(c, 500, 1, 4)
		l.store(a, 600, 3, 5)
		l.store(b, 700, 3, 3)
		if err := l.x.Check(); err != nil {
			t.Fatal(err)
		}
		harm(l.x)
		err := l.x.Check()
		if want := fmt.Sprintf("invariant %d: ", invariant); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a broken invariant %d, got %v", invariant, err)
		}
	}
	key := seqs(1)[0]
	f(1, func(x *Index) { x.sets.recs[*x.blocks.ref(key)].refs++ })
	f(1, func(x *Index) { x.sets.listBytes++ })
	f(1, func(x *Index) { *x.blocks.ref(key) = 0 })
	f(1, func(x *Index) { x.sets.free = append(x.sets.free, 1) })
	f(1, func(x *Index) { *x.blocks.ref(key) = 1 << 20 })
	f(2, func(x *Index) { x.sets.recs[*x.blocks.ref(key)].members = []uint32{2, 1, 0} })
	f(2, func(x *Index) { x.sets.hold(x.sets.create([]uint32{0}, mix(0))) })
	f(2, func(x *Index) { x.sets.recs[*x.blocks.ref(key)].hash++ })
	f(3, func(x *Index) { slot := x.blocks.ref(key); *slot = x.sets.drop(*slot, 1) })
	f(3, func(x *Index) { *x.blocks.insert(12345) = x.sets.add(0, 1) })
	f(3, func(x *Index) { x.memberships++ })
	f(3, func(x *Index) { x.owners[0].shared.remove(key) })
	f(4, func(x *Index) { x.sources[0].engines.ref(102).set = 0 })
	f(4, func(x *Index) { e := x.sources[0].engines.ref(102); e.set = x.sets.add(e.set, 2) })
	f(4, func(x *Index) { x.owners[1] = nil })
	f(5, func(x *Index) { x.sources[0].engines.ref(603).key++ })
	f(5, func(x *Index) { x.raw-- })
	f(6, func(x *Index) { *x.owners[0].copies.ref(101) = 0 })
	f(6, func(x *Index) { *x.owners[0].copies.insert(999) = 1 })
	f(6, func(x *Index) { *x.owners[1].shared.insert(999) = 1 })
	f(7, func(x *Index) { x.owners[0].blocks-- })
	f(8, func(x *Index) { x.sources[0].room.used++ })
	f(8, func(x *Index) { x.maxOrphans = 1 })
	f(8, func(x *Index) { x.sources[0].room.push(888, 889, 1) })
	f(8, func(x *Index) { x.sources[0].room.push(101, 889, 1) })
	f(8, func(x *Index) { x.sources[0].room.push(890, 890, 1) })
	f(8, func(x *Index) { r := &x.sources[0].room; r.links[r.oldest].parent++ })
	f(8, func(x *Index) { r := &x.sources[0].room; r.links[r.newest].engine++ })
	f(8, func(x *Index) { r := &x.sources[0].room; r.newest = r.oldest })
	f(8, func(x *Index) { r := &x.sources[0].room; r.unlink(r.oldest) })
	f(9, func(x *Index) { x.blocks.n++ })
	f(9, func(x *Index) {
		for i, k := range x.blocks.keys {
			if k != 0 {
				x.blocks.keys[i] = k + 1<<60 // at a place where no probe looks
			}
		}
	})
}

func TestCheckIsBounded(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 1, 500)
	l.x.blocks = table[uint32]{}
	err := l.x.Check()
	if err == nil || strings.Count(err.Error(), "\n") >= maxFindings {
		t.Errorf("got %v", err)
	}
}
