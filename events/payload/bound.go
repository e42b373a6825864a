package payload

import "sync/atomic"

// Overhead is bytes that a queued message takes besides its payload, about.
const Overhead = 192

// maxShareOfFree bounds a share by a multiple of the free bytes of its budget. One share alone gets
// four fifths of the budget, n equal ones get 4/(4n+1) each. The rest stays free for a share
// that begins, so no share starves the others.
const maxShareOfFree = 4

// Memory bounds the messages that wait for a decoder, over all sources.
type Memory struct {
	// live and replay have half of the bytes each. A replay ends the wait of live messages,
	// so it must find room while those fill theirs.
	live, replay budget

	reading atomic.Int64 // bytes of the blocks that connections read into
}

// NewMemory returns a Memory that bounds waiting messages by limit bytes.
func NewMemory(limit int64) *Memory {
	return &Memory{live: budget{limit: limit / 2}, replay: budget{limit: limit - limit/2}}
}

// Used returns the bytes of waiting messages, and of the blocks that connections read
// into. Those of a nil Memory are 0.
func (m *Memory) Used() (waiting, reading int64) {
	if m == nil {
		return 0, 0
	}
	return m.live.used.Load() + m.replay.used.Load(), m.reading.Load()
}

// CountRead adds to the bytes of the blocks that connections read into.
func (m *Memory) CountRead(bytes int) {
	if m != nil {
		m.reading.Add(int64(bytes))
	}
}

// budget is a number of bytes that shares have together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// Share is the part of a budget that one queue uses. The zero value has no bound.
type Share struct {
	of   *budget
	used int64
}

// LiveShare returns an empty share for live messages. That of a nil Memory has no bound.
func (m *Memory) LiveShare() Share {
	if m == nil {
		return Share{}
	}
	return Share{of: &m.live}
}

// ReplayShare returns an empty share for replayed messages. That of a nil Memory has no
// bound.
func (m *Memory) ReplayShare() Share {
	if m == nil {
		return Share{}
	}
	return Share{of: &m.replay}
}

// Fits reports whether a queue may add a message of a number of bytes. An empty queue
// always may.
func (s *Share) Fits(bytes int) bool {
	if s.of == nil || s.used == 0 {
		return true
	}
	n, free := int64(bytes+Overhead), s.of.limit-s.of.used.Load()
	return n <= free && s.used+n <= maxShareOfFree*free
}

// Set notes the content of the queue: its messages, and the bytes of their payloads.
func (s *Share) Set(messages, bytes int) {
	if s.of == nil {
		return
	}
	n := int64(bytes + messages*Overhead)
	if n != s.used {
		s.of.used.Add(n - s.used)
		s.used = n
	}
}
