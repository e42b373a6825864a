package index

import "example.com/conductor/index"

// Oracle answers by definition: for each owner a plain set of the blocks it holds,
// by canonical hash, with the number of copies. It is slow, and obviously right.
type Oracle []map[uint64]int

// newOracle returns owners 0 to owners-1, which hold nothing.
func newOracle(owners int) Oracle {
	o := make(Oracle, owners)
	for i := range o {
		o[i] = map[uint64]int{}
	}
	return o
}

// applyOp applies a store or a removal of a stream in canonical hashes. A store adds a copy
// of each block, but no second one if the stream counts none. A removal takes a copy.
func (o Oracle) applyOp(s *Stream, at *op) {
	held := o[at.owner]
	switch at.kind {
	case store:
		for _, k := range s.seq[at.from:at.to] {
			if s.counted || held[k] == 0 {
				held[k]++
			}
		}
	case remove:
		for _, k := range s.gone[at.from:at.to] {
			if held[k]--; held[k] <= 0 {
				delete(held, k)
			}
		}
	}
}

// Depths appends, ascending, how many leading blocks of a chain each owner of the first
// one holds.
func (o Oracle) Depths(seq []uint64, dst []index.Prefix) []index.Prefix {
	for owner, held := range o {
		n := 0
		for n < len(seq) && held[seq[n]] > 0 {
			n++
		}
		if n > 0 {
			dst = append(dst, index.Prefix{Owner: uint32(owner), Blocks: uint32(n)})
		}
	}
	return dst
}

// CountMemberships counts pairs of owner and block.
func (o Oracle) CountMemberships() (n int) {
	for _, held := range o {
		n += len(held)
	}
	return n
}

// CountBlocks counts blocks with an owner.
func (o Oracle) CountBlocks() int {
	all := map[uint64]struct{}{}
	for _, held := range o {
		for k := range held {
			all[k] = struct{}{}
		}
	}
	return len(all)
}
