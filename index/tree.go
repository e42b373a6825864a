package index

import (
	"sync/atomic"

	"example.com/conductor/index/hash"
)

// tree is the blocks of chains by their keys, in pieces, with the owner set of each stretch, and the loose
// blocks, whose place in a chain is not known. It is all that a query reads, apart from names. It knows neither
// engine hashes nor what owners are.
type tree struct {
	scheme            hash.Scheme
	step              hash.Stepper
	keepsClientHashes bool // Options.KeepClientHashes
	wide              bool // Options.WideBase

	lines  arena
	firsts table // key of the first block of a prompt -> piece
	heads  table // key of another block that begins a piece -> piece
	loose  table // key -> loose block
	sets   sets
	ids    atomic.Pointer[ids]

	identities *identities

	looseBlocks atomic.Int64               // loose blocks, with those that have no owner any more
	turns       atomic.Uint32              // how often a held block moved, or an owner was retired
	checkpoint  atomic.Pointer[Checkpoint] // nil for none

	lanes laneSet

	// Written while all lanes are locked.
	made       uint64            // blocks of chains made so far while all lanes were locked
	looseSides int               // lines of names of loose pieces
	places     map[uint64]uint64 // key -> block, of findPlace
}
