package index

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// chunk is a chunk of an image.
type chunk struct {
	kind  ChunkKind
	bytes []byte
}

// imageOf returns the image of an index, with the ids of sources and owners as numbers.
func imageOf(t testing.TB, x *Index) (all []chunk) {
	t.Helper()
	must.Succeed(t, x.Checkpoint().WriteImage(Numbers{
		Source: func(s Source) (uint32, bool) { return uint32(s), true },
		Owner:  func(o Owner) (uint32, bool) { return uint32(o), true },
	}, func(kind ChunkKind, _ int, b []byte) error {
		all = append(all, chunk{kind, slices.Clone(b)})
		return nil
	}))
	return all
}

// load loads an image into an index of the same sources and owners.
func load(t testing.TB, x *Index, all []chunk) *Loader {
	t.Helper()
	l := NewLoader(x,
		func(n uint32) (Source, bool) { return Source(n), true },
		func(n uint32) (Owner, bool) { return Owner(n), true },
		func(n uint32) (Identity, bool) { return Identity(n), true })
	for _, c := range all {
		must.Succeed(t, l.Load(c.kind, c.bytes))
	}
	l.Done()
	return l
}

// What a source means alone and what waits in its room is not written as that of a relative, if the source
// is left out itself: a recovery may still fill it.
func TestImageLeavesSourcesOut(t *testing.T) {
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true}
	x, again := New(opts), New(opts)
	for _, x := range []*Index{x, again} {
		for range 2 {
			x.NewOwner(x.NewSource())
		}
	}
	kept, out := Owner(0), Owner(1)
	for _, o := range []Owner{kept, out} { // so they are relatives
		x.Store(&Store{Owner: o, Engine: []uint64{101}, Local: []uint64{1}})
	}
	x.Store(&Store{Owner: kept, Engine: []uint64{102}, Local: []uint64{2}})
	x.Store(&Store{Owner: out, Engine: []uint64{102}, Local: []uint64{3}})
	x.Store(&Store{Owner: kept, Engine: []uint64{103}, Local: []uint64{3}})
	x.Store(&Store{Owner: out, Engine: []uint64{201}, Local: []uint64{4}, Parent: 200, HasParent: true})
	var all []chunk
	must.Succeed(t, x.Checkpoint().WriteImage(Numbers{
		Source: func(s Source) (uint32, bool) { return uint32(s), s == 0 },
		Owner:  func(o Owner) (uint32, bool) { return uint32(o), o == kept },
	}, func(kind ChunkKind, _ int, b []byte) error {
		all = append(all, chunk{kind, slices.Clone(b)})
		return nil
	}))
	load(t, again, all)
	if n := again.waiting(0); n != 0 {
		t.Errorf("%d blocks wait", n)
	}
	if res := again.Remove(kept, []uint64{102}, nil, CopySet); res.Removed != 1 || again.ResolveHash(0, 102).Own {
		t.Errorf("%+v", res)
	}
	var m Match
	if again.matchKeys(0, []uint64{3}, &m); m.Blocks != 1 {
		t.Error("the block that the other source means by the name has left")
	}
	must.Report(t, again.Check())
}

// again returns an empty index with the sources and owners of a world.
func (w *world) again(opts Options) *Index {
	opts.Scheme, opts.MaxOrphans, opts.KeepClientHashes, opts.Agree = w.o.scheme, w.x.maxOrphans, w.x.tree.keepsClientHashes, w.agree
	x := New(opts)
	w.addIdentities(x)
	gone := Source(0)
	for i, s := range w.x.holders.sources {
		if x.NewSource(); s == nil {
			gone = Source(i)
		}
	}
	for i, o := range w.owners {
		src, known := w.o.owners[o]
		if !known {
			src = gone
		}
		w.tallies[i].Store(0)
		x.NewCountedOwner(src, w.tallies[i])
	}
	for i, s := range w.x.holders.sources {
		if s == nil {
			x.DropSource(Source(i))
		}
	}
	return x
}

// An index that is loaded from an image is the one that wrote it: it says the same, and
// goes on like it.
func TestImageModel(t *testing.T) {
	skipUnderRace(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range 300 {
		w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(i))), i%2 == 0, i%4 > 1, ghostly(i/2%3))
		w.say("seed %d, world %d", seed, i)
		for range 60 {
			w.step()
		}
		w.compare()
		all := imageOf(t, w.x)
		x := w.again(Options{NameAll: i%2 != 0, Ghosts: w.ghosts.bound()})
		load(t, x, all)
		w.exchange(x)
		w.say("loaded")
		if err := w.x.Check(); err != nil {
			w.fail("check: %v", err)
		}
		w.compare()
		for range 40 {
			w.step()
		}
		w.compare()
	}
}

// Sources that hash alike do so in the index that is loaded, too, the one that stands for their family
// included: else a dump names its blocks as another family does.
func TestImageKeepsFamilies(t *testing.T) {
	engines := func(x *Index) (sources []Source, owners []Owner) {
		for range 3 {
			sources = append(sources, x.NewSource())
			owners = append(owners, x.NewOwner(sources[len(sources)-1]))
		}
		return sources, owners
	}
	for root := range 3 {
		x := New(Options{Scheme: hash.DefaultScheme(), NameAll: true})
		_, owners := engines(x)
		local := []uint64{10, 11}
		x.Store(&Store{Owner: owners[root], Engine: []uint64{100, 101}, Local: local})
		alike := owners[(root+1)%3]
		x.Store(&Store{Owner: alike, Engine: []uint64{100, 101}, Local: local})
		x.Store(&Store{Owner: owners[(root+2)%3], Engine: []uint64{900, 901}, Local: local})
		again := New(Options{Scheme: hash.DefaultScheme(), NameAll: true})
		sources, _ := engines(again)
		load(t, again, imageOf(t, x))
		if !again.names.families.sameFamily(sources[root], uint32(alike)+1) ||
			again.names.families.sameFamily(sources[root], uint32((root+2)%3)+1) {
			t.Errorf("root %d: the families are %v", root, again.names.families.of)
		}
	}
}

