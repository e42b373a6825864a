package index

// Run is a stretch of consecutive blocks held by exactly the same owners.
type Run struct {
	// Owners ascend and are not empty. They are plain numbers so that the list can
	// be handed on; it is shared and immutable: read it, keep it, never write it.
	Owners []uint32
	Blocks int
}

// Match is what an index holds of a chain. Reusing one saves its buffer.
type Match struct {
	// Runs begin at block 0, follow each other without a gap and end before the
	// first block nobody holds. Neighbours have different owners.
	Runs []Run
	// Blocks is the sum over Runs.
	Blocks int
}

// Chain is a prompt's keys, possibly computed when asked for. *hash.Chain is one.
type Chain interface {
	Len() int
	// At returns the key of block i, 0 <= i < Len().
	At(i int) uint64
}

// Match looks a chain of keys up. It does not allocate once m.Runs is long enough.
func (x *Index) Match(chain []uint64, m *Match) {
	m.reset()
	last := uint32(0)
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, key := range chain {
		slot := x.blocks.ref(key)
		if slot == nil {
			return
		}
		last = m.extend(x, last, *slot)
	}
}

// MatchLazy looks a chain up and asks it for no key behind the first block nobody
// holds.
func (x *Index) MatchLazy(c Chain, m *Match) {
	m.reset()
	last := uint32(0)
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := range c.Len() {
		slot := x.blocks.ref(c.At(i))
		if slot == nil {
			return
		}
		last = m.extend(x, last, *slot)
	}
}

func (m *Match) reset() {
	clear(m.Runs) // let go of lists of the previous match
	m.Runs, m.Blocks = m.Runs[:0], 0
}

// extend adds one block with the set id; last is the id of the block before.
func (m *Match) extend(x *Index, last, id uint32) uint32 {
	if id != last {
		m.Runs = append(m.Runs, Run{Owners: x.sets.members(id)})
	}
	m.Runs[len(m.Runs)-1].Blocks++
	m.Blocks++
	return id
}
