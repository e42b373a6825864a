// Package prefixes tells what queries ask for most, in bounded memory.
//
// A Summary is of one deployment. It looks at one query in Every. Of each it counts the prefixes
// that end after 1, 2, 4, 8, … blocks (lossy counting):
//
//	query --depths--> entries: count, who held it last, when it was asked for before
//	                     |
//	          full: the rarest half goes, and the count of the best of them is the error
//
// Counts are halved each half-life, so that a Summary is about the last minutes. It holds no
// token: a prefix is named by the sequence hash of its last block.
//
// Concurrency: a Summary is safe for concurrent use. A query that finds it in use is not counted.
package prefixes

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Every is how many queries there are to one that is looked at.
const Every = 32

const (
	// maxEntries bounds the prefixes of one Summary, some 500 KB.
	maxEntries = 2048
	// fewEntries bounds them while all Summaries of a Room together have maxTotal.
	fewEntries = 64
	// maxTotal bounds the prefixes of a Room, some 16 MB.
	maxTotal = 65_536

	maxHolders = 8

	halfLife = 10 * time.Minute
)

// entryBytes is what a prefix takes, its place in a map included.
const entryBytes = 240

// Room is what the Summaries of a server share.
type Room struct{ entries atomic.Int64 }

// Bytes returns what the Summaries take.
func (r *Room) Bytes() int { return int(r.entries.Load()) * entryBytes }

// Holder is an instance, and how many leading blocks of a prompt it held.
type Holder struct {
	Instance string
	Blocks   int
}

// Medium counts blocks by where they were.
type Medium struct {
	Name   string
	Blocks uint64
}

// Query is what a Summary learns of a query.
type Query struct {
	// Context tells contexts of the deployment apart: a key means another prefix in each.
	Context uint64
	Adapter string
	Salted  bool
	Blocks  int // asked for
	Longest int // held by the best instance
	// Keys are the sequence hashes of its blocks as far as they are known, by depth: Keys[i] is
	// that of the prefix of 1<<i blocks.
	Keys    []uint64
	Holders []Holder
	Media   []Medium // leading blocks of the best instance
}

// Prefix is a prefix that queries ask for.
type Prefix struct {
	Key    uint64 // sequence hash of its last block
	Parent uint64 // that of the prefix of half the length, 0 of the first block
	// Depth is the length in blocks.
	Depth   int
	Context uint64
	Adapter string
	Salted  bool
	// Queries is how many asked for it, Error by how many it may be more: both estimated from
	// those that were looked at, and halved each ten minutes.
	Queries, Error uint64
	// Holders are instances that held all of it when it was asked for last, at most 8 of Held.
	Holders []string
	Held    int
	Last    time.Time
}

// Report is what a Summary knows.
type Report struct {
	// Queries and blocks, estimated, since the start.
	Queries, Asked, Cached uint64
	// Media are the leading blocks of the best instances, by medium.
	Media []Medium
	// Reuse counts, by powers of two, how many queries of the deployment lay between two for the
	// same prefix: Reuse[i] those of less than 1<<i, and not less than half of that.
	Reuse    [32]uint64
	Prefixes []Prefix // most asked for first
}

// Summary is what the queries of one deployment ask for. Create it with New.
type Summary struct {
	room *Room

	mu      sync.Mutex
	entries map[at]*entry // guarded by mu
	lost    uint32        // counts that an entry may lack; guarded by mu
	queries uint64        // looked at; guarded by mu
	asked   uint64        // guarded by mu
	cached  uint64        // guarded by mu
	media   []Medium      // guarded by mu
	reuse   [32]uint64    // guarded by mu
	halved  time.Time     // guarded by mu
}

// at names a prefix of a Summary.
type at struct{ context, key uint64 }

// entry is a Prefix in a Summary.
type entry struct {
	parent  uint64
	adapter string
	salted  bool
	count   uint32
	error   uint32
	depth   uint8 // as an exponent
	held    uint16
	holders [maxHolders]string
	query   uint64 // the number of the last query
	last    int64  // Unix seconds of it
}

// New returns an empty Summary.
func New(room *Room) *Summary { return &Summary{room: room, entries: make(map[at]*entry)} }

