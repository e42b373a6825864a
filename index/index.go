// Package index keeps, for one context, who holds which block of which prefix,
// and answers how far a chain of hashes is held.
//
//	Index --gen--> generation: replaced as a whole, never waited for by readers
//	  |             +-- table: key -> (set id, tag, link to a child)    16 bytes a slot
//	  |             +-- sets:  set id -> bitmap of internal owner ids   interned, immutable
//	  |             +-- memo:  set x owner -> set
//	  |             +-- ids:   internal owner id -> owner; retired; open
//	  |             +-- kids:  further children of keys that have several
//	  +-aliases--> engine hash -> key                                   16 bytes a slot
//	  +-sources--> private aliases, waiting room, owners' counts and copies
//
// A key is the canonical sequence hash of package hash where the tokens of the
// whole prefix are known, else the engine's own hash (raw). Both live in one
// space, so a raw hash matches wherever a query asks for it.
//
// What an engine hash means is shared by all sources: publishers that hash alike
// pay for it once, and may name blocks that another has taught. A source that means
// something else by a hash keeps that to itself. An alias whose key nobody holds
// is not known; a parent that has left has no key, and its children arrive as
// orphans: they are held raw, and a link (engine hash, parent, local hash) waits in
// the room of the source until the parent's key is learned.
//
// Invariants, checked by Check:
//
//  1. A key is found by probing; the keys with a set are counted, and the slots.
//  2. No two sets are equal, and none is empty but set 0. So two keys have the same
//     holders exactly when they have the same set id.
//  3. An owner counts the keys whose set it is in, a source those of its owners.
//  4. A living owner has one internal id, which is not retired. Retired ids stay in
//     sets until the next generation and in no answer.
//  5. An owner that is not open holds the parent of every block it holds that is not
//     a root: see closure.go.
//  6. o.copies[key] is the number of extra copies, only above zero, of held keys.
//     Engine hashes with one key are copies of one block.
//  7. An alias is found by probing and has a key.
//  8. A link is the only one of its engine hash, and in both orders of the room; a
//     source has at most MaxOrphans links, and none when it holds nothing.
//
// Concurrency: Match and Depths take no lock and wait for nobody. Store and Remove
// change one block at a time by compare-and-swap, side by side for different sources
// and one after the other for one source; they hold the gate to read. Clear,
// DropSource, New..., Stats, Check and a rebuild hold it to write. A query that
// races with a change may see part of an event: its answer may be shorter than the
// truth, never longer than what was true at some moment while it ran. This holds
// for chains whose blocks follow each other; a list of keys that is no chain gets
// an answer for some chain. Callbacks must not call the index. No goroutine, no
// clock, no log: a rebuild runs in the call that finds it due.
//
// Cost: a store or removal probes one slot per block, two with aliases, and makes
// one transition per run of blocks with equal holders. A query gallops over blocks
// held alike by closed owners and probes each block otherwise. Clear and DropSource
// cost nothing per block; answers change at once, memory comes back with the
// rebuild that a later Store, Remove, Stats or Compact makes. A rebuild is one
// pass over the table. A key takes 19 to 40 bytes, up to 30 where there are more
// than two million; an alias 19 to 30; a further holder nothing but its share of
// distinct sets.
package index

import (
	"math/bits"
	"sync"
	"sync/atomic"

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
	// MaxBytes is the most memory for blocks, sets and aliases, 0 for no limit. At
	// the limit new keys are refused: see budget.go.
	MaxBytes int
	// KeepLabels keeps Store.Labels and who taught an alias, for Snapshot: 8 bytes
	// a slot and 4 an alias.
	KeepLabels bool
	// KeepForgotten is how many names of blocks that nobody holds any more are kept
	// for Forgotten when a rebuild drops them: 16 bytes each, until they are fetched.
	KeepForgotten int
}

// Index is the blocks of one context. Create it with New.
type Index struct {
	scheme     hash.Scheme
	maxOrphans int
	maxBytes   int
	labels     bool // Options.KeepLabels
	floor      int  // keys the smallest table is made for
	manual     bool // rebuild only for want of room; tests set it

	gen      atomic.Pointer[generation]
	aliases  atomic.Pointer[aliases] // replaced under the gate
	refused  atomic.Pointer[filter]
	rebuilds atomic.Int64
	dead     atomic.Int64 // memberships retired since the last rebuild

	gate    sync.RWMutex // held to read while blocks change, to write while what follows does
	sources []*source    // by Source; nil is dropped
	owners  []*owner     // by Owner; nil is dropped
	dropped int          // owners that are nil

	keepForgotten int
	forgot        atomic.Bool
	forgotten     []Name     // guarded by the gate, held to write
	kin           sync.Mutex // held while families change
}

// source is a namespace of engine hashes and the owners that share it.
type source struct {
	name   Source
	family atomic.Uint32 // equal for sources that hash alike: see family.go

	mu       sync.Mutex // held by each call for the source; guards all below
	owners   []*owner
	held     int          // memberships of all owners
	raw      bool         // some may be under an engine hash
	private  flat[uint64] // engine hash -> key, where it differs from what others mean
	room     room
	work     []named  // buffer of settle
	suspects []uint32 // buffer of Remove
}

