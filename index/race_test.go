package index

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvconductor/index/hash"
)

// Readers run while a writer stores and removes a chain, leaf first, and the table
// is rebuilt. An owner that holds all the time has all its blocks in every answer;
// one that comes and goes is never listed twice nor beyond what it ever held.
func TestReadersDuringWrites(t *testing.T) {
	const length, rounds = 96, 200
	x := New(Options{Scheme: hash.Default()})
	still, moving := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	chain := seqs(length)
	engine, local := blocks(100, 1, length)
	back := make([]uint64, 0, length)
	for i := range engine {
		back = append(back, engine[length-1-i])
	}
	const most = 64 // what moving holds at most
	x.Store(&Store{Owner: still, Engine: engine[:length/2], Local: local[:length/2]})

	var done atomic.Bool
	var looks atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var m Match
			var dst []Depth
			for !done.Load() {
				dst = x.Depths(chain, dst[:0])
				var seen [2]int
				for _, d := range dst {
					seen[d.Owner]++
					if d.Owner == still && d.Blocks != length/2 || d.Owner == moving && d.Blocks > most {
						t.Errorf("depths %v", dst)
						return
					}
				}
				if seen[still] != 1 || seen[moving] > 1 {
					t.Errorf("depths %v", dst)
					return
				}
				x.Match(chain, &m)
				at := 0
				for _, r := range m.Runs {
					for i, o := range r.Owners {
						if i > 0 && r.Owners[i-1] >= o || at+r.Blocks > most && Owner(o) == moving {
							t.Errorf("match %+v", m)
							return
						}
					}
					if (at < length/2) != (r.Owners[0] == uint32(still)) {
						t.Errorf("match %+v", m)
						return
					}
					at += r.Blocks
				}
				looks.Add(1)
				runtime.Gosched() // or the writer waits for a time slice each time
			}
		})
	}
	for i := range rounds {
		x.Store(&Store{Owner: moving, Engine: engine[:most], Local: local[:most]})
		runtime.Gosched()
		switch i % 4 {
		case 0:
			x.Clear(moving)
		case 1:
			x.Compact()
			x.Remove(moving, back, nil, CopySet)
		case 2:
			x.Remove(moving, engine, nil, CopySet) // root first: open for a while
		default:
			x.Remove(moving, back, nil, CopySet)
		}
	}
	for before := looks.Load(); looks.Load() < before+10 && !t.Failed(); { // readers did run
		runtime.Gosched()
	}
	done.Store(true)
	wg.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// With holes that come and go, an answer never reaches over a hole that was there
