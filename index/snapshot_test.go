package index

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// holdings is what an owner holds: key -> copies. clientHashOf, if not nil, says which have
// tokens.
func holdings(x *Index, o Owner, clientHash map[uint64]bool) map[uint64]int {
	all := map[uint64]int{}
	own := x.holders.owners[o]
	if own == nil {
		return all
	}
	x.tree.lines.eachPiece(func(n uint32, r *piece) {
		for i := range r.len() {
			p := position{n, i}
			if !x.tree.sets.hasOwner(x.tree.lines.setOf(p), own.id) {
				continue
			}
			key := x.tree.keyOf(p)
			held := 1 + int(own.copies.extraOf(p))
			all[key] = max(all[key], held)
			if clientHash != nil && r.clientHashOf(i) != 0 {
				clientHash[key] = true
			}
		}
	})
	return all
}

func all(Owner) bool { return true }

// replica restores a snapshot of an index in a fresh one with the same sources and
// owners.
func replica(x *Index, sources []Source, owners map[Owner]Source, see func(*Stretch)) *Index {
	n := New(Options{Scheme: x.tree.scheme, MaxOrphans: x.maxOrphans, KeepClientHashes: true})
	for range sources {
		n.NewSource()
	}
	for _, id := range (*x.tree.identities.list.Load())[1:] {
		n.SetWeight(n.NewIdentity(id.constant), id.weight)
	}
	for o := range Owner(len(x.holders.owners)) {
		n.NewOwner(owners[o])
	}
	x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
		see(s)
		var local []uint64
		if s.ClientHashes[0] != 0 {
			local = s.ClientHashes
		}
		n.RestoreStretch(s.Owner, s, local, false)
		return true
	})
	return n
}

// A snapshot restored elsewhere is the same. Blocks without a known key may have one
// there: a replica hears all names at once, in the original a block stays under its
// raw hash until its holder says something new.
func TestSnapshotModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range 150 {
		w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(i))), true, false, ghostly(i/2%3))
		w.say("seed %d, world %d", seed, i)
		x := w.keeping()
		for range w.sources {
			x.NewSource()
		}
		for i, o := range w.owners {
			x.NewCountedOwner(w.o.owners[o], w.tallies[i])
		}
		w.addIdentities(x)
		w.exchange(x)
		for src := range w.family {
			w.family[src] %= liar
		}
		for range 60 {
			w.step()
		}
		w.compare()
		owners := map[Owner]Source{}
		maps.Copy(owners, w.o.owners)
		seen := map[Owner]map[uint64]bool{}
		n := replica(w.x, w.sources, owners, func(s *Stretch) {
			if seen[s.Owner] == nil {
				seen[s.Owner] = map[uint64]bool{}
			}
			if s.HasParent && !s.Waiting && w.x.holders.owners[s.Owner] != nil && w.holdsName(s.Owner, s.Parent) &&
				!seen[s.Owner][s.Parent] {
				w.fail("%+v comes before its parent", s)
			}
			for _, e := range s.Engine {
				seen[s.Owner][e] = true
			}
		})
		for _, o := range w.owners {
			tokened := map[uint64]bool{}
			got, want, raw := holdings(n, o, nil), holdings(w.x, o, tokened), 0
			for key := range want {
				if !tokened[key] {
					raw++
				} else if _, held := got[key]; !held {
					w.fail("owner %d of source %d: %v, want %v: %d is missing", o, w.o.owners[o], got, want, key)
				}
			}
			if len(got) > len(want) || raw == 0 && !maps.Equal(got, want) {
				w.fail("owner %d of source %d: %v, want %v", o, w.o.owners[o], got, want)
			}
			if a, b := n.BlocksOf(o), w.x.BlocksOf(o); raw == 0 && a != b {
				w.fail("owner %d of source %d holds %d blocks, want %d", o, w.o.owners[o], a, b)
			}
			if a, b := n.Digest(o), w.x.Digest(o); maps.Equal(got, want) && a.Loose == 0 && b.Loose == 0 && a != b {
				w.fail("owner %d of source %d has the digest %+v, want %+v", o, w.o.owners[o], a, b)
			}
		}
		if err := n.Check(); err != nil {
			w.fail("check: %v", err)
		}
		w.compareUnified()
	}
}

