package bench

import (
	"fmt"
	"sync"

	"kvconductor/index"
	"kvconductor/index/hash"
)

// Depth is how many leading blocks of a chain an owner holds, at least one.
type Depth struct {
	Owner  index.Owner
	Blocks uint32
}

// Structure is something that knows who holds which block. Owners are numbered
// worker*tiers + tier. Every method may run beside any other, except that calls
// for owners of one worker do not overlap.
type Structure interface {
	// Store adds consecutive blocks of a chain to an owner that holds none of
	// them. parent is the name of the block before the first one.
	Store(owner uint32, parent uint64, hasParent bool, names, local []uint64)
	// Remove takes blocks from an owner that holds them.
	Remove(owner uint32, names []uint64)
	// Depths appends, in no particular order, one row for each owner that holds
	// the first block of a chain given by sequence and by local hashes.
	Depths(seq, local []uint64, dst []Depth) []Depth
}

// traits are what a baseline may rely on.
type traits struct {
	tiers  int
	closed bool // every owner holds the parent of every block it holds
	shared bool // more than one goroutine: locks are taken
}

// build returns an empty structure.
func build(c *Config, name string, shared bool) Structure {
	t := traits{tiers: c.Tiers, closed: c.closed(), shared: shared}
	switch name {
	case Index:
		return newIndexed(c)
	case Map:
		return newHashMap(t)
	case Radix:
		return newRadix(t, c.Workers)
	case Positional:
		return newPositional(t, c.Workers, jump)
	}
	panic(fmt.Sprintf("BUG: structure %q", name))
}

// indexed is the index as the conductor uses it: a source for each worker, an
// owner for each of its tiers.
type indexed struct {
	x      *index.Index
	tokens bool // events carry local hashes, and names are the engines' own
}

func newIndexed(c *Config) *indexed {
	x := &indexed{x: index.New(index.Options{Scheme: hash.Default()}), tokens: c.Events != Canonical}
	for range c.Workers {
		src := x.x.NewSource()
		for range c.Tiers {
			x.x.NewOwner(src)
		}
	}
	return x
}

func (x *indexed) Store(owner uint32, parent uint64, hasParent bool, names, local []uint64) {
	if !x.tokens {
		local = nil
	}
	x.x.Store(&index.Store{Owner: index.Owner(owner), Parent: parent, HasParent: hasParent, Engine: names, Local: local})
}

func (x *indexed) Remove(owner uint32, names []uint64) {
	x.x.Remove(index.Owner(owner), names, nil, index.CopyCount)
}

func (x *indexed) Depths(seq, local []uint64, dst []Depth) []Depth {
	r := readers.Get().(*reader)
	defer readers.Put(r)
	if x.tokens {
		r.chain.Reset(local)
		x.x.MatchLazy(&r.chain, &r.match)
	} else {
		x.x.Match(seq, &r.match)
	}
	return depths(&r.match, dst)
}

// reader is the buffers of a query, which starts from local hashes as the server's does.
type reader struct {
	chain localChain
	match index.Match
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// localChain is a prompt given by its local hashes.
type localChain struct{ local, seq []uint64 }

func (c *localChain) Reset(local []uint64) { c.local, c.seq = local, c.seq[:0] }
func (c *localChain) Len() int             { return len(c.local) }
func (c *localChain) Locals(int) []uint64  { return c.local }

// At returns the sequence hash of block i.
func (c *localChain) At(i int) uint64 {
	for n := len(c.seq); n <= i; n++ {
		l := c.local[n]
		if n > 0 {
			l = hash.Default().Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}

// depths appends how far each owner of the first block goes.
func depths(m *index.Match, dst []Depth) []Depth {
	from, at := len(dst), 0
	for i, r := range m.Runs {
		if i == 0 {
			for _, o := range r.Owners {
				dst = append(dst, Depth{Owner: index.Owner(o)})
			}
		}
		live, k := 0, 0
		for j := from; j < len(dst); j++ {
			if int(dst[j].Blocks) < at {
				continue
			}
			for k < len(r.Owners) && r.Owners[k] < uint32(dst[j].Owner) {
				k++
			}
			if k < len(r.Owners) && r.Owners[k] == uint32(dst[j].Owner) {
				dst[j].Blocks += uint32(r.Blocks)
				live++
			}
		}
		if at += r.Blocks; live == 0 {
			break
		}
	}
	return dst
}

// drain is how the baselines keep the owners still in the match: rows[:live] are
// they, and those that do not hold the block at this depth get their result and
// move behind.
func drain(rows []Depth, live int, holders *owners, depth int) int {
	for j := 0; j < live; {
		if holders.has(uint32(rows[j].Owner)) {
			j++
			continue
		}
		rows[j].Blocks = uint32(depth)
		live--
		rows[j], rows[live] = rows[live], rows[j]
	}
	return live
}

// enter begins a match with the holders of the first block.
func enter(dst []Depth, holders *owners) []Depth {
	for _, o := range holders.list {
		dst = append(dst, Depth{Owner: index.Owner(o)})
	}
	return dst
}

// settle gives the owners still in the match their depth.
func settle(rows []Depth, live, depth int) {
	for j := range live {
		rows[j].Blocks = uint32(depth)
	}
}
