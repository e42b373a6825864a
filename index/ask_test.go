package index

import (
	"reflect"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// askAll asks for several engine hashes.
func (x *Index) askAll(src Source, engine []uint64) (all []Known) {
	for _, h := range engine {
		all = append(all, x.ResolveHash(src, h))
	}
	return all
}

// means returns the key that an engine hash stands for.
func (x *Index) means(engine uint64) (key uint64, known bool) {
	k := x.ResolveHash(NoSource, engine)
	return k.Key, k.Named
}

// knows reports whether an engine hash means something to a source.
func (x *Index) knows(src Source, engine uint64) bool { return x.ResolveHash(src, engine).Own }

// has reports whether an owner holds the block an engine hash stands for.
func (x *Index) has(name Owner, engine uint64) bool {
	x.lock()
	defer x.unlock()
	o := x.holders.owners[name]
	if o == nil {
		return false
	}
	engine = normal(engine)
	if p := x.resolver.meaningOf(o.s, engine); !p.isNone() && x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
		return true
	}
	p := x.tree.findLoose(engine)
	return !p.isNone() && x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id)
}

// beginsUnder returns under which of some constants tokens begin prompts, and whether it is one alone.
func (x *Index) beginsUnder(constants, local []uint64) (at int, once bool) {
	x.lock()
	defer x.unlock()
	of, once := x.finder.findIdentity(&x.tree.lanes.each[0].lane, constants, local)
	return max(slices.Index(constants, of.constant), 0), once
}

// TestBegins finds the only identity under which there are all blocks of the beginning of a prompt, in
// several pieces, with owners or as ghosts.
func TestBegins(t *testing.T) {
	l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), Ghosts: NewGhosts(1 << 20)})
	l.x.names.perEvent.sweep = 0
	local := make([]uint64, 150)
	var engine []uint64
	for i := range local {
		local[i], engine = uint64(1000+i), append(engine, uint64(5000+i))
	}
	local[0] = 0 // the key of the first block of the base identity would be 0
	names := func(id Identity, n int) (all []uint64) {
		for _, e := range engine[:n] {
			all = append(all, e+uint64(id)*10_000)
		}
		return all
	}
	store := func(id Identity, n int) {
		l.x.Store(&Store{Owner: l.gpu, Identity: id, Engine: names(id, n), Local: local[:n], Copies: CopySet})
	}
	want := func(n int, constants []uint64, at int, once bool) {
		t.Helper()
		if i, found := l.x.beginsUnder(constants, local[:n]); i != at || found != once {
			t.Errorf("%d blocks begin under number %d, %v, want %d, %v", n, i, found, at, once)
		}
		must.Report(t, l.x.Check())
	}
	store(0, 100)
	store(l.a, 120)
	want(1, l.c, 0, false) // two of them
	want(101, l.c, 1, true)
	want(120, l.c, 1, true)
	want(121, l.c, 0, false)
	want(50, l.c[:1], 0, true)
	want(50, []uint64{l.c[2], l.c[1]}, 1, true)
	want(50, []uint64{l.c[2], 99}, 0, false)
	want(50, nil, 0, false)
	store(l.b, 70)
	fork := slices.Clone(local[:90])
	fork[80] = 7
	l.x.Store(&Store{Owner: l.other, Identity: l.b, Engine: slices.Concat(names(l.b, 70),
		[]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}), Local: fork, Copies: CopySet})
	if at, once := l.x.beginsUnder(l.c, fork); at != 2 || !once {
		t.Errorf("a fork begins under number %d, %v", at, once)
	}
	// A hole in the middle ends the beginning.
	l.x.Remove(l.gpu, names(l.a, 120)[110:111], nil, CopySet)
	want(110, l.c[1:], 0, true)
	want(112, l.c[1:], 0, false)
	// What retired owners held alone is not there. As ghosts it is.
	l.x.ClearOwner(l.gpu)
	want(100, l.c[:1], 0, false)
	l.x.compactAll()
	l.x.KeepGhosts()
	store(0, 100)
	l.x.ClearOwner(l.gpu)
	want(100, l.c, 0, true)
	l.x.compactAll()
	want(100, l.c, 0, true)
}

// TestHeldBySource counts the blocks of each source and identity, as often as its owners hold them.
func TestHeldBySource(t *testing.T) {
	l := newIdentityLab(t)
	second := l.x.NewOwner(l.sources[0])
	chain := func(o Owner, id Identity, n int) {
		var engine, local []uint64
		for i := range uint64(n) {
			engine, local = append(engine, 1000*uint64(id)+i), append(local, 10+i)
		}
		l.x.Store(&Store{Owner: o, Identity: id, Engine: engine, Local: local})
	}
	chain(l.gpu, l.a, 100)
	chain(second, l.a, 30)
	chain(l.other, l.a, 10)
	chain(l.gpu, 0, 5)
	chain(l.other, l.b, 7)
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{77_001, 77_002}})
	chain(second, l.b, 7)
	l.x.ClearOwner(second)
	chain(second, l.a, 3)
	got := l.x.Checkpoint().HeldBySource()
	want := map[SourceIdentity]int{{0, l.a}: 103, {1, l.a}: 10, {0, 0}: 5, {1, l.b}: 7, {2, 0}: 2}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%+v holds %d blocks, want %d", k, got[k], n)
		}
	}
}