// Names that a source taught which is left out here are those of its relatives all the same, whether the relatives come
// before it or after it: else a dump names their blocks as another family does.
func TestLoadLeavesTeachersOut(t *testing.T) {
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		teacher, relative, stranger := order[0], order[1], order[2]
		opts := Options{Scheme: hash.DefaultScheme(), NameAll: true, KeepClientHashes: true}
		x, again := New(opts), New(opts)
		for _, x := range []*Index{x, again} {
			for range 3 {
				x.NewOwner(x.NewSource())
			}
		}
		local := []uint64{10, 11}
		x.Store(&Store{Owner: Owner(teacher), Engine: []uint64{100, 101}, Local: local})
		x.Store(&Store{Owner: Owner(relative), Engine: []uint64{100, 101}, Local: local})
		x.Store(&Store{Owner: Owner(stranger), Engine: []uint64{900, 901}, Local: local})
		l := NewLoader(again,
			func(n uint32) (Source, bool) { return Source(n), int(n) != teacher },
			func(n uint32) (Owner, bool) { return Owner(n), int(n) != teacher },
			func(n uint32) (Identity, bool) { return Identity(n), true })
		for _, c := range imageOf(t, x) {
			must.Succeed(t, l.Load(c.kind, c.bytes))
		}
		l.Done()
		must.Report(t, again.Check())
		got := make(map[Owner][]uint64)
		again.Checkpoint().Snapshot().Walk(func(Owner) bool { return true }, func(s *Stretch) bool {
			got[s.Owner] = slices.Clone(s.Engine)
			return true
		})
		want := map[Owner][]uint64{Owner(relative): {100, 101}, Owner(stranger): {900, 901}}
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("teacher %d left out: %v, want %v", teacher, got, want)
		}
	}
}

// Whatever the bytes of an image are, nothing breaks: all that came leaves with its sources.
func FuzzLoad(f *testing.F) {
	f.Add(uint64(1), uint16(3), byte(0), []byte{1, 2, 3})
	f.Add(uint64(2), uint16(900), byte(2), []byte{255, 255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, seed uint64, at uint16, which byte, with []byte) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 0, false, ghostly(seed%3))
		for range 40 {
			w.step()
		}
		all := imageOf(t, w.x)
		x := w.again(Options{NameAll: seed%2 != 0})
		if len(all) > 0 {
			c := &all[int(which)%len(all)]
			for i, b := range with {
				c.bytes[(int(at)+i)%len(c.bytes)] ^= b
			}
		}
		l := NewLoader(x,
			func(n uint32) (Source, bool) { return Source(n), int(n) < len(w.x.holders.sources) },
			func(n uint32) (Owner, bool) { return Owner(n), int(n) < len(w.owners) },
			func(n uint32) (Identity, bool) { return Identity(n), true })
		for _, c := range all {
			if l.Load(c.kind, c.bytes) != nil {
				break
			}
		}
		l.Done()
		for i := range x.holders.sources {
			x.DropSource(Source(i))
		}
		x.compactAll()
		if st := x.Stats(); st.Blocks != 0 || st.Memberships != 0 {
			t.Errorf("%+v stay", st)
		}
	})
}

// BenchmarkImage writes and loads a million blocks of 128 owners. A quarter of the chains has a
// beginning that eight owners hold.
func BenchmarkImage(b *testing.B) {
	const owners, chains, length = 128, 16, 512
	fleet := func() *Index {
		x := New(Options{})
		for range owners {
			x.NewOwner(x.NewSource())
		}
		return x
	}
	x, rng := fleet(), rand.New(rand.NewPCG(1, 1))
	words := func(n int) (w []uint64) {
		for range n {
			w = append(w, rng.Uint64())
		}
		return w
	}
	var shared [owners / 8][2][]uint64
	for i := range shared {
		shared[i] = [...][]uint64{words(length / 2), words(length / 2)}
	}
	for o := range owners {
		for c := range chains {
			engine, local := words(length), words(length)
			if c%4 == 0 {
				copy(engine, shared[o%16][0])
				copy(local, shared[o%16][1])
			}
			for at := 0; at < length; at += 64 {
				e := &Store{Owner: Owner(o), Engine: engine[at : at+64], Local: local[at : at+64]}
				if at > 0 {
					e.HasParent, e.Parent = true, engine[at-1]
				}
				x.Store(e)
			}
		}
	}
	blocks := x.Stats().Blocks
	all := imageOf(b, x)
	bytes := 0
	for _, c := range all {
		bytes += len(c.bytes)
	}
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			imageOf(b, x)
		}
		b.ReportMetric(float64(blocks)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		b.ReportMetric(float64(bytes)/float64(blocks), "bytes/block")
	})
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			load(b, fleet(), all)
		}
		b.ReportMetric(float64(blocks)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
	})
}
