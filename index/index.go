// Package index keeps, for one context, who holds which block of which prefix,
// and answers how far a chain of hashes is held.
//
//	             source 3                               shared by all sources
//	 engine hash -> entry{key, owners}        key -> owner set id      set id -> owners
//	+----------------------------------+     +-------------------+    +-----------------+
//	| e0  -> s0   {gpu, cpu}           |---->| s0 -> 7           |--->| 7: 4 5 9  (refs)|
//	| e1  -> s1   {gpu}                |---->| s1 -> 2           |--->| 2: 4      (refs)|
//	| e9  -> e9   {gpu}  raw           |---->| e9 -> 2           |    +-----------------+
//	+----------------------------------+     +-------------------+    interned: equal sets
//	 waiting room: e9 after e8, e8 after ...                          have equal ids
//
// A key is the canonical sequence hash of package hash where the tokens of the
// whole prefix are known, else the engine's own hash (raw). Both live in one
// space, so a raw hash matches wherever a query asks for it.
//
// A stored block with tokens gets its key from its parent's. While the parent is
// unknown to the source, the block is held under its raw hash and a link (engine
// hash, parent, local hash) waits; when the parent's key becomes known every
// block that waits on it, directly or through others, moves to its own key, for
// all owners of the source. A link outlives its block while other links need it
// to find their way. A parent whose last holder is gone has no key any more: its
// children then arrive as orphans.
//
// Invariants, checked by Check:
//
//  1. A key maps to a live, non-empty set; a set's count of references equals the
//     keys and entries that name it; without references it is gone.
//  2. Set members ascend, and no two sets are equal. So two keys have the same
//     owners exactly when they have the same set id.
//  3. Owner o is in the set of key k exactly when some engine hash held by o maps
//     to k; o.shared[k] is the number of such hashes minus one. Two engine hashes
//     with the same tokens therefore need two removals.
//  4. An entry has at least one owner, all of its own source and none retired. So
//     an alias lives exactly as long as its source holds the block.
//  5. A raw entry's key is its engine hash.
//  6. o.copies[e] is the number of extra copies, kept only for e that o holds, and
//     only above zero; the same for o.shared.
//  7. o.blocks is the number of engine hashes o holds.
//  8. A link is the only one of its engine hash; neither its engine hash nor its
//     parent has a known key; its block is held or another link waits on it; a
//     source has at most MaxOrphans links, and none when it holds nothing.
//  9. Every table finds each of its keys by probing, and counts them right.
//
// Concurrency: one RWMutex. Store, Remove, Clear, DropSource exclude readers, so a
// reader sees all of a call or nothing of it; readers run side by side. Owner
// lists handed out by Match are immutable and stay valid. Callbacks run under the
// read lock and must not call the index. No goroutine, no clock, no log.
//
// Cost, per block: store and remove probe two tables and move two set ids, hashing
// 16 bytes where tokens are given; match probes one table. Clear costs the entries
// of one source, DropSource the same; neither walks other sources' blocks. A block
// takes 12 bytes a slot in the key table (load 1/4 to 3/4), and 24 in the engine
// table of each source that holds it.
package index

import (
	"sync"

	"kvconductor/index/hash"
)

// Owner is a holder of blocks: one (instance or pool backend, rank, medium, group).
// The application keeps what it means. Ids are dense from 0 and never reused.
type Owner uint32

// Source is a namespace of engine hashes. Ids are dense from 0 and never reused.
type Source uint32

// DefaultMaxOrphans bounds the waiting room of a source: 65,536 links are some
// 6 MB, and a million tokens of prompts whose beginning was missed at 16 a block.
const DefaultMaxOrphans = 1 << 16

// Options of an index.
type Options struct {
	// Scheme computes the keys. The zero value is seed 0; hash.Default() is usual.
	Scheme hash.Scheme
	// MaxOrphans is the most links that wait for their parent, per source. 0 is
	// DefaultMaxOrphans, below zero none wait.
	MaxOrphans int
}

// Index is the blocks of one context. Create it with New.
type Index struct {
	scheme     hash.Scheme
	maxOrphans int

	mu          sync.RWMutex  // guards all below
	blocks      table[uint32] // key -> set id
	sets        sets
	sources     []*source // by Source; nil is dropped
	owners      []*owner  // by Owner; nil is retired
	memberships int       // pairs (owner, key)
	raw         int       // entries under their raw hash
	work        []step    // buffer of settle
}

// source is a namespace of engine hashes and the owners that share it.
type source struct {
	engines table[entry] // engine hash -> entry
	room    room
	owners  []Owner
}

// entry is a block as its source knows it.
type entry struct {
	key uint64 // of the shared table
	set uint32 // the owners of this source that hold the block under this hash
	raw bool   // key is the engine hash, for want of a known prefix
}

// owner is one holder.
type owner struct {
	src    Source
	blocks int           // engine hashes held
	copies table[uint32] // engine hash -> copies beyond the first
	shared table[uint32] // key -> engine hashes of this owner beyond the first
}

// New returns an empty index.
func New(opts Options) *Index {
	x := &Index{scheme: opts.Scheme, maxOrphans: opts.MaxOrphans}
	if x.maxOrphans == 0 {
		x.maxOrphans = DefaultMaxOrphans
	}
	x.sets.init()
	return x
}

// NewSource returns a fresh namespace of engine hashes.
func (x *Index) NewSource() Source {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sources = append(x.sources, &source{})
	return Source(len(x.sources) - 1)
}

// NewOwner returns a fresh owner whose blocks are named by src. An owner of a
// dropped source is born retired.
func (x *Index) NewOwner(src Source) Owner {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := Owner(len(x.owners))
	s := x.sources[src]
	if s == nil {
		x.owners = append(x.owners, nil)
		return o
	}
	s.owners = append(s.owners, o)
	x.owners = append(x.owners, &owner{src: src})
	return o
}

// Knows reports whether some owner of src holds a block under this engine hash.
func (x *Index) Knows(src Source, engine uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.sources[src]
	return s != nil && s.engines.ref(engine) != nil
}

// Blocks returns the number of distinct engine hashes an owner holds, 0 when it
// is retired.
func (x *Index) Blocks(o Owner) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if own := x.owners[o]; own != nil {
		return own.blocks
	}
	return 0
}

// Aliases calls f for each engine hash whose canonical key is known, in no
// particular order, until f returns false. f must not call the index.
func (x *Index) Aliases(f func(src Source, engine, seq uint64) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i, s := range x.sources {
		if s == nil {
			continue
		}
		more := true
		s.engines.all(func(engine uint64, e *entry) bool {
			more = e.raw || f(Source(i), engine, e.key)
			return more
		})
		if !more {
			return
		}
	}
}
