// Package truth records the blocks that every engine and every pool of a fleet really
// holds, and computes the correct answer from them.
//
//	          root
//	         /    \
//	     [0..15] [0..15]'        one node per distinct window, a block each
//	       /  \
//	[16..31] [16..31]'           held[node][engine] = device | host | disk
//
// Behind the engines' columns of held are those of pools. A block of a
// pool counts for every engine's instance.
//
// The window of a block is its tokens and, in a tree with a look-ahead, that many tokens
// behind them. Engines with a drafter tell blocks apart by their windows, so a block
// whose window a prompt does not fill is no part of that prompt.
//
// Blocks are found by comparing windows, level by level; the keys of the edges
// are content hashes of this package's own making and every hit is verified
// against the tokens. Nothing here shares code with the index under test.
//
// Invariants
//  1. A node lives while an engine or a pool holds it, a request pins it, or a child lives.
//  2. Two children of one node differ in their windows.
//  3. An identity is reused only after its node died.
//
// Concurrency: none; the owner of the Tree guards it.
//
// Cost: O(1) map probe and one comparison of block tokens per block walked.
package truth

import (
	"fmt"
	"slices"
)

// ID names one block together with everything before it. Root is no block.
type ID int32

// Root is the parent of every first block.
const Root ID = 0

// Tier is a set of tiers, one bit each.
type Tier uint8

const (
	Device Tier = 1 << iota
	Host
	Disk
)

// String returns the name of a single tier.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	case Disk:
		return "disk"
	}
	return fmt.Sprintf("tiers(%03b)", uint8(t))
}

// Tree holds the prefix blocks that are alive, with their holders.
type Tree struct {
	block   int // tokens per block
	window  int // tokens that name a block: its own and its look-ahead
	engines int // columns of held that are engines
	columns int // all of them: engines, then pools

	nodes  []node
	held   []Tier   // node*columns + column
	tokens []uint32 // node*window ..., the window of the block
	edges  map[edge]ID
	free   []ID
}

type node struct {
	parent  ID
	refs    int32 // children + holders with any tier + pins
	content uint64
}

type edge struct {
	parent  ID
	content uint64
}

// New returns an empty tree for engines with a common block size and a common look-ahead,
// both in tokens, and for pools that serve all of them. The columns of the engines are 0 and
// up, those of the pools engines and up.
func New(blockSize, ahead, engines, pools int) *Tree {
	t := &Tree{
		block: blockSize, window: blockSize + ahead,
		engines: engines, columns: engines + pools,
		edges: make(map[edge]ID),
	}
	t.grow() // the root
	t.nodes[Root].refs = 1
	return t
}

// BlockSize returns tokens per block.
func (t *Tree) BlockSize() int { return t.block }

// Ahead returns the tokens behind a block that are part of its window.
func (t *Tree) Ahead() int { return t.window - t.block }

// Len returns the number of living blocks.
func (t *Tree) Len() int { return len(t.edges) }

// Parent returns the block before id.
func (t *Tree) Parent(id ID) ID { return t.nodes[id].parent }

// Tokens returns the tokens of the block; read only, valid until id dies.
func (t *Tree) Tokens(id ID) []uint32 { return t.windowOf(id)[:t.block:t.block] }

// AheadTokens returns the look-ahead of the block, Ahead tokens; read only,
// valid until id dies.
func (t *Tree) AheadTokens(id ID) []uint32 { return t.windowOf(id)[t.block:] }

func (t *Tree) windowOf(id ID) []uint32 {
	at := int(id) * t.window
	return t.tokens[at : at+t.window : at+t.window]
}

// Walk appends to path the known blocks of a prompt, from the first block on.
// Tokens at the end of a prompt that fill no window are ignored.
func (t *Tree) Walk(prompt []uint32, path []ID) []ID {
	at := Root
	for ; len(prompt) >= t.window; prompt = prompt[t.block:] {
		next, ok := t.child(at, prompt[:t.window], fingerprint(prompt[:t.window]))
		if !ok {
			break
		}
		path = append(path, next)
		at = next
	}
	return path
}

