package bounds

import "sync"

// Bytes bounds how much memory all flows hold together. A flow gets more while it has no more than is left for the
// others: one alone has half of the bytes, two have a third each. Nothing waits, because a client that is slow on purpose
// would hold up the others.
type Bytes struct {
	mu      sync.Mutex
	most    int64            // 0 for no bound; guarded by mu
	used    int64            // guarded by mu
	byFlow  map[string]int64 // guarded by mu
	refused uint64           // guarded by mu
}

// NewBytes returns a bound of some bytes; 0 is no bound.
func NewBytes(most int64) *Bytes { return &Bytes{most: most, byFlow: make(map[string]int64)} }

// SetMost replaces the bound; 0 is no bound. Reservations made before stay.
func (b *Bytes) SetMost(most int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
}

// Reserve takes n bytes for a flow. It returns ErrFull, and takes nothing, if they do not fit.
func (b *Bytes) Reserve(flow string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most > 0 && b.byFlow[flow]+n > b.most-b.used-n {
		b.refused++
		return ErrFull
	}
	b.used += n
	b.byFlow[flow] += n
	return nil
}

// Release gives n bytes of a flow back.
func (b *Bytes) Release(flow string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.byFlow[flow] -= n; b.byFlow[flow] == 0 {
		delete(b.byFlow, flow)
	}
}

// BytesStats are the counters of Bytes.
type BytesStats struct {
	Used, Most int64  // in bytes; Most is 0 for no bound
	Refused    uint64 // reservations that did not fit, since the start
}

// Stats returns the counters.
func (b *Bytes) Stats() BytesStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return BytesStats{Used: b.used, Most: b.most, Refused: b.refused}
}
