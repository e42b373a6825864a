// Package index keeps, for one deployment, which owner holds which blocks of a prefix,
// and answers how far a chain of hashes is held.
//
//	Index
//	  +--tree      --firsts-> key of the first block of a prompt -> piece
//	  |            --heads--> key of another block that begins a piece -> piece
//	  |            --loose--> key -> block whose place in a chain is not known
//	  |            --lines--> pieces: up to 64 blocks of a chain, 64 bytes and 16 a block
//	  |               |--next, prev--> hints: pieces behind and before
//	  |               |--intervals---> stretches of blocks with one owner set
//	  |               +--side--------> engine hashes that do not fit into the piece
//	  |            --sets---> owner sets, each once, counted by intervals
//	  |            --lanes--> locks of sources, which events of different sources take
//	  |            --identities-> constants of adapters and salts, counts of their pieces and blocks
//	  +--names     --table--> engine hash -> block of a piece; entries on demand
//	  |            --ghosts-> blocks without an owner that are kept for their names, the oldest first
//	  |            --sweep--> retired owners, on their way out of the pieces
//	  +--finder    where a source's next hash most likely is
//	  +--bounds    memory, and what goes first
//	  +--holders   --sources-> private names, unindexed pieces, waiting room, owners' counts and copies
//	  +--resolver  what a hash means to a source; --contests-> hashes about which sources disagree
//
// A part knows only those above it in this list, so a call runs from the bottom of the list to its
// top, and a method's receiver says what it can change.
//
// Each chain is of one identity: of the base model, or of an adapter and a salt
// (identity.go). Identities share everything above and differ in the keys of their blocks,
// so their chains never meet. A key is the canonical sequence hash of package hash XOR the
// constant of the identity, where the tokens of the whole prefix are known, else the
// engine's own hash (raw). Blocks with a known place lie in pieces of chains: a query finds
// the first piece by its key, compares local hashes eight to a cache line, and computes the
// key of the block behind the last equal one, from that of the piece's anchor. All other
// blocks are loose. A block of a chain and a loose one may have the same key: a query joins
// them. The first block of a prompt and a later block may have the same key too, by chance
// or by a publisher's choice of tokens, but they are two blocks: a query finds the first
// one only at its beginning, the later one only behind it.
//
// All sources share the meaning of an engine hash: publishers that hash alike pay for it
// once, and may name blocks that another has taught. A source that means something else by
// a hash keeps that to itself, and for sources without tokens the hash means nothing as
// long as holders disagree (contest.go). A name lives as long as its block, and where
// ghosts are kept longer than the block's last owner (ghosts.go). A parent that has left
// for good has no name, and its children arrive as orphans. They are held raw, and a link
// (engine hash, parent, local hash) waits in the room of the source until the parent's key
// is learned. Once any source says what a hash means, the blocks of all sources that wait
// under it move to their place (waiting.go).
//
// The names of a piece lie in the piece. A name gets an entry in the table of names only
// where chains and removals stop (unindexed.go): sources nearly always mention blocks next
// to those that they mentioned last. The first block of a piece always has entries, so that
// a query finds a chain by its engine hashes (Lookup.Names). A piece with names without
// entries is unindexed, and each source that uses such names lists the piece. Once a source
// mentions a hash that it has not announced, all names get entries, a part with each event.
//
// Invariants, checked by Check:
//
//  1. A chained piece with blocks is found by the key of the first one, in firsts if
//     that begins a prompt, else in heads; a loose block by its key. The blocks with
//     an owner are counted. The last block of a piece has an owner or is a ghost, and
//     each block of a chained piece after the first follows the one before it.
//  2. No two sets are equal. A set is counted by the intervals that name it, and by each Loader
//     that keeps it for pieces to come. Neighbouring intervals have different sets.
//  3. An owner counts the blocks whose set it is in, and sums up their words (digest.go). A
//     source counts the blocks of its owners.
//  4. A living owner has one internal id, which is not retired. Retired ids stay in sets
//     until the sweep has passed, over those that a Loader keeps too, and are in no answer.
//  5. A line is used by one piece, one side or one list of intervals.
//  6. o.copies[block] is the number of extra copies, only above zero, of held blocks. Blocks
//     whose last event took a copy are held too.
//     Engine hashes with one key are copies of one block, unless one of them is the first block
//     of a prompt and another is a later one.
//  7. The block of a name has an owner or is a ghost. A name that is marked as entered is found by
//     probing, and the table of names has no other entry.
//  8. A link is the only one of its engine hash, and in both orders of the room; a
//     source has at most MaxOrphans links, and none when it holds nothing.
//  9. Until all blocks are named: the name of a block has an entry, or each source
//     that holds the block and uses the name lists the piece as unindexed, unless a second name of
//     a block came later, or two families met. The names of the first block of a piece have
//     entries. Once all blocks are named, each name has one.
//  10. A piece of another identity than the base one has its number, which is in use, and its
//     constant. Its blocks follow each other with the constant. The pieces of such an identity
//     and their blocks with an owner are counted.
//  11. A source holds no block under an engine hash that means another one to it, unless the hash is
//     contested. Once a hash means a block, what waits under it moves there.
//  12. Ghosts are counted. The queue has each block as often as it is stale there, and once more
//     if it is a ghost.
//  13. A lost name that is held is the key of a loose block.
//
// Concurrency: Match takes no lock but, for names, the small one of a segment of names. It
// waits for a writer only while the writer changes the piece, or the part of a table, at
// hand. Each piece has a version, odd while its blocks or their owners change. A piece
// counts the times that an owner lost blocks of it. The index counts the times that a held
// block moved or an owner was retired (turns). A query compares these counts at its end and
// asks again if one has changed. So its answer may be shorter than the truth, never longer
// than the truth of some moment while it ran. After eight tries it locks the index. Events
// of different sources run side by side as long as they are ordinary (lane.go). All other
// calls lock the index. No goroutine, no clock, no log.
//
// Callers: events of one source come one at a time. A caller begins a store or removal
// after the source's last one has returned. Callbacks must not call the index.
//
// Cost: a store or removal changes one interval per piece, and writes or clears one name
// per block that appears or disappears. A name with an entry costs two cache misses more. A
// search for a name without an entry looks through the unindexed pieces of one source
// (those that have names without entries): first 32 of them from where the last search
// ended, then all, the newest first, at most 32,768. A query costs a comparison per block
// and a cache miss or two per piece; with loose blocks in the index also a probe per block.
// Clear and DropSource cost nothing per block; answers change at once, memory comes back
// with the sweep; each later event does a part of it.
package index

