package index

import (
	"runtime"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// At its limit an index refuses the tails of chains, keeps what it has, says where
// an answer is cut short, and takes blocks again when others have left.
func TestBudgetRefusesTails(t *testing.T) {
	skipUnderRace(t)
	f := func(local func(i int) []uint64) {
		t.Helper()
		const limit, length = 1 << 20, 64
		x := New(Options{Scheme: hash.DefaultScheme(), MaxBytes: limit})
		o, other := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
		key := func(i, n int) []uint64 {
			c := make([]uint64, n)
			for j := range c {
				c[j] = mix(uint64(i)<<20 + uint64(j))
			}
			return c
		}
		seq := func(i int) []uint64 {
			if l := local(i); l != nil {
				return hash.DefaultScheme().AppendChain(nil, l)
			}
			return key(i, length)
		}
		refused, stored := 0, 0
		for i := range 2000 {
			res := x.Store(&Store{Owner: o, Engine: key(i, length), Local: local(i), Copies: CopySet})
			refused += res.Refused
			stored += res.Added
			if res.Added+res.Refused != length {
				t.Fatalf("chain %d: %+v", i, res)
			}
		}
		st := x.Stats()
		if refused == 0 || stored != st.Blocks || st.Bytes > limit+limit/8 || st.Bytes < limit*3/4 {
			t.Errorf("%d stored, %d refused, %+v", stored, refused, st)
		}
		var m Match
		cut := 0
		for i := range 2000 {
			x.matchKeys(0, seq(i), &m)
			if m.Truncated != (m.Blocks < length) {
				t.Fatalf("chain %d: %d blocks, truncated %t", i, m.Blocks, m.Truncated)
			}
			if m.Truncated {
				cut += length - m.Blocks
			}
		}
		if cut != refused {
			t.Errorf("%d blocks are missing, %d were refused", cut, refused)
		}
		if res := x.Store(&Store{Owner: other, Engine: key(0, length), Local: local(0)}); res.Added != length {
			t.Errorf("held by others already: %+v", res)
		}
		must.Report(t, x.Check())
		x.ClearOwner(o)
		x.compactAll()
		for i := range 20 {
			if res := x.Store(&Store{Owner: o, Engine: key(3000+i, length), Local: local(3000 + i)}); res.Added != length {
				t.Errorf("with room again: %+v", res)
			}
		}
		must.Report(t, x.Check())
	}
	f(func(int) []uint64 { return nil })
	f(func(i int) []uint64 {
		l := make([]uint64, 64)
		for j := range l {
			l[j] = uint64(i)<<32 + uint64(j)
		}
		return l
	})
}

// A million memberships leave the answers at once and at a cost that does not
// depend on them, and the memory with the next look at it.
func TestClearMillion(t *testing.T) {
	million := 1 << 20
	if testing.Short() || underRace {
		million = 1 << 17
	}
	x := New(Options{Scheme: hash.DefaultScheme()})
	o, other := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	fill := func(n int) {
		c := make([]uint64, 128)
		for i := 0; i < n; i += len(c) {
			for j := range c {
				c[j] = mix(uint64(i + j + 1))
			}
			x.Store(&Store{Owner: o, Engine: c})
		}
	}
	x.Store(&Store{Owner: other, Engine: []uint64{mix(1)}})
	fill(million)
	full := x.Stats().Bytes
	x.ClearOwner(o)
	var m Match
	if x.matchKeys(0, []uint64{mix(1), mix(2)}, &m); m.Blocks != 1 || len(m.Prefixes) != 1 || Owner(m.Prefixes[0].Owner) != other {
		t.Errorf("after clear: %+v", m.Prefixes)
	}
	if x.BlocksOf(o) != 0 {
		t.Errorf("%d blocks are left", x.BlocksOf(o))
	}
	st := x.Stats()
	if st.Bytes > full/80 || st.Blocks != 1 || st.Memberships != 1 {
		t.Errorf("%d bytes before, then %+v", full, st)
	}
	must.Report(t, x.Check())
	runtime.KeepAlive(x)
}

// Blocks that are removed one by one leave the memory as well.
func TestRemoveGivesMemoryBack(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	const n = 1 << 17
	c, back := make([]uint64, 128), make([]uint64, 128)
	each := func(f func()) {
		for i := 0; i < n; i += len(c) {
			for j := range c {
				c[j] = mix(uint64(i + j + 1))
				back[len(c)-1-j] = c[j]
			}
			f()
		}
	}
	each(func() { x.Store(&Store{Owner: o, Engine: c, Local: c}) })
	full := x.Stats().Bytes
	each(func() { x.Remove(o, back, nil, CopySet) })
	if got := x.Stats().Bytes; got > full/20 {
		t.Errorf("%d bytes with everything, %d with nothing", full, got)
	}
	must.Report(t, x.Check())
}

// TestBudgetTotal lets one index fill the budget of two. The other refuses blocks until the
// first gives its memory back: by a clear, and by its end.
func TestBudgetTotal(t *testing.T) {
	const most, length = 1 << 20, 64
	b := NewBudget(most)
	chains := 0
	// fill stores chains until one is refused, but at most the given number.
	fill := func(x *Index, o Owner, atMost int) (full bool) {
		for range atMost {
			chains++
			engine, local := make([]uint64, length), make([]uint64, length)
			for i := range engine {
				engine[i] = mix(uint64(chains)<<20 + uint64(i))
				local[i] = uint64(chains)<<32 + uint64(i)
			}
			if res := x.Store(&Store{Owner: o, Engine: engine, Local: local, Copies: CopySet}); res.Refused > 0 {
				return true
			}
		}
		return false
	}
	open := func() (*Index, Owner) {
		x := New(Options{Scheme: hash.DefaultScheme(), Budget: b})
		return x, x.NewOwner(x.NewSource())
	}
	x, o := open()
	if !fill(x, o, 4000) {
		t.Fatal("the first index has no bound")
	}
	y, p := open()
	if !fill(y, p, 1) {
		t.Fatal("the second index takes what the first has")
	}
	x.ClearOwner(o)
	x.compactAll()
	if fill(y, p, 20) {
		t.Error("refused with room again")
	}
	x.Stats()
	y.Stats() // as every scrape: the shares are exact then
	if used := b.used.Load(); used != int64(x.bounds.tableBytes()+y.bounds.tableBytes()) {
		t.Errorf("%d bytes are used; the indexes take %d and %d", used, x.bounds.tableBytes(), y.bounds.tableBytes())
	}
	fill(x, o, 4000)
	x = nil
	for n := 0; b.used.Load() > int64(y.bounds.tableBytes()) && n < 1000; n++ {
		runtime.GC()
		runtime.Gosched()
	}
	if used := b.used.Load(); used != int64(y.bounds.tableBytes()) {
		t.Errorf("%d bytes are used after the first index has died; the second takes %d", used, y.bounds.tableBytes())
	}
}
