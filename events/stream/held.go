package stream

import (
	"slices"
	"sort"
	"time"

	"example.com/conductor/events"
)

// queuedBatch is one batch that is not decoded yet.
type queuedBatch struct {
	message
	at       time.Time // of arrival
	replayed bool      // came from a replay
}

// isSameBatch reports whether two batches of one sequence are the same: by their publisher
// ids where both have one, else by their bytes.
func (it *queuedBatch) isSameBatch(other *queuedBatch) bool {
	if it.id != (events.PublisherID{}) && other.id != (events.PublisherID{}) {
		return it.id == other.id
	}
	return string(it.payload) == string(other.payload)
}

// heldBatches is the batches that wait for their turn, in ascending sequence without
// repetition. In the common case it holds one; during a replay, everything that
// came live meanwhile. Adding at the end, taking from the front and putting what
// was missing in its place there are O(1).
type heldBatches struct {
	items []queuedBatch // items[:off] are taken
	off   int
	bytes int
}

func (h *heldBatches) count() int { return len(h.items) - h.off }

// firstBatch returns the lowest batch; it is valid until the next change.
func (h *heldBatches) firstBatch() *queuedBatch { return &h.items[h.off] }

// startsBehind reports whether something is held, and a batch before it, from a sequence on, is missing.
func (h *heldBatches) startsBehind(next uint64) bool {
	return h.count() > 0 && h.firstBatch().seq > next
}

// restoreKept replaces what is held with kept batches, those from a sequence on. The others
// are part of the snapshot behind which the kept ones go, and give back the reference that
// was taken for them.
func (h *heldBatches) restoreKept(kept []queuedBatch, from uint64) {
	h.dropAll()
	for _, it := range kept {
		if it.seq < from {
			it.block.Release()
			continue
		}
		h.addBatch(it)
	}
}

// findBatch returns the batch with a sequence, or nil.
func (h *heldBatches) findBatch(seq uint64) *queuedBatch {
	if i := h.searchIndex(seq); i < len(h.items) && h.items[i].seq == seq {
		return &h.items[i]
	}
	return nil
}

// addBatch inserts a batch whose sequence is not held yet. Live batches come in ascending
// order and replies are put in front of them, also in ascending order, so nearly all go to one
// of the two ends without a search.
func (h *heldBatches) addBatch(it queuedBatch) {
	h.bytes += len(it.payload)
	if n := len(h.items); n == h.off || h.items[n-1].seq < it.seq {
		if n == cap(h.items) && h.off > 0 {
			h.compactItems()
		}
		h.items = append(h.items, it)
		return
	}
	if h.off > 0 && it.seq < h.items[h.off].seq {
		h.off--
		h.items[h.off] = it
		return
	}
	h.items = slices.Insert(h.items, h.searchIndex(it.seq), it)
}

// popFirst takes the lowest batch. Its place is cleared, because the list would else keep the
// payload of a batch that was applied long ago.
func (h *heldBatches) popFirst() queuedBatch {
	it := h.items[h.off]
	h.items[h.off] = queuedBatch{} // lets the payload go
	h.bytes -= len(it.payload)
	if h.off++; h.off == len(h.items) {
		h.items, h.off = emptySlice(h.items), 0
	}
	return it
}

// emptySlice returns s without elements. Space of a burst is given back, that of
// everyday use is kept.
func emptySlice[T any](s []T) []T {
	if cap(s) > 256 {
		return nil
	}
	return s[:0]
}

// lastSequence returns the highest sequence held, 0 if nothing is.
func (h *heldBatches) lastSequence() uint64 {
	if h.count() == 0 {
		return 0
	}
	return h.items[len(h.items)-1].seq
}

// keepLiveOnly drops the batches that came from a replay.
func (h *heldBatches) keepLiveOnly() {
	all := h.items[h.off:]
	h.dropAll()
	for _, it := range all {
		if !it.replayed {
			h.addBatch(it)
		}
	}
}

func (h *heldBatches) dropAll() { *h = heldBatches{} }

func (h *heldBatches) searchIndex(seq uint64) int {
	return h.off + sort.Search(h.count(), func(i int) bool { return h.items[h.off+i].seq >= seq })
}

// compactItems moves the items to the front if that frees at least half the space. With
// less, a list that is full most of the time would be moved for each batch; so appending
// stays O(1), and a long queue does not creep through memory.
func (h *heldBatches) compactItems() {
	if h.off < len(h.items)/2 {
		return
	}
	n := copy(h.items, h.items[h.off:])
	clear(h.items[n:])
	h.items, h.off = h.items[:n], 0
}