import (
	"runtime"
	"sync"
	"sync/atomic"

	"example.com/conductor/index/hash"
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
	// MaxBytes is the most memory for blocks, sets and names, those of ghosts included, 0
	// for no limit. At the limit all ghosts go, then new blocks are refused: see bounds.go.
	MaxBytes int
	// Budget bounds the indexes that have it together; nil is no bound.
	Budget *Budget
	// WideBase says that client hashes of base prompts differ from local hashes.
	WideBase bool
	// KeepClientHashes keeps Store.ClientHashes, for Snapshot. Those that equal the local
	// hashes cost nothing.
	KeepClientHashes bool
	// Ghosts bounds the blocks without an owner that this index and others with the same
	// Ghosts keep for their names, once KeepGhosts was called. Nil keeps none.
	Ghosts *Ghosts
	// NameAll lets all names have entries from the beginning on, as Index.NameAllBlocks
	// does.
	NameAll bool
	// Agree reports whether two identities have in common what an event says of the first
	// one; if not, its blocks do not go behind a parent of the second one. Several events
	// may call it at a time, under locks of the index, so it must neither call the index
	// nor wait. Nil reports true.
	Agree func(says Says, a, b Identity) bool
	// Contradicts reports whether two meanings of an engine hash contradict each other; nil
	// is never. See contest.go.
	Contradicts func() bool
}

// Index is the blocks of one deployment. Create it with New. Each part knows only the parts
// before it, so every call runs from the top to the bottom.
//
// All parts lie in the one allocation of the Index, so the pointers from part to part cost
// no cache miss of their own.
type Index struct {
	tree     tree     // blocks by their place in chains, and who holds them
	names    nameMap  // blocks by engine hash, for all sources
	finder   finder   // blocks by engine hash, for one source, near what it mentioned last
	bounds   bounds   // how much memory all of it may take, and what goes first
	holders  holders  // sources and owners, and what they hold
	resolver resolver // what a hash means to a source, and disagreement about it

	maxOrphans    int
	checkpointing sync.Mutex // held while a checkpoint lasts
}

// source is a namespace of engine hashes and the owners that share it. Its lane guards it.
type source struct {
	name      Source
	lane      *lane
	owners    []*owner
	held      int          // memberships of all owners
	raw       bool         // some may be under an engine hash
	undecided bool         // of those, some may wait for their identity alone: see StoreResult.Undecided
	teaches   bool         // it announces tokens
	private   flat[uint64] // engine hash -> block, where it differs from what others mean
	room      waitingRoom
	work      []settledBlock // buffer of settle
	tail      position       // where the last loose block was stored
	unindexed unindexedList  // pieces with held blocks that have no entry in names
}

// owner is one holder.
type owner struct {
	name   Owner
	s      *source
	id     uint32 // internal
	digest Digest // of the blocks held, with the weight 1
	raw    int    // of them stored under an engine hash of unknown key; an estimate, see Stats
	copies copies
	last   chainMark     // where the last stored event ended
	gone   [2]trail      // where the last removals ended, the newest first
	tally  *atomic.Int64 // of the application, nil for none
	shared *SharedDigest // of the application, nil for none: see JoinDigest
	weight uint64        // in shared
	losses *Losses       // of the application, nil for none: see Note
	label  uint32        // in losses
}

// trail is where removals along a chain ended.
type trail struct {
	at     position
	rising bool // they go towards the end of the chain
}

// chainMark is a block and its key.
type chainMark struct {
	at   position
	key  uint64
	head uint64 // of the piece, as it was
	lost uint32
}