// all the time.
func TestReadersStopAtHoles(t *testing.T) {
	const length, hole = 64, 20
	x := New(Options{Scheme: hash.Default()})
	o := x.NewOwner(x.NewSource())
	p := x.NewOwner(x.NewSource()) // holds everything: the chain goes on
	chain := seqs(length)
	x.Store(&Store{Owner: p, Engine: chain})
	var done atomic.Bool
	var wg sync.WaitGroup
	var holed atomic.Int64 // odd while the hole is there
	var looks atomic.Int64
	for range 2 {
		wg.Go(func() {
			var dst []Depth
			for !done.Load() {
				before := holed.Load()
				dst = x.Depths(chain, dst[:0])
				if after := holed.Load(); before == after && before%2 == 1 {
					for _, d := range dst {
						if d.Owner == o && d.Blocks > hole {
							t.Errorf("depth %d over a hole at %d", d.Blocks, hole)
							return
						}
					}
				}
				looks.Add(1)
				runtime.Gosched()
			}
		})
	}
	for range 400 {
		x.Store(&Store{Owner: o, Engine: chain})
		x.Remove(o, chain[hole:hole+1], nil, CopySet)
		holed.Add(1)
		runtime.Gosched()
		x.Remove(o, chain[hole+1:], nil, CopySet) // closed again some time
		x.Store(&Store{Owner: o, Engine: chain[hole+2:], HasParent: true, Parent: chain[hole+1]})
		runtime.Gosched()
		holed.Add(1)
		x.Remove(o, chain, nil, CopySet)
	}
	for before := looks.Load(); looks.Load() < before+10 && !t.Failed(); {
		runtime.Gosched()
	}
	done.Store(true)
	wg.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// Writers of several sources work on the same blocks, with rebuilds and readers
// between them; when all is quiet the index says what an oracle says.
func TestWritersAgainstOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const writers, calls, width, depth = 4, 300, 12, 40
	x := New(Options{Scheme: hash.Default()})
	chains := make([][]uint64, width)
	for i := range chains {
		local := make([]uint64, depth)
		for j := range local {
			local[j] = uint64(j + 1)
			if j > i*3 {
				local[j] += uint64(i) << 32 // shares its beginning with the others
			}
		}
		chains[i] = hash.Default().Chain(nil, local)
	}
	o := newOracle(hash.Default(), 0)
	owners := make([]Owner, writers)
	for i := range owners {
		src := x.NewSource()
		owners[i] = x.NewOwner(src)
		o.sources[src] = &oSource{private: map[uint64]uint64{}, owners: owners[i : i+1]}
		o.owners[owners[i]] = src
	}
	held := make([]map[uint64]bool, writers)
	var writing, wg sync.WaitGroup
	var done atomic.Bool
	for w := range writers {
		held[w] = map[uint64]bool{}
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for range calls {
				c := chains[rng.IntN(width)]
				from, to := rng.IntN(depth), rng.IntN(depth+1)
				if rng.IntN(2) == 0 {
					from = 0
				}
				if from >= to {
					continue
				}
				switch n := rng.IntN(100); {
				case n < 55:
					e := Store{Owner: owners[w], Engine: c[from:to], Copies: CopySet}
					if from > 0 {
						e.Parent, e.HasParent = c[from-1], true
					}
					x.Store(&e)
					for _, k := range c[from:to] {
						held[w][k] = true
					}
				case n < 95:
					x.Remove(owners[w], c[from:to], nil, CopySet)
					for _, k := range c[from:to] {
						delete(held[w], k)
					}
				case n < 98:
					if n := x.Clear(owners[w]); n != len(held[w]) {
						t.Errorf("cleared %d, held %d", n, len(held[w]))
					}
					clear(held[w])
				default:
					x.Compact()
				}
			}
		})
	}
	wg.Go(func() {
		var dst []Depth
		var m Match
		for i := 0; !done.Load(); i++ {
			dst = x.Depths(chains[i%width], dst[:0])
			for j, d := range dst {
				for _, e := range dst[:j] {
					if d.Owner == e.Owner {
						t.Errorf("owner %d twice", d.Owner)
					}
				}
			}
			x.Match(chains[i%width], &m)
			runtime.Gosched()
		}
	})
	writing.Wait()
	done.Store(true)
	wg.Wait()
	for w, keys := range held {
		for k := range keys {
			o.set(owners[w], k, 1)
		}
	}
	w := &world{t: t, x: x, o: o}
	for _, c := range chains {
		w.match(c, true)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// Writers of different sources, readers, checkers and owners that come and go.
func TestConcurrentWriters(t *testing.T) {
	x := New(Options{Scheme: hash.Default(), MaxOrphans: 8})
	var wg sync.WaitGroup
	for w := range uint64(3) {
		wg.Go(func() {
			src := x.NewSource()
			for i := range uint64(60) {
				o := x.NewOwner(src)
				first := 1 + i%5
				engine, local := blocks(w<<32, first, first+10)
				x.Store(&Store{Owner: o, Engine: engine, Local: local, Parent: w<<32 + first - 1, HasParent: first > 1})
				x.Remove(o, engine[3:7], nil, CopyCount)
				switch i % 3 {
				case 0:
					x.Clear(o)
				case 1:
					x.Aliases(func(Source, uint64, uint64) bool { return true })
				}
				if i%20 == 19 {
					x.DropSource(src)
					src = x.NewSource()
				}
				if err := x.Check(); err != nil {
					t.Error(err)
					return
				}
			}
			x.DropSource(src)
		})
	}
	wg.Wait()
	if st := x.Stats(); st.Blocks+st.Aliases+st.Raw+st.Orphans+st.Sets != 0 {
		t.Errorf("something is left: %+v", st)
	}
}

// Galloping and scanning agree, whoever has holes.
func TestGallopAgrees(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 60 {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		x := New(Options{Scheme: hash.Default()})
		const n = 200
		chain := seqs(n)
		var owners []Owner
		deep := map[Owner][]bool{}
		for range 1 + rng.IntN(100) {
			o := x.NewOwner(x.NewSource())
			owners = append(owners, o)
			has := make([]bool, n)
			deep[o] = has
			d := rng.IntN(n + 1)
			x.Store(&Store{Owner: o, Engine: chain[:d]})
			for i := range d {
				has[i] = true
			}
			drop := func(from, to int) {
				for i := to - 1; i >= from; i-- {
					x.Remove(o, chain[i:i+1], nil, CopySet)
					has[i] = false
				}
			}
			switch rng.IntN(4 + 6*(round%2)) { // in every other round holes are rare
			case 0:
				if d > 1 {
					from := rng.IntN(d)
					drop(from, from+1+rng.IntN(d-from))
				}
			case 1:
				drop(rng.IntN(d+1), d)
			}
			if rng.IntN(20) == 0 {
				x.Clear(o)
				clear(has)
			}
			if rng.IntN(30) == 0 {
				x.Compact()
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		g := x.gen.Load()
		for range 20 {
			c := chain[:rng.IntN(n+1)]
			want := map[Owner]uint32{}
			for _, o := range owners {
				for want[o] < uint32(len(c)) && deep[o][want[o]] {
					want[o]++
				}
				if want[o] == 0 {
					delete(want, o)
				}
			}
			got := x.Depths(c, nil)
			if len(got) != len(want) {
				t.Fatalf("seed %d round %d: got %v, want %v", seed, round, got, want)
			}
			for _, d := range got {
				if want[d.Owner] != d.Blocks {
					t.Fatalf("seed %d round %d: owner %d has %d, want %d", seed, round, d.Owner, d.Blocks, want[d.Owner])
				}
			}
			var a, b Match
			x.Match(c, &a)
			g.scanRuns(c, &b)
			b.finish(g)
			if fmt.Sprint(a.Runs, a.Blocks) != fmt.Sprint(b.Runs, b.Blocks) {
				t.Fatalf("seed %d round %d: runs %v, scanned %v", seed, round, a.Runs, b.Runs)
			}
		}
	}
}
