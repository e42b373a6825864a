package tape

import (
	"slices"
	"sync"
)

const (
	// memoryParts is how many parts a full memory has at least. To make room, the whole oldest part is removed.
	memoryParts = 8
	// maxPart bounds a part in bytes, so that a reader finds its first number without a long search.
	maxPart = 64 << 10
)

// memory is the near end of a tape: the newest batches of one source, encoded like the records of a segment, but
// without checksums, which only a disk needs. With a limit of 0 it keeps no batch and knows only the number of the
// last one.
//
// Invariants:
//
//  1. All batches are of one epoch, and their numbers ascend. A Reset removes them.
//  2. Every batch that was applied from number span.First to span.Last is here.
//  3. The parts never take more than limit bytes.
//
// Cost: a batch takes one lock and one copy of its payload. Once the memory is full, a new part reuses
// the bytes of the oldest one, unless a read is under way or somebody keeps what leaves.
type memory struct {
	frame frame
	limit int
	// evicts says that addRecord returns the parts that it removes, and that their bytes stay as they are.
	evicts bool

	mu      sync.Mutex
	parts   []part // oldest first
	bytes   int    // of parts
	next    uint64 // the number that follows the last record in parts
	idle    Record // sums up the batches without events that came after that record; Kind 0 if none did
	span    Span
	readers int
	free    []byte // bytes of a removed part, which the next part reuses
}

// part is a run of records. It has every batch that was applied from number from up to the next part's.
type part struct {
	from uint64
	data []byte
}

// partBytes is the size at which a part is full.
func (m *memory) partBytes() int { return min(m.limit/memoryParts, maxPart) }

// addRecord adds a batch; a Reset removes all batches. An Idle record replaces one that came just before it. If
// somebody keeps what leaves, it returns the parts that had to go to make room, and whether the batch itself is too
// large to stay.
func (m *memory) addRecord(r *Record) (evicted []part, tooLarge bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Kind == Reset {
		m.removeAll(Span{Epoch: r.Epoch}, 0)
		return nil, false
	}
	if r.Epoch != m.span.Epoch || m.span.Any && r.Seq <= m.span.Last {
		m.removeAll(Span{Epoch: r.Epoch}, 0) // its Reset is missing
	}
	if recordSize+len(r.Payload) > m.limit {
		if m.evicts {
			evicted = m.parts
		}
		m.removeAll(Span{Epoch: r.Epoch, First: r.Seq + 1, Last: r.Seq, Any: true}, r.Seq+1)
		return evicted, true
	}
	if !m.span.Any {
		m.span.First, m.span.Any, m.next = r.Seq, true, r.Seq
	}
	m.span.Last = r.Seq
	if r.Kind == Idle {
		m.idle = *r
		return nil, false
	}
	if m.idle.Kind != 0 {
		evicted = m.appendRecord(&m.idle)
		m.idle = Record{}
	}
	return append(evicted, m.appendRecord(r)...), false
}

// removeAll removes all batches. next is the number of the batch to expect, 0 if it is not known. mu is held.
func (m *memory) removeAll(span Span, next uint64) {
	m.parts, m.bytes, m.idle, m.span, m.next = nil, 0, Record{}, span, next
}

// appendRecord adds a record at the end. To make it fit, it removes the oldest parts, which it returns if somebody
// keeps them. mu is held.
func (m *memory) appendRecord(r *Record) (evicted []part) {
	size, full := recordSize+len(r.Payload), m.partBytes()
	for m.bytes+size > m.limit {
		oldest := m.parts[0]
		m.bytes -= len(oldest.data)
		switch {
		case m.evicts:
			evicted = append(evicted, oldest)
		case m.readers == 0 && cap(oldest.data) <= full:
			m.free = oldest.data[:0]
		}
		m.parts = slices.Delete(m.parts, 0, 1)
		if m.span.First = m.next; len(m.parts) > 0 {
			m.span.First = m.parts[0].from
		}
	}
	n := len(m.parts)
	if n == 0 || len(m.parts[n-1].data)+size > full {
		if m.free == nil && n > 0 { // the first part grows as it is used, so that a quiet source takes little
			m.free = make([]byte, 0, max(full, size))
		}
		m.parts = append(m.parts, part{m.next, m.free})
		m.free = nil
		n++
	}
	newest := &m.parts[n-1]
	newest.data = m.frame.appendRecord(newest.data, r)
	m.bytes += size
	m.next = r.Seq + 1
	return evicted
}

// size returns the bytes of memory that m takes.
func (m *memory) size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := cap(m.free)
	for _, p := range m.parts {
		n += cap(p.data)
	}
	return n
}

// visitRange lets p read the batches of its range, and returns the span of the batches in memory. It returns ErrGone if
// the range begins before that span, and ErrTooNew if it begins after it.
func (m *memory) visitRange(p *passage) (Span, error) {
	m.mu.Lock()
	span, idle := m.span, m.idle
	if m.limit == 0 {
		span.First = 0 // only the disk knows the first one
	}
	if p.q.Epoch == 0 {
		p.q.Epoch = span.Epoch
	}
	var err error
	switch current := p.q.Epoch == span.Epoch; {
	case current && p.q.Oldest && m.limit > 0:
		p.q.From, p.q.Oldest = span.First, false
	case p.q.Epoch > span.Epoch, current && !p.q.Oldest && (!span.Any || p.q.From > span.Last):
		err = ErrTooNew
	case !current || m.limit == 0 || p.q.From < span.First:
		err = ErrGone
	}
	if err != nil {
		m.mu.Unlock()
		return span, err
	}
	p.known, p.first, p.next = true, span.First, span.First
	var parts [][]byte
	for _, old := range slices.Backward(m.parts) {
		parts = append(parts, old.data)
		if p.next = old.from; old.from <= p.q.From {
			break
		}
	}
	// While readers is not 0, no bytes of a removed part are used again, so what follows needs no lock.
	m.readers++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.readers--
		m.mu.Unlock()
	}()
	for _, data := range slices.Backward(parts) {
		p.scanRecords(&Scanner{data: data, frame: m.frame})
	}
	if idle.Kind != 0 && !p.done {
		p.readRecord(&idle)
	}
	return span, nil
}
