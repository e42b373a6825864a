package index

import "sync/atomic"

// Options.MaxBytes bounds what pieces, tables and owner sets of an index take, and
// Options.Budget what those of several indexes take together.
//
// A store for which there is no room refuses blocks that are new: of a chain it is the
// tail that is missing, and what was held before stays. Refused keys are counted, and
// remembered inexactly, so that an answer that ends before one says so.

// Budget bounds the memory of several indexes together. Memory of an index counts until
// the index is collected, as long as the system counts it. Safe for concurrent use.
type Budget struct {
	most int64
	used atomic.Int64 // sum of the shares
}

// bounds are the bounds of an index's memory, and what leaves it where they are reached.
type bounds struct {
	tree     *tree
	names    *nameMap
	maxBytes int          // Options.MaxBytes
	share    *budgetShare // of Options.Budget, nil for none
	refused  atomic.Pointer[filter]
}

// NewBudget returns a budget of most bytes, nil for 0, which is no bound.
func NewBudget(most int64) *Budget {
	if most <= 0 {
		return nil
	}
	return &Budget{most: most}
}

// Used returns the bytes in use and the bound, 0 and 0 of a nil Budget.
func (b *Budget) Used() (used, most int64) {
	if b == nil {
		return 0, 0
	}
	return b.used.Load(), b.most
}

// Full reports whether there is no room. A nil Budget has room.
func (b *Budget) Full() bool {
	used, most := b.Used()
	return b != nil && used >= most
}

// Charge counts bytes that are no part of an index, or gives back as many if n is below 0.
func (b *Budget) Charge(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

// budgetShare is the part of a budget that an index takes.
type budgetShare struct {
	of    *Budget
	bytes atomic.Int64
}

// setBytes says what the index takes, and returns the free part of the budget, below 0 for
// none.
func (s *budgetShare) setBytes(bytes int) float64 {
	used := s.of.used.Add(int64(bytes) - s.bytes.Swap(int64(bytes)))
	return 1 - float64(used)/float64(s.of.most)
}

// accountMemory tells the budget what the index takes.
func (b *bounds) accountMemory() {
	if b.share != nil {
		b.share.setBytes(b.tableBytes())
	}
}

// isOverBudget reports whether there is no room for a new block.
//
// Before it says no it takes the time to sweep: blocks of retired owners are memory that
// nobody would miss.
//
// Refused keys are forgotten once a sixteenth is free, not at the first free byte. Else an
// index at its bound would forget them with each removal, while the blocks that it refused
// a moment ago are still missing.
func (b *bounds) isOverBudget() bool {
	if b.maxBytes <= 0 && b.share == nil {
		return false
	}
	spare := b.freeShare()
	if spare <= 0 && b.names.sweep.left > 0 {
		b.compactAll()
		spare = b.freeShare()
	}
	if spare > 1.0/16 && b.refused.Load() != nil {
		b.refused.Store(nil)
	}
	return spare <= 0
}

// freeShare returns which part of the bounds is free, of the one with less room.
func (b *bounds) freeShare() float64 {
	n, spare := b.tableBytes(), 1.0
	if b.maxBytes > 0 {
		spare = 1 - float64(n)/float64(b.maxBytes)
	}
	if b.share != nil {
		spare = min(spare, b.share.setBytes(n))
	}
	return spare
}

// tableBytes returns the memory that the bounds are about: what grows with blocks and
// names. Lines that are free do not count, as the next block takes one of them. It is a sum
// of a few counters, cheap enough to be asked for each new piece.
func (b *bounds) tableBytes() int {
	return int(b.tree.lines.live.Load())*lineBytes +
		int(b.tree.firsts.size.Load()+b.tree.heads.size.Load()+b.names.table.size.Load()+b.tree.loose.size.Load()) +
		b.tree.sets.bytes() + privateBytes*int(b.names.privates.n.Load())
}

// filter remembers refused keys: lostProbes bits a key, so that of 20,000 keys it takes 0.5
// % of others for one.
type filter [1 << 12]uint64

// refuseKey remembers a key whose block there was no room for. The filter is made with the
// first one, as most indexes never refuse any. Lanes may do so at one moment, so the first
// filter wins.
func (b *bounds) refuseKey(key uint64) {
	f := b.refused.Load()
	if f == nil {
		f = new(filter)
		if !b.refused.CompareAndSwap(nil, f) {
			f = b.refused.Load()
		}
	}
	if f != nil {
		setBits(f[:], key)
	}
}

// wasRefused reports whether a key was refused since there was room last, or looks
// like one that was.
func (b *bounds) wasRefused(key uint64) bool {
	f := b.refused.Load()
	return f != nil && hasBits(f[:], normal(key))
}
