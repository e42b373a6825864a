package index

import (
	"fmt"
	"strings"
	"testing"
)

// Check finds what is broken, and by its number.
func TestCheckFinds(t *testing.T) {
	f := func(invariant int, harm func(x *Index, g *generation)) {
		t.Helper()
		l := newLab(t, 0)
		src := l.x.NewSource()
		a, b := l.x.NewOwner(src), l.x.NewOwner(src)
		c := l.x.NewOwner(l.x.NewSource())
		l.store(a, 100, 1, 3)
		l.store(a, 100, 1, 1)
		l.store(b, 100, 1, 2)
		l.store(c, 500, 1, 4)
		l.store(a, 600, 13, 15)
		l.store(b, 700, 13, 13)
		if err := l.x.Check(); err != nil {
			t.Fatal(err)
		}
		harm(l.x, l.x.gen.Load())
		err := l.x.Check()
		if want := fmt.Sprintf("invariant %d: ", invariant); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a broken invariant %d, got %v", invariant, err)
		}
	}
	s := seqs(4)
	f(1, func(_ *Index, g *generation) { g.live.Add(1) })
	f(1, func(_ *Index, g *generation) { g.table.used.Add(1) })
	f(1, func(_ *Index, g *generation) { g.table.find(s[0]).key++ })
	f(1, func(_ *Index, g *generation) { g.table.find(s[0]).word |= 0xffffff << setShift })
	f(2, func(_ *Index, g *generation) { g.sets.rec(1).hash++ })
	f(2, func(_ *Index, g *generation) { g.sets.bitmap(g.sets.rec(1))[0] = 0 })
	f(2, func(_ *Index, g *generation) { clear(*g.sets.table.Load()) })
	f(3, func(x *Index, _ *generation) { x.owners[0].blocks++ })
	f(3, func(x *Index, _ *generation) { x.sources[0].held-- })
	f(3, func(x *Index, _ *generation) { x.owners[0].raw = 99 })
	f(3, func(_ *Index, g *generation) { sl := g.table.find(s[0]); sl.word &= tagMask })
	f(4, func(_ *Index, g *generation) { g.ids.ext[0] = 7 })
	f(4, func(_ *Index, g *generation) { g.ids.retired[0] |= 1 })
	f(4, func(_ *Index, g *generation) { g.ids.opened.Add(1) })
	f(5, func(_ *Index, g *generation) {
		sl := g.table.find(s[1])
		sl.word = sl.word&tagMask | g.toggle(sl.word>>setShift, 2)<<setShift
	})
	f(5, func(_ *Index, g *generation) { g.table.find(s[0]).child = 0 })
	f(5, func(_ *Index, g *generation) { g.table.find(s[0]).word &^= tagMask })
	f(6, func(x *Index, _ *generation) { *x.owners[0].copies.insert(999) = 1 })
	f(6, func(x *Index, _ *generation) { *x.owners[0].copies.ref(s[0]) = 0 })
	f(7, func(x *Index, _ *generation) { x.aliases.Load().used.Add(1) })
	f(7, func(x *Index, _ *generation) { e, _ := x.aliases.Load().claim(102); e.key = 0 })
	f(8, func(x *Index, _ *generation) { x.sources[0].room.used++ })
	f(8, func(x *Index, _ *generation) { x.maxOrphans = 1 })
	f(8, func(x *Index, _ *generation) { x.sources[0].room.push(890, 890, 1, 0) })
	f(8, func(x *Index, _ *generation) { r := &x.sources[0].room; r.links[r.oldest].parent++ })
	f(8, func(x *Index, _ *generation) { r := &x.sources[0].room; r.links[r.newest].engine++ })
	f(8, func(x *Index, _ *generation) { r := &x.sources[0].room; r.newest = r.oldest })
}

func TestCheckIsBounded(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 1, 500)
	b := l.x.gen.Load().table.buckets
	for i := range b {
		for j := range b[i] {
			if b[i][j].key != 0 {
				b[i][j].key ^= 1 << 50
			}
		}
	}
	err := l.x.Check()
	if err == nil || strings.Count(err.Error(), "\n") >= maxFindings {
		t.Errorf("got %v", err)
	}
}
