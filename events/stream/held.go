package stream

import (
	"slices"
	"sort"
	"time"

	"example.com/conductor/events"
)

// item is one batch that is not decoded yet.
type item struct {
	message
	at       time.Time // of arrival
	replayed bool      // came from a replay
}

// same reports whether two batches of one sequence are the same: by their publisher
// ids where both have one, else by their bytes.
func (it *item) same(other *item) bool {
	if it.id != (events.PublisherID{}) && other.id != (events.PublisherID{}) {
		return it.id == other.id
	}
	return string(it.payload) == string(other.payload)
}

// held is the batches that wait for their turn, in ascending sequence without
// repetition. In the common case it holds one; during a replay, everything that
// came live meanwhile. Adding at the end, taking from the front and putting what
// was missing in its place there are O(1).
type held struct {
	items []item // items[:off] are taken
	off   int
	bytes int
}

func (h *held) len() int { return len(h.items) - h.off }

// head returns the lowest batch; it is valid until the next change.
func (h *held) head() *item { return &h.items[h.off] }

// startsBehind reports whether something is held, and a batch before it, from a sequence on, is missing.
func (h *held) startsBehind(next uint64) bool { return h.len() > 0 && h.head().seq > next }

// restore replaces what is held with kept batches, those from a sequence on.
func (h *held) restore(kept []item, from uint64) {
	h.clear()
	for _, it := range kept {
		if it.seq < from {
			it.block.Release()
			continue
		}
		h.add(it)
	}
}

// find returns the batch with a sequence, or nil.
func (h *held) find(seq uint64) *item {
	if i := h.search(seq); i < len(h.items) && h.items[i].seq == seq {
		return &h.items[i]
	}
	return nil
}

// add inserts a batch whose sequence is not held yet.
func (h *held) add(it item) {
	h.bytes += len(it.payload)
	if n := len(h.items); n == h.off || h.items[n-1].seq < it.seq {
		if n == cap(h.items) && h.off > 0 {
			h.compact()
		}
		h.items = append(h.items, it)
		return
	}
	if h.off > 0 && it.seq < h.items[h.off].seq {
		h.off--
		h.items[h.off] = it
		return
	}
	h.items = slices.Insert(h.items, h.search(it.seq), it)
}

// pop takes the lowest batch.
func (h *held) pop() item {
	it := h.items[h.off]
	h.items[h.off] = item{} // lets the payload go
	h.bytes -= len(it.payload)
	if h.off++; h.off == len(h.items) {
		h.items, h.off = emptied(h.items), 0
	}
	return it
}

// emptied returns s without elements. Space of a burst is given back, that of
// everyday use is kept.
func emptied[T any](s []T) []T {
	if cap(s) > 256 {
		return nil
	}
	return s[:0]
}

// last returns the highest sequence held.
func (h *held) last() uint64 { return h.items[len(h.items)-1].seq }

func (h *held) clear() { *h = held{} }

func (h *held) search(seq uint64) int {
	return h.off + sort.Search(h.len(), func(i int) bool { return h.items[h.off+i].seq >= seq })
}

// compact moves the items to the front if that frees at least half the space,
// so that appending stays O(1) and a long queue does not creep through memory.
func (h *held) compact() {
	if h.off < len(h.items)/2 {
		return
	}
	n := copy(h.items, h.items[h.off:])
	clear(h.items[n:])
	h.items, h.off = h.items[:n], 0
}