// Intern appends to path all blocks whose window a prompt fills, making the unknown ones,
// and pins the last of them. The caller calls Unpin(last) exactly once when
// the path is not empty.
func (t *Tree) Intern(prompt []uint32, path []ID) []ID {
	at := Root
	for ; len(prompt) >= t.window; prompt = prompt[t.block:] {
		window := prompt[:t.window]
		content := fingerprint(window)
		next, ok := t.child(at, window, content)
		if !ok {
			next = t.add(at, window, content)
		}
		path = append(path, next)
		at = next
	}
	if at != Root {
		t.nodes[at].refs++
	}
	return path
}

// Pin keeps a living block alive until Unpin.
func (t *Tree) Pin(id ID) { t.nodes[id].refs++ }

// Unpin takes back one Pin, or the pin of Intern.
func (t *Tree) Unpin(id ID) { t.release(id) }

// Set records that an engine, or pool, holds the block on a tier; false if it
// already did.
func (t *Tree) Set(id ID, holder int, tier Tier) bool {
	h := &t.held[int(id)*t.columns+holder]
	if *h&tier != 0 {
		return false
	}
	if *h == 0 {
		t.nodes[id].refs++
	}
	*h |= tier
	return true
}

// Unset records that a holder no longer holds the block on a tier; false if
// it did not. The block may die.
func (t *Tree) Unset(id ID, holder int, tier Tier) bool {
	h := &t.held[int(id)*t.columns+holder]
	if *h&tier == 0 {
		return false
	}
	*h &^= tier
	if *h == 0 {
		t.release(id)
	}
	return true
}

// Held returns the tiers on which a holder has the block.
func (t *Tree) Held(id ID, holder int) Tier { return t.held[int(id)*t.columns+holder] }

// Pooled returns the tiers on which some pool has the block.
func (t *Tree) Pooled(id ID) (tiers Tier) {
	for _, h := range t.held[int(id)*t.columns+t.engines : int(id+1)*t.columns] {
		tiers |= h
	}
	return tiers
}

// Each calls f for every living block a holder has.
func (t *Tree) Each(holder int, f func(ID, Tier)) {
	for id := 1; id < len(t.nodes); id++ {
		if h := t.held[id*t.columns+holder]; h != 0 {
			f(ID(id), h)
		}
	}
}

// Path returns the shortest prompt whose last block is id: the tokens of the whole
// prefix, and the look-ahead of its last block.
func (t *Tree) Path(id ID) []uint32 {
	var ids []ID
	last := id
	for ; id != Root; id = t.nodes[id].parent {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	tokens := make([]uint32, 0, len(ids)*t.block+t.Ahead())
	for _, id := range slices.Backward(ids) {
		tokens = append(tokens, t.Tokens(id)...)
	}
	return append(tokens, t.AheadTokens(last)...)
}

func (t *Tree) child(parent ID, window []uint32, content uint64) (ID, bool) {
	id, ok := t.edges[edge{parent, content}]
	if ok && !slices.Equal(t.windowOf(id), window) {
		panic(fmt.Sprintf("BUG: two blocks under parent %d share the fingerprint %x", parent, content))
	}
	return id, ok
}

func (t *Tree) add(parent ID, window []uint32, content uint64) ID {
	var id ID
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		id = t.grow()
	}
	t.nodes[id] = node{parent: parent, content: content}
	t.nodes[parent].refs++
	copy(t.windowOf(id), window)
	t.edges[edge{parent, content}] = id
	return id
}

func (t *Tree) grow() ID {
	id := ID(len(t.nodes))
	t.nodes = append(t.nodes, node{})
	t.held = append(t.held, make([]Tier, t.columns)...)
	t.tokens = append(t.tokens, make([]uint32, t.window)...)
	return id
}

func (t *Tree) release(id ID) {
	for id != Root {
		n := &t.nodes[id]
		if n.refs--; n.refs > 0 {
			return
		}
		if n.refs < 0 {
			panic(fmt.Sprintf("BUG: block %d released more often than taken", id))
		}
		delete(t.edges, edge{n.parent, n.content})
		t.free = append(t.free, id)
		id = n.parent
	}
}

// fingerprint mixes the tokens of one window. It only has to tell siblings apart.
func fingerprint(tokens []uint32) uint64 {
	h := uint64(len(tokens)) * 0x9e3779b97f4a7c15
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}
