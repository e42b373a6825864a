package index

import "sync/atomic"

// Options.MaxBytes bounds what pieces, tables and owner sets take.
//
// A store for which there is no room refuses blocks that are new: of a chain it is the
// tail that is missing, and what was held before stays. Refused keys are counted, and
// remembered inexactly, so that an answer that ends before one says so.

// overBudget reports whether there is no room for a new block.
func (x *Index) overBudget() bool {
	if x.maxBytes <= 0 {
		return false
	}
	n := x.tableBytes()
	if n < x.maxBytes {
		if n < x.maxBytes-x.maxBytes/16 && x.refused.Load() != nil {
			x.refused.Store(nil)
		}
		return false
	}
	if x.sweep.left > 0 {
		x.compact()
		return x.tableBytes() >= x.maxBytes
	}
	return true
}

// tableBytes returns the memory that the budget is about.
func (x *Index) tableBytes() int {
	return int(x.lines.live.Load())*lineBytes + int(x.heads.size.Load()+x.names.size.Load()+x.loose.size.Load()) + x.sets.bytes()
}

// filter remembers refused keys: two bits a key.
type filter [1 << 12]uint64

func bitsOf(key uint64) [2]uint64 {
	const mask = 1<<18 - 1
	m := mix(key)
	return [2]uint64{m & mask, m >> 32 & mask}
}

func (x *Index) refuse(key uint64) {
	f := x.refused.Load()
	if f == nil {
		f = new(filter)
		if !x.refused.CompareAndSwap(nil, f) {
			f = x.refused.Load()
		}
	}
	if f == nil {
		return
	}
	for _, b := range bitsOf(key) {
		atomic.OrUint64(&f[b>>6], 1<<(b&63))
	}
}

// wasRefused reports whether a key was refused since there was room last, or looks
// like one that was.
func (x *Index) wasRefused(key uint64) bool {
	f := x.refused.Load()
	if f == nil {
		return false
	}
	for _, b := range bitsOf(normal(key)) {
		if atomic.LoadUint64(&f[b>>6])>>(b&63)&1 == 0 {
			return false
		}
	}
	return true
}
