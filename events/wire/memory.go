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

// Release lets later calls of Decode use the memory of a batch's events, which is
// empty from then on. Nothing may refer to the events, their hashes or their
// tokens any more; names may be kept. A batch need not be released.
func Release(b *events.Batch) {
	if m, ok := b.Memory.(*memory); ok && m.lent {
		m.recycle()
		memories.Put(m)
	}
	*b = events.Batch{Rank: -1}
}

// recycle forgets what the last batch put in, and makes room for another like it.
func (m *memory) recycle() {
	clear(m.events[:m.dirty])
	m.hashes = fit(m.hashes, m.usedHashes, keptHashes)
	m.tokens = fit(m.tokens, m.usedTokens, keptTokens)
	m.dirty, m.usedHashes, m.usedTokens, m.lent = 0, 0, 0, false
}

// fit returns the chunk that later batches begin with, after one that used that
// many elements, of this chunk and others.
func fit[T any](chunk []T, used, most int) []T {
	switch {
	case used > len(chunk) && used <= most:
		return make([]T, used)
	case len(chunk) > most:
		return nil
	}
	return chunk
}

// list returns n events that are zero, and marks them used.
func (m *memory) list(n int) []events.Event {
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
	chunk []T // the longest so far
	used  int
}

// slabChunk bounds what a chunk reserves ahead, in elements: 16 KiB of tokens.
const slabChunk = 4096

// take returns n elements of any value. A new chunk has room for the siblings to
// come if they are alike, but never more elements than there are bytes left to
// fill them.
func (s *slab[T]) take(n, siblings, rest int) []T {
	if n > len(s.free) {
		s.free = make([]T, max(n, min(n*(siblings+1), slabChunk, rest)))
		if len(s.free) > len(s.chunk) {
			s.chunk = s.free
		}
	}
	s.used += n
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}
