package bench

import (
	"fmt"

	"kvconductor/index"
	"kvconductor/index/hash"
)

// Depth is how many leading blocks of a chain an owner holds, at least one.
type Depth = index.Depth

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

func (x *indexed) Depths(seq, _ []uint64, dst []Depth) []Depth { return x.x.Depths(seq, dst) }

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
