package bench

import (
	"slices"

	"kvconductor/index"
	"kvconductor/index/hash"
)

// Depth is how many leading blocks of a chain an owner holds, at least one.
type Depth struct {
	Owner  index.Owner
	Blocks uint32
}

// indexed is the index as the conductor uses it: a source for each worker and pool, an
// owner for each of its tiers.
type indexed struct {
	x      *index.Index
	s      *Stream
	tokens bool // events carry local hashes, and names are the engines' own
	copies index.CopyPolicy
}

// newIndexed returns an empty index for a stream whose names are in place.
func newIndexed(s *Stream, events string) *indexed {
	x := &indexed{x: index.New(index.Options{Scheme: hash.Default()}), s: s, tokens: events != Canonical, copies: index.CopySet}
	if s.counted {
		x.copies = index.CopyCount
	}
	for range s.owners / s.tiers {
		src := x.x.NewSource()
		for range s.tiers {
			x.x.NewOwner(src)
		}
	}
	return x
}

// change applies a store or a removal.
func (x *indexed) change(o *op) {
	if o.kind == remove {
		x.x.Remove(index.Owner(o.owner), x.s.gone[o.from:o.to], nil, x.copies)
		return
	}
	e := index.Store{Owner: index.Owner(o.owner), Parent: o.parent, HasParent: o.hasParent, Rootless: o.bare, Engine: x.s.namesOf(o), Copies: x.copies}
	if x.tokens && !o.bare {
		e.Local = x.s.local[o.from:o.to]
	}
	x.x.Store(&e)
}

// ask returns, in no particular order, one row for each owner that holds the first block
// of a query. The rows are valid until the next use of r.
func (x *indexed) ask(o *op, r *reader) []Depth {
	if x.tokens {
		r.chain.Reset(x.s.local[o.from:o.to])
		x.x.MatchLazy(&r.chain, &r.match)
	} else {
		x.x.Match(x.s.seq[o.from:o.to], &r.match)
	}
	return r.depths()
}

// reader is the buffers of a query, which starts from local hashes as the server's does.
type reader struct {
	chain localChain
	match index.Match
	rows  []Depth
	at    []uint32 // by owner: its row, plus one, while it holds all blocks
}

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

// depths returns how far each owner of the first block goes.
func (r *reader) depths() []Depth {
	r.rows = r.rows[:0]
	depth := uint32(0)
	for i, run := range r.match.Runs {
		if i == 0 {
			for _, o := range run.Came {
				for int(o) >= len(r.at) {
					r.at = append(r.at, 0)
				}
				r.rows = append(r.rows, Depth{Owner: index.Owner(o)})
				r.at[o] = uint32(len(r.rows))
			}
		}
		for _, o := range run.Gone {
			if int(o) < len(r.at) && r.at[o] > 0 {
				r.rows[r.at[o]-1].Blocks = depth
				r.at[o] = 0
			}
		}
		depth += uint32(run.Blocks)
	}
	for i := range r.rows {
		if o := r.rows[i].Owner; r.at[o] > 0 {
			r.rows[i].Blocks = depth
			r.at[o] = 0
		}
	}
	return r.rows
}

// hashOf returns the hash of an answer's rows, which it sorts. The rival's answers have
// the same hash where they are equal.
func hashOf(rows []Depth) uint64 {
	slices.SortFunc(rows, func(a, b Depth) int { return int(a.Owner) - int(b.Owner) })
	sum := uint64(14695981039346656037)
	put := func(v uint64) { sum = (sum ^ v) * 1099511628211 }
	put(uint64(len(rows)))
	for _, r := range rows {
		put(uint64(r.Owner)<<32 | uint64(r.Blocks))
	}
	return sum
}