// Observe counts a query.
func (s *Summary) Observe(q *Query, now time.Time) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.halved.IsZero() {
		s.halved = now
	} else if now.Sub(s.halved) >= halfLife {
		s.halveCounts(now)
	}
	s.queries++
	s.asked += uint64(q.Blocks)
	s.cached += uint64(q.Longest)
	for _, m := range q.Media {
		s.countMedium(m)
	}
	parent := uint64(0)
	for i, key := range q.Keys {
		at := at{q.Context, key}
		e := s.entries[at]
		if e == nil {
			if len(s.entries) >= s.maxPrefixes() {
				s.dropRarest()
			}
			e = &entry{parent: parent, adapter: q.Adapter, salted: q.Salted, depth: uint8(i), error: s.lost}
			s.entries[at] = e
			s.room.entries.Add(1)
		} else if between := (s.queries - e.query) * Every; i == len(q.Keys)-1 {
			s.reuse[min(bits.Len64(between), len(s.reuse)-1)]++
		}
		e.count++
		e.query, e.last = s.queries, now.Unix()
		e.setHolders(q.Holders, 1<<i)
		parent = key
	}
}

// setHolders sets who holds all blocks of a prefix, which has depth blocks.
func (e *entry) setHolders(all []Holder, depth int) {
	e.held = 0
	for _, h := range all {
		if h.Blocks < depth {
			continue
		}
		if e.held < maxHolders {
			e.holders[e.held] = h.Instance
		}
		e.held++
	}
	for i := int(e.held); i < maxHolders; i++ {
		e.holders[i] = ""
	}
}

// countMedium adds to the blocks of a medium. s.mu is held.
func (s *Summary) countMedium(m Medium) {
	at := slices.IndexFunc(s.media, func(o Medium) bool { return o.Name == m.Name })
	switch {
	case at >= 0:
		s.media[at].Blocks += m.Blocks
	case len(s.media) < 16:
		s.media = append(s.media, m)
	}
}

// maxPrefixes returns how many prefixes s may have. s.mu is held.
func (s *Summary) maxPrefixes() int {
	if s.room.entries.Load() >= maxTotal {
		return fewEntries
	}
	return maxEntries
}

// dropRarest drops the rarest half of the prefixes. s.mu is held.
func (s *Summary) dropRarest() {
	counts := make([]uint32, 0, len(s.entries))
	for _, e := range s.entries {
		counts = append(counts, e.count)
	}
	slices.Sort(counts)
	least := counts[len(counts)/2]
	s.lost = max(s.lost, least)
	s.dropWhere(func(e *entry) bool { return e.count <= least })
}

// halveCounts halves all counts, so that old queries count less and less. s.mu is held.
func (s *Summary) halveCounts(now time.Time) {
	s.halved = now
	s.lost /= 2
	s.dropWhere(func(e *entry) bool {
		e.count, e.error = e.count/2, e.error/2
		return e.count == 0
	})
}

// dropWhere drops the prefixes for which which returns true. s.mu is held.
func (s *Summary) dropWhere(which func(*entry) bool) {
	before := len(s.entries)
	for key, e := range s.entries {
		if which(e) {
			delete(s.entries, key)
		}
	}
	s.room.entries.Add(int64(len(s.entries) - before))
}

// Close gives the memory of the prefixes back to the Room.
func (s *Summary) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropWhere(func(*entry) bool { return true })
}

// Report returns what s knows, with at most top prefixes.
func (s *Summary) Report(top int) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{Queries: s.queries * Every, Asked: s.asked * Every, Cached: s.cached * Every, Reuse: s.reuse}
	for _, m := range s.media {
		r.Media = append(r.Media, Medium{m.Name, m.Blocks * Every})
	}
	for i := range r.Reuse {
		r.Reuse[i] *= Every
	}
	for at, e := range s.entries {
		r.Prefixes = append(r.Prefixes, Prefix{
			Key: at.key, Parent: e.parent, Depth: 1 << e.depth, Context: at.context, Adapter: e.adapter, Salted: e.salted,
			Queries: uint64(e.count) * Every, Error: uint64(e.error) * Every, Held: int(e.held), Last: time.Unix(e.last, 0).UTC(),
		})
	}
	slices.SortFunc(r.Prefixes, func(a, b Prefix) int {
		return cmp.Or(cmp.Compare(b.Queries, a.Queries), cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.Key, b.Key))
	})
	r.Prefixes = r.Prefixes[:min(top, len(r.Prefixes))]
	for i := range r.Prefixes {
		e := s.entries[at{r.Prefixes[i].Context, r.Prefixes[i].Key}]
		r.Prefixes[i].Holders = slices.Clone(e.holders[:min(int(e.held), maxHolders)])
	}
	return r
}
