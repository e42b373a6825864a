package index

import "math/rand/v2"

// Cases are the hard cases: each makes every event one of a single block.
//
//	split1: as it is
//	zip1:   the blocks of the halves of a removal in turn, as if two chains were evicted
//	shuf1:  the blocks of a removal in random order
//	holes1: every second block of a removal first
//	roots:  every block a chain of its own
var Cases = []string{"split1", "zip1", "shuf1", "holes1", "roots"}

// makeCase makes one of Cases of a stream in canonical hashes.
func (s *Stream) makeCase(which string) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range s.ops {
		o := &s.ops[i]
		switch o.kind {
		case query:
			if which == "roots" {
				o.to = min(o.to, o.from+1)
			}
		case remove:
			reorderRemoval(which, s.gone[o.from:o.to], r)
		}
	}
	s.splitEvents(1)
	if which == "roots" {
		copy(s.local, s.seq) // the key of a first block is its local hash
		for i := range s.ops {
			s.ops[i].hasParent, s.ops[i].parent = false, 0
		}
	}
}

// reorderRemoval brings the blocks of a removal into the order of a case.
func reorderRemoval(which string, gone []uint64, r *rand.Rand) {
	was := append([]uint64(nil), gone...)
	n := len(was)
	switch which {
	case "shuf1":
		r.Shuffle(n, func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
	case "zip1":
		half := (n + 1) / 2
		for i := range n {
			gone[i] = was[i/2+i%2*half]
		}
	case "holes1":
		even := (n + 1) / 2
		for i := range even {
			gone[i] = was[2*i]
		}
		for i := range n - even {
			gone[even+i] = was[2*i+1]
		}
	}
}

// splitEvents makes events of at most n blocks.
func (s *Stream) splitEvents(n int) {
	s.rewriteOps(func(out []op, o op) []op {
		if o.kind == query {
			return append(out, o)
		}
		for from := o.from; from < o.to; from += uint32(n) {
			part := o
			part.from, part.to, part.name = from, min(from+uint32(n), o.to), from
			if o.kind == store && from > o.from && !o.bare {
				part.hasParent, part.parent = true, s.seq[from-1]
			}
			out = append(out, part)
		}
		return out
	})
}

// repeatStores announces a percentage of all stores twice, and takes both copies of a block away
// when its owner removes it.
func (s *Stream) repeatStores(percent int, seed uint64) {
	type copied struct {
		owner uint32
		block uint64
	}
	s.counted = true
	r := rand.New(rand.NewPCG(seed, 3))
	copies := map[copied]bool{}
	s.rewriteOps(func(out []op, o op) []op {
		out = append(out, o)
		switch {
		case o.kind == store && r.IntN(100) < percent:
			out = append(out, o)
			for _, k := range s.seq[o.from:o.to] {
				copies[copied{o.owner, k}] = true
			}
		case o.kind == remove:
			again := o
			again.from = uint32(len(s.gone))
			for _, k := range s.gone[o.from:o.to] {
				if c := (copied{o.owner, k}); copies[c] {
					delete(copies, c)
					s.gone = append(s.gone, k)
				}
			}
			if again.to = uint32(len(s.gone)); again.to > again.from {
				out = append(out, again)
			}
		}
		return out
	})
}

// rewriteOps replaces each operation by those that f appends.
func (s *Stream) rewriteOps(f func(out []op, o op) []op) {
	out := make([]op, 0, len(s.ops))
	load := 0
	for i, o := range s.ops {
		out = f(out, o)
		if i < s.load {
			load = len(out)
		}
	}
	s.ops, s.load = out, load
}
