package index

import "kvconductor/index"

// Oracle answers by definition: for each owner a plain set of the blocks it holds,
// by canonical hash, with the number of copies. It is slow, and obviously right.
type Oracle struct {
	held []map[uint64]int
}

// NewOracle knows owners 0 to owners-1, which hold nothing.
func NewOracle(owners int) *Oracle {
	o := &Oracle{held: make([]map[uint64]int, owners)}
	for i := range o.held {
		o.held[i] = map[uint64]int{}
	}
	return o
}

// Store adds blocks. If one, a repeated store adds no copy.
func (o *Oracle) Store(owner uint32, seq []uint64, one bool) {
	for _, k := range seq {
		if !one || o.held[owner][k] == 0 {
			o.held[owner][k]++
		}
	}
}

// Remove takes a copy of each block that is held.
func (o *Oracle) Remove(owner uint32, seq []uint64) {
	for _, k := range seq {
		switch n := o.held[owner][k]; n {
		case 0:
		case 1:
			delete(o.held[owner], k)
		default:
			o.held[owner][k] = n - 1
		}
	}
}

// change applies a store or a removal of a stream in canonical hashes.
func (o *Oracle) change(s *Stream, at *op) {
	switch at.kind {
	case store:
		o.Store(at.owner, s.seq[at.from:at.to], !s.counted)
	case remove:
		o.Remove(at.owner, s.gone[at.from:at.to])
	}
}

// Depth returns how many leading blocks of a chain an owner holds.
func (o *Oracle) Depth(owner uint32, seq []uint64) int {
	for i, k := range seq {
		if o.held[owner][k] == 0 {
			return i
		}
	}
	return len(seq)
}

// Depths appends the rows of all owners that hold the first block, ascending.
func (o *Oracle) Depths(seq []uint64, dst []index.Prefix) []index.Prefix {
	for owner := range o.held {
		if d := o.Depth(uint32(owner), seq); d > 0 {
			dst = append(dst, index.Prefix{Owner: uint32(owner), Blocks: uint32(d)})
		}
	}
	return dst
}

// Memberships counts pairs of owner and block.
func (o *Oracle) Memberships() (n int) {
	for _, h := range o.held {
		n += len(h)
	}
	return n
}

// Unique counts blocks with an owner.
func (o *Oracle) Unique() int {
	all := map[uint64]struct{}{}
	for _, h := range o.held {
		for k := range h {
			all[k] = struct{}{}
		}
	}
	return len(all)
}