// A source that waits without tokens by the hash of the last part of a block gets that part, and hears of
// all parts of it, and of no other block, in whatever order the names came.
func TestParts(t *testing.T) {
	const fold = 0xabc
	for _, named := range []bool{false, true} {
		for _, folded := range []uint64{0, fold} {
			l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), NameAll: named})
			by := func(engine uint64) uint64 { return engine ^ folded }
			l.x.Store(&Store{Owner: l.pool, Engine: []uint64{by(13), by(22)}, Copies: CopySet})
			host := l.x.NewOwner(l.sources[2])
			l.x.Store(&Store{Owner: host, Engine: []uint64{by(13)}, Copies: CopySet})
			// Three blocks of three parts.
			engine, local := []uint64{11, 12, 13, 21, 22, 23, 31, 32, 33}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
			var got []Awaited
			l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: engine, Local: local, Parts: 3, AlsoWaiting: folded,
				Awaited: func(a Awaited) { got = append(got, a) }})
			l.want(local, "", "[0]x2 [0 2 3]x1 [0]x1 [0 2]x1 [0]x4 ", "")
			want := []Awaited{{l.sources[2], l.pool, []uint64{11, 12, by(13)}}, {l.sources[2], host, []uint64{11, 12, by(13)}}}
			if !reflect.DeepEqual(got, want) { // 22 is no last part
				t.Errorf("awaited %v, want %v", got, want)
			}
			for _, w := range got {
				l.x.Store(&Store{Owner: w.Owner, Engine: w.Engine, Copies: CopySet})
			}
			l.want(local, "", "[0 2 3]x3 [0]x1 [0 2]x1 [0]x4 ", "")
			l.x.Store(&Store{Owner: host, Engine: []uint64{by(13)}})
			if got := l.x.Inspect().Copies(nil, host, []uint64{by(13), 11, 31, 99}); !slices.Equal(got, []int{2, 1, 0, 0}) {
				t.Errorf("%v copies", got)
			}
			if l.x.HasLoose() {
				t.Error("something still waits")
			}
			if res := l.x.Remove(host, []uint64{11, 12, by(13)}, nil, CopySet); res.Removed != 3 {
				t.Errorf("%+v", res)
			}
			l.want(local, "", "[0 2]x3 [0]x1 [0 2]x1 [0]x4 ", "")
		}
	}
}

// Before returns the names of the blocks before one, over several pieces and behind a branch, also of blocks
// that have no owner any more but one below the device.
func TestBefore(t *testing.T) {
	for _, naming := range []string{"on demand", "all"} {
		x := New(Options{Scheme: hash.DefaultScheme(), NameAll: naming == "all"})
		src := x.NewSource()
		device, host := x.NewOwner(src), x.NewOwner(src)
		chain := func(from uint64, n int) (engine, local []uint64) {
			for i := range uint64(n) {
				engine, local = append(engine, from+i), append(local, 7*from+i)
			}
			return engine, local
		}
		engine, local := chain(1000, 200)
		x.Store(&Store{Owner: device, Engine: engine, Local: local})
		branch, branchLocal := chain(5000, 70)
		x.Store(&Store{Owner: device, Engine: branch, Local: branchLocal, Parent: engine[99], HasParent: true})
		orphan, orphanLocal := chain(9000, 3)
		x.Store(&Store{Owner: device, Engine: orphan, Local: orphanLocal, Parent: 8000, HasParent: true})
		x.Store(&Store{Owner: host, Engine: engine[:150]})
		x.Remove(device, engine[:150], nil, CopyCount)

		f := func(of uint64, n int, want []uint64, wantRoot bool) {
			t.Helper()
			got, root := x.Inspect().NamesBefore([]uint64{1}, src, of, n)
			if !slices.Equal(got[1:], want) || root != wantRoot || got[0] != 1 {
				t.Errorf("%s: before %d: %d names %v, root %v, want %d names %v, root %v", naming, of, len(got)-1, got[1:], root,
					len(want), want, wantRoot)
			}
		}
		f(engine[0], 3, nil, true)
		f(engine[2], 3, engine[:2], true)
		f(engine[3], 3, engine[:3], true)
		f(engine[4], 3, engine[1:4], false)
		f(engine[199], 180, engine[19:199], false)
		f(engine[199], 500, engine[:199], true)
		f(branch[0], 2, engine[98:100], false)
		f(branch[69], 500, slices.Concat(engine[:100], branch[:69]), true)
		f(orphan[2], 3, nil, false)
		f(77, 3, nil, false)
		x.Remove(host, engine[50:60], nil, CopyCount) // a hole without a name
		got, _ := x.Inspect().NamesBefore(nil, src, engine[70], 100)
		if len(got) > 0 && !slices.Equal(got, engine[70-len(got):70]) || len(got) > 70 {
			t.Errorf("%s: before a block behind a hole: %v", naming, got)
		}
		must.Succeed(t, x.Check())
	}
}
