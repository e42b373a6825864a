package wire

import (
	"sync"

	"example.com/conductor/events"
)

// memory is what the lists of one batch are cut from. A batch that was released
// leaves it, still warm in the caches, to the next one on that processor.
type memory struct {
	lent   bool
	events []events.Event // zero but for those lent
	dirty  int            // of events
	hashes []uint64
	tokens []uint32
	item   []byte // one in canonical form, at most twice maxItem

	usedHashes, usedTokens int // by the batch that has it
}

var memories = sync.Pool{New: func() any { return new(memory) }}

// What a batch may leave behind, in elements. It fits a burst of prompts; what
// one huge batch needed is given back.
const (
	keptEvents = 1 << 10
	keptHashes = 1 << 14
	keptTokens = 1 << 17
)

// ReleaseBatch lets later calls of Decode use the memory of a batch's events, which is
// empty from then on. Nothing may refer to the events, their hashes or their
// tokens any more; names may be kept. A batch need not be released.
func ReleaseBatch(b *events.Batch) {
	if m, ok := b.Memory.(*memory); ok && m.lent {
		m.resetForReuse()
		memories.Put(m)
	}
	*b = events.Batch{Rank: -1}
}

// resetForReuse forgets what the last batch put in, and makes room for another like it.
func (m *memory) resetForReuse() {
	clear(m.events[:m.dirty])
	m.hashes = chunkAfter(m.hashes, m.usedHashes, keptHashes)
	m.tokens = chunkAfter(m.tokens, m.usedTokens, keptTokens)
	m.dirty, m.usedHashes, m.usedTokens, m.lent = 0, 0, 0, false
}

// chunkAfter returns the chunk that later batches begin with, after one that used that
// many elements, of this chunk and others.
func chunkAfter[T any](chunk []T, used, most int) []T {
	switch {
	case used > len(chunk) && used <= most:
		return make([]T, used)
	case len(chunk) > most:
		return nil
	}
	return chunk
}

// takeEvents returns n events that are zero. Those used later are marked in dirty.
func (m *memory) takeEvents(n int) []events.Event {
	if n <= len(m.events) {
		m.dirty = n
		return m.events[:n:n]
	}
	list := make([]events.Event, n)
	if n <= keptEvents {
		m.events, m.dirty = list, n
	}
	return list
}

// slab hands out slices cut from shared chunks, so that a batch of many small
// events does not allocate for each.
type slab[T any] struct {
	free  []T
	taken []T // the memory from the elements on that were taken last
	count int // of them
	chunk []T // the longest so far
	used  int
}

// slabChunk bounds what a chunk reserves ahead, in elements: 16 KiB of tokens.
const slabChunk = 4096

// takeElements returns n elements of any value. A new chunk has room for the siblings to
// come if they are alike, but never more elements than there are bytes left to
// fill them.
func (s *slab[T]) takeElements(n, siblings, rest int) []T {
	if n > len(s.free) {
		s.startChunk(max(n, min(n*(siblings+1), slabChunk, rest)))
	}
	s.taken, s.count = s.free, n
	s.used += n
	s.free = s.free[n:]
	return s.taken[:n:n]
}

// appendElement appends an element to those that were taken last, and returns them. A new chunk has room for as
// many more.
func (s *slab[T]) appendElement(v T, more int) []T {
	if len(s.free) == 0 {
		old := s.taken[:s.count]
		s.startChunk(s.count + 1 + more)
		copy(s.free, old)
		s.used += s.count
		s.taken, s.free = s.free, s.free[s.count:]
	}
	s.taken[s.count] = v
	s.count++
	s.used++
	s.free = s.free[1:]
	return s.taken[:s.count:s.count]
}

// startChunk begins a chunk of n elements.
func (s *slab[T]) startChunk(n int) {
	s.free = make([]T, n)
	if n > len(s.chunk) {
		s.chunk = s.free
	}
}
