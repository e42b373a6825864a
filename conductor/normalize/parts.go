package normalize

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"

	"example.com/conductor/events"
	"example.com/conductor/tiers"
)

// A publisher may announce blocks of several times the registered size: vLLM with
// context parallelism, a hybrid model's groups, LMCache's chunks. Such a block is
// indexed as parts of the registered size. Its hash names the last part, so that
// its children follow; the parts before it get names of their own:
//
//	published   |---- h, 64 tokens ----|---- i ----|
//	indexed     | h:3 | h:2 | h:1 |  h |  ...      |     registered: 16 tokens

// MaxParts is how many parts a block may have: those of a chunk of 4,096 tokens in blocks
// of 16.
const MaxParts = 256

// PartName returns the name of the part that ends n parts before the end of block h.
func PartName(h uint64, n int) uint64 {
	var b [10]byte
	binary.LittleEndian.PutUint64(b[:], h)
	binary.LittleEndian.PutUint16(b[8:], uint16(n))
	return xxh3.Hash(b[:])
}

// partsOf returns into how many registered blocks each block of a stored event is cut: 1 if the sizes agree. If the tokens
// do not make whole parts, it returns the reason to leave the event out.
func partsOf(e *events.Event, size int) (int, events.Reason) {
	if e.Envelope || e.BlockSize == 0 || e.BlockSize == size || len(e.Tokens) == 0 {
		return 1, ""
	}
	n := e.BlockSize / size
	switch {
	case n == 0:
		return 0, events.PartialBlock
	case e.BlockSize%size != 0 || n > MaxParts:
		return 0, events.BlockSizeMismatch
	}
	return n, ""
}

// chunkOf returns how many registered blocks each hash of a stored event without tokens stands for, 0 if the
// event does not say. An engine names a chunk of several blocks by the hash of the last one. Below the device,
// newer releases of vLLM say 0 instead of the size; on the device a hash without a size is that of one block.
func (n *Normalizer) chunkOf(e *events.Event, tier tiers.Tier, size int) int {
	switch {
	case n.opts.Pool || e.Envelope || e.BlockSize%size != 0 || e.BlockSize > size*MaxParts:
		return 1
	case e.BlockSize == 0 && tier == tiers.Device:
		return 1
	}
	return e.BlockSize / size
}

// isDescribedChunk reports whether a stored event is about a chunk whose blocks it lists. So vLLM's OffloadingConnector announces
// chunks of full attention with self_describing_kv_events: an event for each, with the engine's own blocks in it. Nothing else
// announces several blocks in an event with a kind below the device.
func isDescribedChunk(e *events.Event, tier tiers.Tier) bool {
	return tier != tiers.Device && e.GroupKind != "" && !e.Owned && !e.Envelope && e.Joined == 0 && len(e.Hashes) > 1 &&
		len(e.Tokens) == len(e.Hashes)*e.BlockSize+e.Ahead
}

// PartNames returns the names of the parts of blocks of n parts each.
func PartNames(hashes []uint64, n int) []uint64 {
	names := make([]uint64, 0, n*len(hashes))
	for _, h := range hashes {
		for i := n - 1; i > 0; i-- {
			names = append(names, PartName(h, i))
		}
		names = append(names, h)
	}
	return names
}

// splitBlocks returns a stored event with every block cut into n parts.
func splitBlocks(e *events.Event, n int) *events.Event {
	cut := *e
	cut.BlockSize /= n
	cut.Hashes = PartNames(e.Hashes, n)
	if e.Items != nil { // which part has an item is not known: all do
		cut.Items = make([][]uint64, 0, n*len(e.Items))
		for _, items := range e.Items {
			cut.Items = append(cut.Items, slices.Repeat([][]uint64{items}, n)...)
		}
	}
	return &cut
}

// MaxLookAheads is how many different look-aheads a source may announce in one epoch. An
// engine has one, and begins a new epoch when it restarts.
const MaxLookAheads = 4

// checkLookAhead remembers the look-ahead of a stored event. It returns the reason to leave the event out if the source has
// announced too many different ones.
func (n *Normalizer) checkLookAhead(e *events.Event) events.Reason {
	set := n.lookAheads | 1<<e.Ahead
	if bits.OnesCount64(set) > MaxLookAheads {
		return events.TooManyLookAheads
	}
	n.lookAheads = set
	return ""
}
