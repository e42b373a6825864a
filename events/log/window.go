package log

import (
	"strconv"
	"unsafe"

	"kvconductor/events"
)

// entry is one batch that a stream has handed out.
type entry struct {
	seq, print uint64
	id         events.PublisherID // zero: none
	aside      bool               // of another topic than the source's
	payload    []byte             // nil: only its fingerprint is known
}

// window is what a stream handed out last, in one epoch.
//
//	... kept, kept, kept | pending, pending, pending
//	                     sent
//
// Kept entries are in the log, or do not belong there. With them a replica that takes a lease
// finds where the log ends, and a log that was lost begins again before the watermarks of
// followers.
type window struct {
	items   []entry
	sent    int // items[:sent] are kept
	kept    int // bytes of them
	pending int // bytes of the others
}

// bytes is the memory of the window.
func (w *window) bytes() int { return w.kept + w.pending + cap(w.items)*int(unsafe.Sizeof(entry{})) }

// add appends an entry. It reports false if its sequence is not beyond the others.
func (w *window) add(e entry) bool {
	if n := len(w.items); n > 0 && e.seq <= w.items[n-1].seq {
		return false
	}
	w.items = append(w.items, e)
	w.pending += len(e.payload)
	return true
}

// ack counts the entries up to a sequence as sent.
func (w *window) ack(seq uint64) {
	for w.sent < len(w.items) && w.items[w.sent].seq <= seq {
		n := len(w.items[w.sent].payload)
		w.kept, w.pending = w.kept+n, w.pending-n
		w.sent++
	}
}

// trim forgets kept entries beyond a size, but not the newest one.
func (w *window) trim(size int) {
	for w.sent > 1 && w.kept > size {
		w.shift()
	}
}

// shift forgets the oldest entry.
func (w *window) shift() {
	n := len(w.items[0].payload)
	if w.sent > 0 {
		w.sent--
		w.kept -= n
	} else {
		w.pending -= n
	}
	w.items[0] = entry{}
	w.items = w.items[1:]
}

// rewind makes the entries from index i on pending.
func (w *window) rewind(i int) {
	w.sent, w.kept, w.pending = i, 0, 0
	for j := range w.items {
		if n := len(w.items[j].payload); j < i {
			w.kept += n
		} else {
			w.pending += n
		}
	}
	for w.sent < len(w.items) && w.items[w.sent].payload == nil {
		w.sent++ // only its fingerprint is known
	}
}

// find returns the index of the entry at which a log ends, -1 if there is none.
func (w *window) find(at position) int {
	seq, err := strconv.ParseUint(at.last, 10, 64)
	if err != nil {
		return -1
	}
	for i := len(w.items) - 1; i >= 0 && w.items[i].seq >= seq; i-- {
		if e := &w.items[i]; e.seq == seq {
			if strconv.FormatUint(e.print, 10) != at.print {
				return -1
			}
			return i
		}
	}
	return -1
}
