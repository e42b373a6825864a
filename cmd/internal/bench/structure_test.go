package bench

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// same reports the first of the queries to which two structures answer differently.
func same(t *testing.T, what string, got, want Structure, seq, local []uint64) {
	t.Helper()
	g, w := got.Depths(seq, local, nil), want.Depths(seq, local, nil)
	slices.SortFunc(g, func(a, b Depth) int { return int(a.Owner) - int(b.Owner) })
	slices.SortFunc(w, func(a, b Depth) int { return int(a.Owner) - int(b.Owner) })
	if !slices.Equal(g, w) {
		t.Fatalf("%s: %d blocks: got %v, want %v", what, len(seq), g, w)
	}
}

// Every structure answers every query of a stream as the oracle does, and lets go
// of everything in the end.
func TestStructuresAgainstOracle(t *testing.T) {
	f := func(change func(*Config)) {
		t.Helper()
		c := small(t)
		change(&c)
		s, _, err := generate(&c)
		if err != nil {
			t.Fatal(err)
		}
		named := s
		if c.Events == Engine {
			named = s.named(c.HashSeeds)
		}
		for _, name := range Structures {
			for _, shared := range []bool{false, true} {
				st, oracle := build(&c, name, shared), NewOracle(c.owners())
				l, truth := load{st: st, s: s}, load{st: oracle, s: s}
				if name == Index {
					l.s = named
				}
				for i := range s.ops {
					if o := &s.ops[i]; o.kind == query {
						same(t, name, st, oracle, s.seq[o.from:o.to], s.local[o.from:o.to])
						continue
					}
					l.change(&l.s.ops[i])
					truth.change(&s.ops[i])
				}
				for owner, held := range oracle.held {
					for k := range held {
						if name == Index && c.Events == Engine {
							k = nameOf(&c, owner, k)
						}
						st.Remove(uint32(owner), []uint64{k})
					}
				}
				empty(t, st)
			}
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Capacity = 40 })
	f(func(c *Config) { c.Tiers, c.Capacity = 3, 40 })
	f(func(c *Config) { c.Events, c.HashSeeds, c.Capacity = Engine, 1, 40 })
	f(func(c *Config) { c.Events, c.HashSeeds, c.Tiers, c.Capacity = Engine, 4, 3, 40 })
	f(func(c *Config) { c.Trace, c.Synthetic, c.Holders = "", 3000, 3 })
}

func nameOf(c *Config, owner int, seq uint64) uint64 {
	return name(seq, uint64(owner/c.Tiers%c.HashSeeds))
}

// empty looks into a structure from which everything was removed.
func empty(t *testing.T, st Structure) {
	t.Helper()
	left, lost := 0, 0
	switch st := st.(type) {
	case *indexed:
		left = st.x.Stats().Blocks
		if err := st.x.Check(); err != nil {
			t.Error(err)
		}
	case *hashMap:
		for i := range st.shards {
			left += len(st.shards[i].by)
		}
	case *radix:
		for _, l := range st.lookup {
			left += len(l)
		}
		if st.root.only != nil {
			left++
		}
		left, lost = left+len(st.root.more), st.lost
	case *positional:
		for _, l := range st.workers {
			left += len(l)
		}
		for _, l := range st.levels {
			left += len(l.by)
		}
		lost = st.lost
	}
	if left != 0 || lost != 0 {
		t.Errorf("%T: %d entries left after everything was removed, %d blocks lost", st, left, lost)
	}
}

// Two prefixes meet at one position with the same tokens.
func TestSameTokensBehindTwoPrefixes(t *testing.T) {
	p := newPrompts(16)
	var chains [2][]int32
	for i := range chains {
		chains[i] = p.extend(nil, uint64(100+i), 0, 0)
		for j := range 5 {
			chains[i] = p.extend(chains[i], uint64(j), 0, 0)
		}
	}
	s := &Stream{tiers: 1, owners: 3}
	from := [2]uint32{s.append(p, chains[0]), s.append(p, chains[1])}
	for owner, which := range []int{0, 1, 1} {
		s.store(p, owner, -1, from[which], from[which]+6)
	}
	s.names = s.seq
	for _, name := range Structures {
		c := Config{Workers: 3, Tiers: 1, Events: Canonical}
		st, oracle := build(&c, name, false), NewOracle(3)
		l, truth := load{st: st, s: s}, load{st: oracle, s: s}
		for i := range s.ops {
			l.change(&s.ops[i])
			truth.change(&s.ops[i])
		}
		check := func() {
			t.Helper()
			for _, at := range from {
				same(t, name, st, oracle, s.seq[at:at+6], s.local[at:at+6])
			}
		}
		check()
		for _, drop := range []struct{ owner, which uint32 }{{1, 1}, {0, 0}, {2, 1}} {
			for i := range uint32(6) {
				k := s.seq[from[drop.which]+5-i:][:1]
				st.Remove(drop.owner, k)
				oracle.Remove(drop.owner, k)
				check()
			}
		}
		empty(t, st)
	}
}

// Jumps of any length find where owners leave.
func TestJumps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const owners, length = 9, 300
	p := newPrompts(16)
	var chain []int32
	for i := range length {
		chain = p.extend(chain, r.Uint64(), 0, uint32(i))
	}
	s := &Stream{tiers: 1, owners: owners}
	from := s.append(p, chain)
	s.names = s.seq
	oracle := NewOracle(owners)
	jumps := []int{1, 2, 32, 64, 1000}
	var all []Structure
	for _, j := range jumps {
		all = append(all, newPositional(traits{tiers: 1, closed: true}, owners, j))
	}
	for owner := range uint32(owners) {
		names, local := s.seq[from:][:1+r.IntN(length)], s.local[from:]
		oracle.Store(owner, 0, false, names, nil)
		for _, st := range all {
			st.Store(owner, 0, false, names, local[:len(names)])
		}
	}
	for n := range length + 1 {
		for _, st := range all {
			same(t, "positional", st, oracle, s.seq[from:][:n], s.local[from:][:n])
		}
	}
}

func TestWireCarriesTheStream(t *testing.T) {
	c := small(t)
	c.Events, c.Tiers, c.HashSeeds, c.EventBlock = Wire, 3, 2, 3
	s, p, err := generate(&c)
	if err != nil {
		t.Fatal(err)
	}
	clk := newClock()
	l := newLoad(build(&c, Index, false), s.named(c.HashSeeds), &clk)
	res, err := l.replayWire(&c, p)
	if err != nil {
		t.Fatal(err)
	}
	oracle := NewOracle(c.owners())
	truth := load{st: oracle, s: s}
	for i := range s.ops {
		if s.ops[i].kind != query {
			truth.change(&s.ops[i])
		}
	}
	for _, o := range s.ops {
		if o.kind == query {
			same(t, "wire", l.st, oracle, s.seq[o.from:o.to], s.local[o.from:o.to])
		}
	}
	if want := s.Size.StoreBlocks + s.Size.RemoveBlocks; res.Blocks != want || l.sizes != (Sizes{s.Size.Requests, s.Size.QueryBlocks, s.Size.StoreBlocks, s.Size.RemoveBlocks, 0}) {
		t.Errorf("%d blocks from the wire, want %d; %+v", res.Blocks, want, l.sizes)
	}
	runtime.KeepAlive(l.st)
}
