package index

import (
	"errors"
	"sync"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// imagePrompts are enough for several chunks of pieces.
const imagePrompts = 400

// imageOfThree returns the chunks of an index of three sources that hold more or less of the same
// prompts, so that pieces have several owner sets.
func imageOfThree(t *testing.T, opts Options) []chunk {
	t.Helper()
	x := New(opts)
	for range 3 {
		x.NewOwner(x.NewSource())
	}
	for prompt := range uint64(imagePrompts) {
		local, engine := make([]uint64, 100), make([]uint64, 100)
		for i := range local {
			local[i], engine[i] = mix(1000*prompt+uint64(i)+1), mix(mix(1000*prompt+uint64(i)+1))
		}
		for o := range Owner(3) {
			n := 100 / (int(o) + 1)
			x.Store(&Store{Owner: o, Engine: engine[:n], Local: local[:n], ClientHashes: func(Identity) []uint64 { return engine[:n] }})
		}
	}
	must.Succeed(t, x.Check())
	return imageOf(t, x)
}

// TestLoadBesideDrops drops a source of an image at each moment between two of its chunks, clears an owner of another one,
// and lets new sources come and store. Nobody gets blocks of those that left, and all invariants hold all the time.
func TestLoadBesideDrops(t *testing.T) {
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true}
	all := imageOfThree(t, opts)
	if len(all) < 4 {
		t.Fatalf("%d chunks", len(all))
	}
	for dropped := range len(all) + 1 {
		x := New(opts)
		for range 3 {
			x.NewOwner(x.NewSource())
		}
		l := NewLoader(x,
			func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true },
			func(n uint32) (Identity, bool) { return Identity(n), true })
		if !l.IsAlone(nil) {
			t.Fatal("an empty index is not alone")
		}
		var late []Owner
		for i := range len(all) + 1 {
			if i == dropped {
				x.DropSource(0)
				x.ClearOwner(1)
				for range 3 {
					x.Stats() // sweeps
					late = append(late, x.NewOwner(x.NewSource()))
				}
			}
			if i < len(all) {
				must.Succeed(t, l.Load(all[i].kind, all[i].bytes))
			}
			if err := x.Check(); err != nil {
				t.Fatalf("dropped before chunk %d, behind chunk %d: %v", dropped, i, err)
			}
		}
		l.Done()
		l.Done()
		must.Report(t, x.Check())
		for _, o := range late {
			if n := x.BlocksOf(o); n != 0 {
				t.Errorf("dropped before chunk %d: a source that has stored nothing holds %d blocks", dropped, n)
			}
		}
		if n := x.BlocksOf(2); n != imagePrompts*33 {
			t.Errorf("dropped before chunk %d: the third source holds %d blocks", dropped, n)
		}
	}
}

// TestLoadAtOnceWithDrops lets sources come and go in another goroutine while an image is loaded.
func TestLoadAtOnceWithDrops(t *testing.T) {
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, Budget: NewBudget(1 << 30)}
	all := imageOfThree(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	x := New(opts)
	for range 3 {
		x.NewOwner(x.NewSource())
	}
	l := NewLoader(x,
		func(n uint32) (Source, bool) { return Source(n), true },
		func(n uint32) (Owner, bool) { return Owner(n), true },
		func(n uint32) (Identity, bool) { return Identity(n), true })
	var others sync.WaitGroup
	others.Go(func() {
		for s := range Source(2) {
			x.DropSource(s)
			for range 50 {
				other := x.NewSource()
				x.NewOwner(other)
				x.Stats()
				x.DropSource(other)
			}
		}
	})
	for _, c := range all {
		must.Succeed(t, l.Load(c.kind, c.bytes))
	}
	others.Wait()
	l.Done()
	must.Report(t, x.Check())
	if n := x.BlocksOf(2); n != imagePrompts*33 {
		t.Errorf("the third source holds %d blocks", n)
	}
}

// TestLoadGivenUp gives a load up behind each chunk: nothing of it is left.
func TestLoadGivenUp(t *testing.T) {
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true}
	all := imageOfThree(t, opts)
	for n := range all {
		x := New(opts)
		for range 3 {
			x.NewOwner(x.NewSource())
		}
		l := NewLoader(x,
			func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true },
			func(n uint32) (Identity, bool) { return Identity(n), true })
		for _, c := range all[:n+1] {
			must.Succeed(t, l.Load(c.kind, c.bytes))
		}
		l.Done()
		for s := range Source(3) {
			x.DropSource(s)
		}
		x.Stats()
		must.Report(t, x.Check())
		if n := x.tree.sets.countSets(); n != 0 {
			t.Errorf("%d sets stay", n)
		}
	}
}

// TestLoadIsAlone refuses to load pieces as they are where another source has blocks, or may have some.
func TestLoadIsAlone(t *testing.T) {
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true}
	all := imageOfThree(t, opts)
	begin := func(x *Index) *Loader {
		return NewLoader(x,
			func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true },
			func(n uint32) (Identity, bool) { return Identity(n), true })
	}
	own := map[Source]bool{0: true, 1: true, 2: true}
	three := func() *Index {
		x := New(opts)
		for range 3 {
			x.NewOwner(x.NewSource())
		}
		return x
	}

	x := three()
	l := begin(x)
	if !l.IsAlone(own) {
		t.Error("an index of the sources of the image is not alone")
	}
	for i, c := range all {
		if i == len(all)-1 {
			x.NewSource()
			if err := l.Load(c.kind, c.bytes); !errors.Is(err, ErrOthers) {
				t.Errorf("another source has come: %v", err)
			}
			break
		}
		must.Succeed(t, l.Load(c.kind, c.bytes))
	}
	l.Done()

	x = three()
	x.NewSource()
	if begin(x).IsAlone(own) {
		t.Error("alone beside another source")
	}
	x = three()
	x.Store(&Store{Owner: 0, Engine: []uint64{1}, Local: []uint64{2}})
	if begin(x).IsAlone(nil) {
		t.Error("alone with a block")
	}
	x.ClearOwner(0) // the piece stays until something sweeps
	if !begin(x).IsAlone(nil) {
		t.Error("not alone behind the last block")
	}
}