// owner is one holder.
type owner struct {
	name   Owner
	s      *source
	id     uint32 // of the present generation
	blocks int    // keys held
	raw    int    // of them stored under an engine hash of unknown key; an estimate, see Stats
	copies flat[uint32]
	tally  *atomic.Int64 // of the application, nil for none
}

// held counts keys in or out.
func (o *owner) held(n int) {
	o.blocks += n
	if o.tally != nil {
		o.tally.Add(int64(n))
	}
}

// New returns an empty index.
func New(opts Options) *Index {
	x := &Index{scheme: opts.Scheme, maxOrphans: opts.MaxOrphans, maxBytes: opts.MaxBytes, labels: opts.KeepLabels, keepForgotten: opts.KeepForgotten, floor: 64}
	if x.maxOrphans == 0 {
		x.maxOrphans = DefaultMaxOrphans
	}
	x.reset()
	return x
}

// reset begins an empty generation.
func (x *Index) reset() {
	t := newTable(bucketsFor(x.floor, emptiest), x.labels)
	x.gen.Store(&generation{table: t, sets: newSets(), memo: newMemo(len(t.buckets) * bucketSlots), ids: newIDs(64), bornSets: 1})
	x.aliases.Store(newAliases(0, x.labels))
}

// NewSource returns a fresh namespace of engine hashes.
func (x *Index) NewSource() Source {
	x.gate.Lock()
	defer x.gate.Unlock()
	s := &source{name: Source(len(x.sources))}
	s.family.Store(uint32(s.name))
	x.sources = append(x.sources, s)
	return s.name
}

// NewOwner returns a fresh owner whose blocks are named by src. An owner of a
// dropped source is born retired.
func (x *Index) NewOwner(src Source) Owner { return x.NewCountedOwner(src, nil) }

// NewCountedOwner is NewOwner with a number that changes with that of the keys the
// owner holds. Owners may share one, also those of several indexes.
func (x *Index) NewCountedOwner(src Source, tally *atomic.Int64) Owner {
	x.gate.Lock()
	defer x.gate.Unlock()
	name := Owner(len(x.owners))
	s := x.sources[src]
	if s == nil {
		x.owners = append(x.owners, nil)
		x.dropped++
		return name
	}
	o := &owner{name: name, s: s, tally: tally}
	x.identify(o)
	s.owners = append(s.owners, o)
	x.owners = append(x.owners, o)
	return name
}

// Knows reports whether an engine hash means something to a source: its key is
// known and held by anyone, or an owner of the source holds it as it is.
func (x *Index) Knows(src Source, engine uint64) bool {
	x.gate.RLock()
	defer x.gate.RUnlock()
	s := x.sources[src]
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := x.hand(s)
	engine = normal(engine)
	_, known := h.meaning(engine)
	return known || h.heldRaw(engine)
}

// Blocks returns the number of keys an owner holds, 0 when it is retired.
func (x *Index) Blocks(o Owner) int {
	x.gate.RLock()
	defer x.gate.RUnlock()
	own := x.owners[o]
	if own == nil {
		return 0
	}
	own.s.mu.Lock()
	defer own.s.mu.Unlock()
	return own.blocks
}

// Aliases calls f for each source and each engine hash of known key that an owner
// of the source holds, in no particular order, until f returns false. f must not
// call the index.
func (x *Index) Aliases(f func(src Source, engine, seq uint64) bool) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	w := walk{x: x, g: x.gen.Load(), f: f, seen: make([]int, len(x.sources)), of: map[*source]Source{}}
	for i, s := range x.sources {
		if s != nil {
			w.of[s] = Source(i)
		}
	}
	a := x.aliases.Load()
	for i := range a.buckets {
		b := &a.buckets[i]
		for j := range b {
			if !w.shared(atomic.LoadUint64(&b[j].engine), atomic.LoadUint64(&b[j].key)) {
				return
			}
		}
	}
	for i, s := range x.sources {
		if s != nil && !w.private(Source(i), s) {
			return
		}
	}
}

// walk is a walk over aliases.
type walk struct {
	x    *Index
	g    *generation
	f    func(src Source, engine, seq uint64) bool
	of   map[*source]Source
	seen []int // by source: number of the last shared entry reported
	n    int
}

func (w *walk) shared(engine, key uint64) (more bool) {
	if key == 0 {
		return true
	}
	w.n++
	words, first := w.g.sets.of(w.g.table.lookup(key))
	for i, word := range words {
		for word = w.g.ids.living(word, first+i); word != 0; word &= word - 1 {
			o := w.x.owners[w.g.ids.ext[(first+i)<<6+bits.TrailingZeros64(word)]]
			src := w.of[o.s]
			if w.seen[src] == w.n {
				continue
			}
			w.seen[src] = w.n
			o.s.mu.Lock()
			own := o.s.private.ref(engine) != nil
			o.s.mu.Unlock()
			if !own && !w.f(src, plain(engine), plain(key)) {
				return false
			}
		}
	}
	return true
}

func (w *walk) private(src Source, s *source) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := w.x.hand(s)
	more = true
	s.private.all(func(engine uint64, key *uint64) bool {
		if h.heldBySource(*key) {
			more = w.f(src, plain(engine), plain(*key))
		}
		return more
	})
	return more
}

// plain is the reverse of normal.
func plain(key uint64) uint64 {
	if key == zeroKey {
		return 0
	}
	return key
}

func trailing(w uint64) uint32 { return uint32(bits.TrailingZeros64(w)) }