// compareUnified holds that a unified snapshot has every block of every owner, one name
// for each block, no name twice for blocks of one source, and parents first.
func (w *world) compareUnified() {
	type sourced struct {
		src  Source
		name uint64
	}
	names, keys := map[uint64]uint64{}, map[sourced]uint64{}
	held, seen, late := map[Owner]map[uint64]int{}, map[Owner]map[uint64]bool{}, map[Owner][]uint64{}
	for _, o := range w.owners {
		held[o], seen[o] = map[uint64]int{}, map[uint64]bool{}
	}
	snap := w.x.Checkpoint().Snapshot()
	snap.Unify(func(o Owner) (int, bool) { return int(w.o.owners[o]), true })
	snap.Walk(all, func(s *Stretch) bool {
		if s.HasParent && !s.Waiting && !seen[s.Owner][s.Parent] {
			late[s.Owner] = append(late[s.Owner], s.Parent)
		}
		key, constant := s.Key, uint64(0)
		for i, name := range s.Engine {
			switch {
			case s.Waiting:
				key = name
			case i > 0:
				key = w.x.tree.scheme.Next(key^constant, s.ClientHashes[i]) ^ constant
			default:
				constant = w.o.constants[s.Identity]
				key ^= constant
			}
			at := sourced{w.o.owners[s.Owner], name}
			held[s.Owner][normal(key)] = max(held[s.Owner][normal(key)], 1+s.Copies[i])
			if s.Waiting || s.ClientHashes[i] == 0 {
				continue // its key is an engine hash, which may name a block by now
			}
			if known, ok := names[key]; ok && known != name {
				w.fail("block %d has the names %d and %d", key, known, name)
			}
			names[key] = name
			if known, ok := keys[at]; ok && known != key {
				w.fail("source %d: %d names the blocks %d and %d", at.src, name, known, key)
			}
			keys[at], seen[s.Owner][name] = key, true
		}
		return true
	})
	for _, o := range w.owners {
		if want := holdings(w.x, o, nil); !maps.Equal(held[o], want) {
			w.fail("owner %d of a unified snapshot: %v, want %v", o, held[o], want)
		}
		for _, parent := range late[o] {
			if seen[o][parent] {
				w.fail("owner %d: %d comes after a child", o, parent)
			}
		}
	}
}

// A unified snapshot calls a block as most of its holders do, of equal numbers as the
// source with the lower rank does. Owners that are left out have no vote.
func TestSnapshotUnify(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, NameAll: true})
	locals := []uint64{7, 8, 9}
	var src [5]Source
	var own [5]Owner
	for i := range src {
		src[i] = x.NewSource()
		own[i] = x.NewOwner(src[i])
	}
	f := func(i int, local []uint64, engine ...uint64) {
		x.Store(&Store{Owner: own[i], Engine: engine, Local: local[:len(engine)]})
	}
	f(0, locals, 101, 102, 103)
	f(1, locals, 201, 202, 203)
	f(2, locals, 101, 102)
	f(3, locals, 201)
	f(4, locals, 401, 402, 403)
	// 500 is a name of three blocks. Source 1 holds two of them, source 2 one.
	f(0, []uint64{50}, 500)
	f(1, []uint64{60}, 500)
	f(1, []uint64{50}, 501)
	f(2, []uint64{70}, 500)
	check := func(leftOut Owner, want map[uint64]uint64) {
		t.Helper()
		snap := x.Checkpoint().Snapshot()
		snap.Unify(func(o Owner) (int, bool) { return -int(o), o != leftOut })
		got := make(map[uint64]uint64)
		snap.Walk(all, func(s *Stretch) bool {
			if s.Owner == leftOut || s.More != nil {
				t.Errorf("%+v", s)
			}
			for i, engine := range s.Engine {
				if before, ok := got[s.ClientHashes[i]]; ok && before != engine {
					t.Errorf("block %d is %d and %d", s.ClientHashes[i], before, engine)
				}
				got[s.ClientHashes[i]] = engine
			}
			return true
		})
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(own[3], map[uint64]uint64{7: 101, 8: 102, 9: 403, 50: 501, 60: 60, 70: 500})
	check(own[1], map[uint64]uint64{7: 101, 8: 102, 9: 403, 50: 500, 70: 500})
}

// A parent that another owner holds comes before the child: two owners may belong to one
// worker.
func TestSnapshotParentOfAnother(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	src := x.NewSource()
	child, parent := x.NewOwner(src), x.NewOwner(src)
	x.Store(&Store{Owner: parent, Engine: []uint64{1, 2}, Local: []uint64{7, 8}})
	x.Store(&Store{Owner: child, Engine: []uint64{3}, Local: []uint64{9}, Parent: 1, HasParent: true})
	known := make(map[uint64]bool)
	x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
		if s.HasParent && !known[s.Parent] {
			t.Errorf("%d comes before its parent %d", s.Engine, s.Parent)
		}
		for _, engine := range s.Engine {
			known[engine] = true
		}
		return true
	})
	if len(known) != 3 {
		t.Errorf("%v", known)
	}
}

// holdsName reports whether an owner holds what an engine hash means to it.
func (w *world) holdsName(o Owner, engine uint64) bool {
	s := w.o.sources[w.o.owners[o]]
	key, known := w.o.meaning(s, normal(engine))
	return known && w.o.holds(o, of(key))
}

