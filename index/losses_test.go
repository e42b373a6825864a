package index

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
)

// lossPath is a prompt.
type lossPath struct{ local, keys []uint64 }

// engine returns engine hashes of blocks.
func (p *lossPath) engine(from, to int) (all []uint64) {
	for _, k := range p.keys[from:to] {
		all = append(all, k^0x5555)
	}
	return all
}

// locals is a chain given by its local hashes.
type locals struct {
	keyList
	local []uint64
}

func (l *locals) Locals(int) []uint64 { return l.local }

// TestLossesModel stores and removes prompts that part in the middle and meet again, as documents
// behind other prefixes do. The ring names the last removal of a block, and never one of another
// block. It knows each block that left alone, and the first one of a stretch.
func TestLossesModel(t *testing.T) {
	skipUnderRace(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	found := 0
	for world := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, world))
		x := New(Options{Scheme: hash.DefaultScheme()})
		o := x.NewOwner(x.NewSource())
		l := NewLosses(1 << 20)
		x.RecordLosses(o, l, 7)
		held, lost := make(map[uint64]bool), make(map[uint64][]uint64) // marks of removals
		alone := make(map[uint64]bool)                                 // the last removal took the block as the first of a stretch
		var paths []*lossPath
		for range 6 {
			p := new(lossPath)
			for i := range 100 {
				tokens := uint64(i + 1)
				if rng.IntN(30) == 0 {
					tokens += 1000 * (1 + rng.Uint64N(2)) // another middle, the same rest
				}
				p.local = append(p.local, mix(tokens))
			}
			p.keys = hash.DefaultScheme().AppendChain(nil, p.local)
			paths = append(paths, p)
		}
		for mark := uint64(1); mark < 200; mark++ {
			l.SetMark(mark)
			p := paths[rng.IntN(len(paths))]
			if rng.IntN(3) == 0 {
				end := 1 + rng.IntN(len(p.local))
				x.Store(&Store{Owner: o, Engine: p.engine(0, end), Local: p.local[:end], Copies: CopySet})
				for _, k := range p.keys[:end] {
					held[k] = true
				}
				continue
			}
			from := rng.IntN(len(p.local))
			to := min(from+1+rng.IntN(8)*rng.IntN(2), len(p.local))
			x.Remove(o, p.engine(from, to), nil, CopySet)
			first := true
			for _, k := range p.keys[from:to] {
				if held[k] {
					lost[k], alone[k] = append(lost[k], mark), first
					first = false
				} else {
					first = true
				}
				delete(held, k)
			}
		}
		for _, p := range paths {
			c := &locals{keyList: p.keys, local: p.local}
			for i, k := range p.keys {
				mark, ok := l.Find(0, c, i, 7)
				switch {
				case ok && !slices.Contains(lost[k], mark):
					t.Fatalf("world %d: block %d was lost at %d, want %d", world, i, mark, lost[k])
				case alone[k] && (!ok || mark != lost[k][len(lost[k])-1]):
					t.Fatalf("world %d: block %d was lost at %d %t, want the last of %d", world, i, mark, ok, lost[k])
				case ok:
					found++
				}
				if _, other := l.Find(0, c, i, 8); other {
					t.Fatal("a loss of another label")
				}
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if found < 1000 {
		t.Errorf("%d losses found", found)
	}
}

// TestLossesAreBounded overflows a ring.
func TestLossesAreBounded(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	l := NewLosses(1000*lossBytes + 1)
	x.RecordLosses(o, l, 1)
	if l.Bytes() != 0 {
		t.Errorf("an empty ring takes %d bytes", l.Bytes())
	}
	for i := range uint64(3000) {
		l.SetMark(i)
		x.Store(&Store{Owner: o, Engine: []uint64{i + 1}, Local: []uint64{mix(i + 1)}, Copies: CopySet})
		x.Remove(o, []uint64{i + 1}, nil, CopySet)
	}
	if got := l.Bytes(); got != 1000*lossBytes {
		t.Errorf("%d bytes, want %d", got, 1000*lossBytes)
	}
	if since, some := l.Since(); !some || since != 1999 {
		t.Errorf("forgotten up to %d %t, want 1999", since, some)
	}
	for i, want := range map[uint64]bool{1999: false, 2000: true, 2999: true} {
		c := &locals{local: []uint64{mix(i + 1)}, keyList: []uint64{mix(i + 1)}}
		if mark, ok := l.Find(0, c, 0, 1); ok != want || ok && mark != i {
			t.Errorf("loss %d: %d %t", i, mark, ok)
		}
	}
	if l.Reset(); l.Bytes() != 0 {
		t.Errorf("a reset ring takes %d bytes", l.Bytes())
	}
	var none *Losses
	none.SetMark(1)
	none.Reset()
	if _, some := none.Since(); some || none.Bytes() != 0 || NewLosses(lossBytes-1) != nil {
		t.Error("a nil ring remembers")
	}
}

// TestLossesCostNoAllocation removes with a full ring and without one.
func TestLossesCostNoAllocation(t *testing.T) {
	allocations := func(l *Losses) float64 {
		x := New(Options{Scheme: hash.DefaultScheme()})
		o := x.NewOwner(x.NewSource())
		x.RecordLosses(o, l, 1)
		local, engine := make([]uint64, 32), make([]uint64, 32)
		for i := range local {
			local[i], engine[i] = mix(uint64(i+1)), uint64(i+1)
		}
		round := func() {
			x.Store(&Store{Owner: o, Engine: engine, Local: local, Copies: CopySet})
			for i := len(engine) - 2; i >= 0; i -= 2 {
				x.Remove(o, engine[i:i+1], nil, CopySet)
			}
		}
		for range 100 {
			round()
		}
		return alloctest.PerRun(100, round)
	}
	if with, without := allocations(NewLosses(64*lossBytes)), allocations(nil); with > without {
		t.Errorf("%v allocations, %v without a ring", with, without)
	}
}

// TestLooks asks the questions of an explanation.
func TestLooks(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	src := x.NewSource()
	o := x.NewOwner(src)
	local := []uint64{mix(1), mix(2), mix(3), mix(4), mix(5)}
	c := &locals{local: local, keyList: hash.DefaultScheme().AppendChain(nil, local)}
	x.Store(&Store{Owner: o, Engine: []uint64{11, 12}, Local: local[:2], Copies: CopySet})
	x.Store(&Store{Owner: o, Engine: []uint64{14, 15}, Local: local[3:], Parent: 13, HasParent: true, Copies: CopySet})
	if at := x.Inspect().WaitingAmong(src, local); len(at) != 2 || at[0] != 3 || at[1] != 4 {
		t.Errorf("waiting: %v", at)
	}
	if n := x.Inspect().CountTokenless(src); n != 0 {
		t.Errorf("%d without tokens", n)
	}
	x.Store(&Store{Owner: o, Engine: []uint64{77}, Rootless: true, Copies: CopySet})
	if n := x.Inspect().CountTokenless(src); n != 1 {
		t.Errorf("%d without tokens, want 1", n)
	}
	for i, want := range []uint64{11, 12, 0, 0, 0} {
		names := x.Inspect().NamesAt(0, c, i)
		if want == 0 && len(names) > 0 || want != 0 && (len(names) != 1 || names[0] != want) {
			t.Errorf("block %d: names %v, want %d", i, names, want)
		}
	}
	if x.Inspect().WasRefused(0, c.At(0)) {
		t.Error("a held block counts as refused")
	}
}