// countHeld counts blocks in, or out if negative. sum is that of their words. The
// application's counters are shared by several indexes, so they change here, where the
// difference is known, and are never summed up.
func (o *owner) countHeld(n, loose int, sum uint64) {
	o.digest.addBlocks(n, loose, sum)
	o.s.held += n
	if o.tally != nil {
		o.tally.Add(int64(n))
	}
	if o.shared != nil {
		o.shared.addBlocks(n, loose, o.weight*sum)
	}
}

// New returns an empty index.
func New(opts Options) *Index {
	x := &Index{maxOrphans: opts.MaxOrphans}
	if x.maxOrphans == 0 {
		x.maxOrphans = DefaultMaxOrphans
	}
	t, m := &x.tree, &x.names
	t.scheme, t.step = opts.Scheme, opts.Scheme.Stepper()
	t.keepsClientHashes, t.wide = opts.KeepClientHashes, opts.WideBase
	t.identities = newIdentities(opts.Agree)
	t.sets.initialize(1)
	t.lanes.laneBy.Store(new([]uint8))
	t.ids.Store(&ids{owner: make([]uint32, 64), retired: make([]uint64, 1)})

	m.tree, m.table, m.perEvent = t, &nameTable{}, portion{sweep: 16, naming: 16}
	// Large bucket arrays lie outside the Go heap, where the collector does not see them.
	runtime.AddCleanup(x, (*nameTable).clearAll, m.table)
	if opts.Ghosts != nil {
		m.ghosts.count = &ghostCount{of: opts.Ghosts}
	}
	if opts.NameAll {
		m.naming, m.full.always = allNamed, true
	}

	x.finder = finder{tree: t, names: m}
	x.bounds.tree, x.bounds.names, x.bounds.maxBytes = t, m, opts.MaxBytes
	// What the index takes counts until it is collected: queries may still read a dropped
	// one.
	if opts.Budget != nil {
		x.bounds.share = &budgetShare{of: opts.Budget}
		runtime.AddCleanup(x, func(s *budgetShare) { s.setBytes(0) }, x.bounds.share)
	}
	x.holders = holders{tree: t, names: m, finder: &x.finder, bounds: &x.bounds}
	x.resolver.tree, x.resolver.names, x.resolver.finder = t, m, &x.finder
	x.resolver.bounds, x.resolver.holders = &x.bounds, &x.holders
	x.resolver.contests.contradicts = opts.Contradicts
	return x
}

// NewSource returns a fresh namespace of engine hashes.
func (x *Index) NewSource() Source {
	x.lock()
	defer x.unlock()
	s := &source{name: Source(len(x.holders.sources))}
	s.lane = x.tree.lanes.laneOf(s.name)
	x.names.families.of = append(x.names.families.of, s.name)
	x.holders.sources = append(x.holders.sources, s)
	return s.name
}

// NewOwner returns a fresh owner whose blocks are named by src. An owner of a
// dropped source is born retired.
func (x *Index) NewOwner(src Source) Owner { return x.NewCountedOwner(src, nil) }

// NewCountedOwner is NewOwner with a number that changes with that of the blocks the
// owner holds. Owners may share one, also those of several indexes.
func (x *Index) NewCountedOwner(src Source, tally *atomic.Int64) Owner {
	x.lock()
	defer x.unlock()
	name := Owner(len(x.holders.owners))
	by := append(*x.tree.lanes.laneBy.Load(), uint8(src%lanes))
	x.tree.lanes.laneBy.Store(&by)
	s := x.holders.sources[src]
	if s == nil {
		x.holders.owners = append(x.holders.owners, nil)
		return name
	}
	o := &owner{name: name, s: s, tally: tally}
	x.holders.owners = append(x.holders.owners, o)
	x.holders.assignID(o)
	s.owners = append(s.owners, o)
	return name
}

// IsEmpty reports whether no block has an owner, and none waits.
func (x *Index) IsEmpty() bool {
	x.lock()
	defer x.unlock()
	for _, s := range x.holders.sources {
		if s != nil && (s.held > 0 || s.room.used > 0) {
			return false
		}
	}
	return true
}

// BlocksOf returns the number of blocks an owner holds, 0 when it is retired.
func (x *Index) BlocksOf(o Owner) int {
	x.lock()
	defer x.unlock()
	if own := x.holders.owners[o]; own != nil {
		return own.digest.Blocks
	}
	return 0
}

// zeroKey stands for the key and the engine hash 0, since 0 marks free entries.
const zeroKey = 0x7c15_9e37_79b9_7f4b

// normal replaces the hash 0, which marks free slots in all tables. A publisher that uses
// both 0 and zeroKey would mix two blocks up; with hashes of 64 bits that does not happen
// by chance, and by choice it harms the publisher's own blocks alone.
func normal(key uint64) uint64 {
	if key == 0 {
		return zeroKey
	}
	return key
}

// plain is the reverse of normal.
func plain(key uint64) uint64 {
	if key == zeroKey {
		return 0
	}
	return key
}
