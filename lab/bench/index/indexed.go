package index

import (
	"slices"

	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// indexed is the index as the conductor uses it: a source for each worker and pool, an
// owner for each of its tiers.
type indexed struct {
	x      *index.Index
	s      *Stream
	tokens bool // events carry local hashes, and names are the engines' own
	copies index.CopyPolicy
	stores []index.Store // by source, for the event at hand: one escapes to the heap, and engines send many
}

// newIndexed returns an empty index for a stream whose names are in place.
func newIndexed(s *Stream, events string) *indexed {
	x := &indexed{x: index.New(index.Options{Scheme: hash.DefaultScheme()}), s: s, tokens: events != Canonical, copies: index.CopySet}
	if s.counted {
		x.copies = index.CopyCount
	}
	x.stores = make([]index.Store, s.owners/s.tiers)
	for range x.stores {
		src := x.x.NewSource()
		for range s.tiers {
			x.x.NewOwner(src)
		}
	}
	return x
}

// applyOp applies a store or a removal.
func (x *indexed) applyOp(o *op) {
	if o.kind == remove {
		x.x.Remove(index.Owner(o.owner), x.s.gone[o.from:o.to], nil, x.copies)
		return
	}
	e := &x.stores[int(o.owner)/x.s.tiers]
	*e = index.Store{Owner: index.Owner(o.owner), Parent: o.parent, HasParent: o.hasParent, Rootless: o.bare, Engine: x.s.namesOf(o),
		Copies: x.copies}
	if x.tokens && !o.bare {
		e.Local = x.s.local[o.from:o.to]
	}
	x.x.Store(e)
}

// readHashes brings the hashes of a query into the caches, where a server that has just made them from tokens
// has them. The rival's replay does so too.
func (x *indexed) readHashes(o *op, r *reader) {
	list := x.s.seq
	if x.tokens {
		list = x.s.local
	}
	for _, h := range list[o.from:o.to] {
		r.sum += h
	}
}

// askQuery returns, in no particular order, how many leading blocks of a query each owner of the
// first one holds. The list is valid until the next use of r.
func (x *indexed) askQuery(o *op, r *reader) []index.Prefix {
	if x.tokens {
		r.chain.Reset(x.s.local[o.from:o.to])
		x.x.Match(index.Lookup{Chain: &r.chain}, nil, &r.match)
	} else {
		r.seq = x.s.seq[o.from:o.to]
		x.x.Match(index.Lookup{Chain: &r.seq}, nil, &r.match)
	}
	return r.match.Prefixes
}

// reader is the buffers of a query, which starts from local hashes as the server's does.
type reader struct {
	chain localChain
	seq   seqChain
	match index.Match
	sum   uint64 // see readHashes
}

// seqChain is a prompt given by its canonical sequence hashes.
type seqChain []uint64

func (c *seqChain) Len() int        { return len(*c) }
func (c *seqChain) At(i int) uint64 { return (*c)[i] }

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
			l = hash.DefaultScheme().Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}

// hashOf returns the hash of an answer's rows, which it sorts. The rival's answers have
// the same hash where they are equal.
func hashOf(rows []index.Prefix) uint64 {
	slices.SortFunc(rows, func(a, b index.Prefix) int { return int(a.Owner) - int(b.Owner) })
	sum := uint64(14695981039346656037)
	put := func(v uint64) { sum = (sum ^ v) * 1099511628211 }
	put(uint64(len(rows)))
	for _, r := range rows {
		put(uint64(r.Owner)<<32 | uint64(r.Blocks))
	}
	return sum
}