// Two engines with hash seeds of their own hold the same blocks: each is dumped
// under the names it uses, those with one seed also where another taught them.
func TestSnapshotNames(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	locals := []uint64{7, 8, 9}
	f := func(src Source, o Owner, engine ...uint64) {
		x.Store(&Store{Owner: o, Engine: engine, Local: locals[:len(engine)]})
	}
	var src [4]Source
	var own [4]Owner
	for i := range src {
		src[i] = x.NewSource()
		own[i] = x.NewOwner(src[i])
	}
	f(src[0], own[0], 101, 102, 103)
	f(src[1], own[1], 201, 202, 203)
	f(src[2], own[2], 101, 102)
	f(src[3], own[3], 201)
	f(src[3], own[3], 301) // a copy under another name
	got := map[Owner][]uint64{}
	more := map[Owner][]uint64{}
	x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
		if !s.Root || s.Key != 7 {
			t.Errorf("%+v does not begin at the root", s)
		}
		got[s.Owner] = append(got[s.Owner], s.Engine...)
		for _, names := range s.More {
			more[s.Owner] = append(more[s.Owner], names...)
		}
		return true
	})
	want := map[Owner][]uint64{own[0]: {101, 102, 103}, own[1]: {201, 202, 203}, own[2]: {101, 102}}
	for o, names := range want {
		if !slices.Equal(got[o], names) {
			t.Errorf("owner %d: %d, want %d", o, got[o], names)
		}
	}
	if both := append(got[own[3]], more[own[3]]...); len(got[own[3]]) != 1 ||
		!slices.Equal(slices.Sorted(slices.Values(both)), []uint64{201, 301}) {
		t.Errorf("owner with a copy: %d and %d", got[own[3]], more[own[3]])
	}
}

// What changes while a snapshot is walked does not show in it.
func TestSnapshotStandsStill(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	src := x.NewSource()
	o := x.NewOwner(src)
	chain := func(from, n uint64) (engine, local []uint64) {
		for i := from; i < from+n; i++ {
			engine, local = append(engine, i<<8), append(local, i)
		}
		return engine, local
	}
	engine, local := chain(1, 2000)
	x.Store(&Store{Owner: o, Engine: engine, Local: local})
	snap := x.Checkpoint().Snapshot()
	other, more := chain(5001, 3000)
	x.Store(&Store{Owner: o, Engine: other, Local: more})
	x.Remove(o, engine[1000:], nil, CopySet)
	x.compactAll()
	var got []uint64
	snap.Walk(all, func(s *Stretch) bool {
		got = append(got, s.Engine...)
		return true
	})
	if !slices.Equal(got, engine) {
		t.Errorf("%d blocks, want the %d of before", len(got), len(engine))
	}
}

// A source that starts again goes on with the hashes it has taught before, also where
// it announces no tokens: a dump names its blocks by them, not by another's.
func TestSnapshotNamesReturningSource(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	other := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: other, Engine: []uint64{900}, Local: []uint64{7}, Copies: CopySet})
	first := x.NewSource()
	x.Store(&Store{Owner: x.NewOwner(first), Engine: []uint64{100}, Local: []uint64{7}, Copies: CopySet})
	x.DropSource(first)
	again := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: again, Engine: []uint64{100}, Copies: CopySet})
	names := make(map[Owner]uint64)
	x.Checkpoint().Snapshot().Walk(func(Owner) bool { return true }, func(r *Stretch) bool {
		names[r.Owner] = r.Engine[0]
		return true
	})
	if names[other] != 900 || names[again] != 100 {
		t.Errorf("%v", names)
	}
}

// The names that a gone source has taught are those of the sources that hash alike.
func TestSnapshotNamesOfGoneTeacher(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	var src [4]Source
	var own [4]Owner
	for i, engine := range []uint64{100, 100, 100, 900} { // the last has another seed
		src[i] = x.NewSource()
		own[i] = x.NewOwner(src[i])
		x.Store(&Store{Owner: own[i], Engine: []uint64{engine}, Local: []uint64{7}})
	}
	x.DropSource(src[0])
	check := func(snap *Snapshot, want map[Owner]uint64) {
		t.Helper()
		got := make(map[Owner]uint64)
		snap.Walk(all, func(s *Stretch) bool { got[s.Owner] = s.Engine[0]; return true })
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(x.Checkpoint().Snapshot(), map[Owner]uint64{own[1]: 100, own[2]: 100, own[3]: 900})
	unified := x.Checkpoint().Snapshot()
	unified.Unify(func(o Owner) (int, bool) { return int(o), true })
	check(unified, map[Owner]uint64{own[1]: 100, own[2]: 100, own[3]: 100})
}

// Pieces in a circle, and those behind it, hang from a piece of the circle that becomes a root.
func TestSnapshotOpensCircles(t *testing.T) {
	f := func(want []int, parents ...int) {
		t.Helper()
		s := &Snapshot{}
		for range parents {
			s.pieces = append(s.pieces, new(snapPiece))
		}
		for i, parent := range parents {
			if parent >= 0 {
				s.pieces[i].parent.snapPiece = s.pieces[parent]
			}
		}
		s.breakCycles()
		var got []int
		for _, p := range s.pieces {
			got = append(got, slices.Index(s.pieces, p.parent.snapPiece))
		}
		if !slices.Equal(got, want) {
			t.Errorf("parents %d of %d, want %d", got, parents, want)
		}
	}
	f([]int{-1, 0, 1, 0}, -1, 0, 1, 0)
	f([]int{-1}, 0)
	f([]int{1, -1}, 1, 0)
	f([]int{1, 2, 3, -1, 2, -1}, 1, 2, 3, 1, 2, -1) // the first hangs from the circle
	f([]int{2, -1, 1, 4, -1}, 2, 0, 1, 4, 3)
}
