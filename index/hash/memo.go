package hash

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

// A memo keeps the digests of stretches of blocks under everything that they are
// computed from, and compares all of it: what clients send may cost other clients
// room, never a digest. The hash that an entry is found by only has to spread. It has a
// random seed, lest a client makes stretches that drive out one another.
//
//	entry    blocks u32, size u64, len(scope) u32, scope, parent, tokens u32... | digests
//	         the key, hashed and compared                                       | the answer
//
//	scope    the algorithm, whether there is a parent, the extra keys as they are written
//
// An entry is made when a stretch is hashed for the second time: most of a prompt is
// never seen again, and an entry costs 1-3 µs, of SHA-256 with extensions as much as
// the digests.

const (
	// stretch is how many blocks share an entry. Finding one costs some 100 ns on top
	// of the cost of each block, so with fewer a block costs more; with more a prompt that
	// leaves a known one has more blocks to hash again.
	stretch = 16

	// LeastMemoBytes is the least bound of a memo: its fixed part, and room for some
	// hundred entries.
	LeastMemoBytes = 1 << 20

	// memoUsual is about what an entry takes of 16 blocks of 16 tokens.
	memoUsual = 2 << 10
	// memoFixed is what an empty memo takes next to its counters: the queue
	// of new entries, 256 maps.
	memoFixed = 384 << 10
	// memoSlot is what an entry takes next to its bytes: 72 bytes in one of 256 maps of
	// entries and 16 in that of their costs. Maps double and never shrink, so each is
	// as large as its fullest moment made it, some four slots an entry where maps are small.
	memoSlot = 320
	// memoCounter is what one counter takes: four times half a byte in the policy that
	// chooses what stays, two bytes in its filter, and four bytes of a print.
	memoCounter = 8
	// memoWaiting bounds what waits to be put in, to fewer entries than the queue of
	// 32,768 has places: a full one drops without a word.
	memoWaiting = 4 << 20
)

// Memo keeps digests of blocks for all chains that are given it. What it refers to
// takes no more than its bound; what it lets go waits for the collector. It may
// forget or refuse anything at any time. Methods are safe for concurrent use; a nil
// memo is empty and stays so.
type Memo struct {
	cache   *ristretto.Cache[uint64, []byte] // entries by the hash of their keys
	seed    maphash.Seed                     // of that hash
	prints  []atomic.Uint32                  // of stretches that were hashed, four where their hash says
	fixed   int64                            // bytes that are taken by no entry
	room    int64                            // bytes that may wait
	waiting atomic.Int64                     // bytes to be put in
	stripes [32]memoStripe
}

// memoStripe is a part of what all chains write to.
type memoStripe struct {
	mu           sync.RWMutex // held for reading while the cache is used, which must not be closed then
	closed       bool         // guarded by mu
	hits, misses atomic.Uint64
	_            [64]byte // the next one's line begins behind
}

// MemoStats tell what a memo is worth.
type MemoStats struct {
	Hits   uint64 // stretches of up to 16 blocks that were asked for and there
	Misses uint64 // stretches that were not
	Bytes  int64  // taken, the fixed part included
}

// NewMemo returns an empty memo of at most maxBytes, at least LeastMemoBytes.
func NewMemo(maxBytes int64) (*Memo, error) {
	if maxBytes < LeastMemoBytes {
		return nil, fmt.Errorf("a memo of %d bytes is too small; the least is %d", maxBytes, LeastMemoBytes)
	}
	// The policy works best with several counters an entry and rounds to a power of two.
	counters := int64(1) << (bits.Len64(uint64(8*(maxBytes/memoUsual))) - 1)
	m := &Memo{
		seed:   maphash.MakeSeed(),
		prints: make([]atomic.Uint32, counters),
		fixed:  memoFixed + memoCounter*counters,
		room:   min(maxBytes/16, memoWaiting),
	}
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, []byte]{
		NumCounters:        counters,
		MaxCost:            maxBytes - m.fixed - m.room,
		BufferItems:        64, // what the library advises
		IgnoreInternalCost: true,
		KeyToHash:          func(key uint64) (uint64, uint64) { return key, 0 },
		// Called when an entry leaves the queue.
		Cost: func(entry []byte) int64 {
			cost := memoCost(entry)
			m.waiting.Add(-cost)
			return cost
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memo of %d bytes: %w", maxBytes, err)
	}
	m.cache = cache
	return m, nil
}

// memoCost is what an entry takes in all.
func memoCost(entry []byte) int64 { return int64(cap(entry)) + memoSlot }

// Close empties the memo for good. Chains that have it go on without.
func (m *Memo) Close() {
	if m == nil {
		return
	}
	for i := range m.stripes {
		m.stripes[i].mu.Lock()
		defer m.stripes[i].mu.Unlock()
	}
	if m.stripes[0].closed {
		return
	}
	m.cache.Close()
	for i := range m.stripes {
		m.stripes[i].closed = true
	}
}

// Wait returns when what was put in before is there or has been refused.
func (m *Memo) Wait() {
	if m == nil {
		return
	}
	s := &m.stripes[0]
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		m.cache.Wait()
	}
}

// Stats returns the counts since NewMemo.
func (m *Memo) Stats() (st MemoStats) {
	if m == nil {
		return st
	}
	for i := range m.stripes {
		st.Hits += m.stripes[i].hits.Load()
		st.Misses += m.stripes[i].misses.Load()
	}
	st.Bytes = m.fixed + m.waiting.Load() + m.cache.MaxCost() - m.cache.RemainingCost()
	return st
}

// hashKey returns what a key is found by. It is not XXH3: SHA-256 is slower by a fifth next to
// it on processors with 512-bit vectors, see docs/benchmarks/hash-profiles.md.
func (m *Memo) hashKey(key []byte) uint64 { return maphash.Bytes(m.seed, key) }

// stripeOf returns the stripe of a hash, by bits that do not choose the place in prints.
func (m *Memo) stripeOf(h uint64) *memoStripe { return &m.stripes[h>>32%uint64(len(m.stripes))] }

// findDigests returns the digests that are kept under a key with the given hash, nil if there
// are none.
func (m *Memo) findDigests(h uint64, key []byte) []byte {
	s := m.stripeOf(h)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil
	}
	entry, ok := m.cache.Get(h)
	if !ok || len(entry) < len(key) || string(entry[:len(key)]) != string(key) {
		s.misses.Add(1)
		return nil
	}
	s.hits.Add(1)
	return entry[len(key):]
}

// wasHashedBefore reports whether it was called with the same hash before, not too long ago.
// Being wrong costs an entry, or another round.
func (m *Memo) wasHashedBefore(h uint64) bool {
	at, next := h*4&uint64(len(m.prints)-1), uint32(h>>32)|1
	print := next
	for i := range 4 { // the latest is first, the oldest goes
		slot := &m.prints[at+uint64(i)]
		last := slot.Load()
		slot.Store(next)
		if last == print {
			return true
		}
		next = last
	}
	return false
}

// addEntry keeps a copy of an entry whose key has the given hash.
func (m *Memo) addEntry(h uint64, entry []byte) {
	s := m.stripeOf(h)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed || int64(len(entry)) > m.room {
		return
	}
	entry = append([]byte(nil), entry...)
	cost := memoCost(entry)
	if m.waiting.Add(cost) > m.room || !m.cache.Set(h, entry, 0) {
		m.waiting.Add(-cost)
	}
}
