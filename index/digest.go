package index

import (
	"math/bits"
	"sync/atomic"
)

// Digest summarises the blocks that owners hold. It depends neither on the order in which
// blocks came, nor on names, nor on how pieces are cut. So two indexes with the same blocks
// have the same digest.
//
// Blocks of different identities may have the same words, and weights tell them apart
// (SetWeight).
//
// The word of a block in a chain is its local hash, which the piece has at hand, and of a
// loose block a mix of its key. A block that gets a place in a chain changes its word. The
// sum does not tell blocks with the same tokens apart that stand behind different parents.
// A key would, but costs a hash for each block that a removal or a shared piece mentions.
type Digest struct {
	Blocks int    // memberships
	Loose  int    // memberships of loose blocks, which may get a place when others teach it
	Sum    uint64 // of the words, modulo 2^64; each times the weights of its owner and its identity
}

// addBlocks counts blocks in, or out if negative.
func (d *Digest) addBlocks(blocks, loose int, sum uint64) {
	d.Blocks += blocks
	d.Loose += loose
	d.Sum += sum
}

// SharedDigest is the digest of owners of one or several indexes. An event may also move
// loose blocks of other sources, so the numbers are atomic. A reader may see a move half
// done.
type SharedDigest struct {
	blocks, loose atomic.Int64
	sum           atomic.Uint64
}

// Load returns the digest.
func (d *SharedDigest) Load() Digest {
	return Digest{int(d.blocks.Load()), int(d.loose.Load()), d.sum.Load()}
}

// addBlocks counts blocks in, or out if negative. Loose ones are rare, so their word is
// left alone unless it changes.
func (d *SharedDigest) addBlocks(blocks, loose int, sum uint64) {
	d.blocks.Add(int64(blocks))
	d.sum.Add(sum)
	if loose != 0 {
		d.loose.Add(int64(loose))
	}
}

// Digest returns the digest of one owner with the weight 1. A retired owner holds nothing.
// No event of the owner's source may run.
func (x *Index) Digest(o Owner) (d Digest) {
	l := x.tree.lanes.laneOfOwner(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	if own := x.holders.owners[o]; own != nil {
		d = own.digest
	}
	return d
}

// JoinDigest makes the digest of an owner a part of d, times an odd weight, instead of the
// one that it was in. With nil, the owner is in none.
//
// What the owner holds moves from one sum to the other as a whole. It is read and moved
// under the owner's lane, so no event changes it between.
func (x *Index) JoinDigest(d *SharedDigest, o Owner, weight uint64) {
	l := x.tree.lanes.laneOfOwner(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	own := x.holders.owners[o]
	if own == nil {
		return
	}
	if have := own.digest; own.shared != nil {
		own.shared.addBlocks(-have.Blocks, -have.Loose, -own.weight*have.Sum)
	}
	own.shared, own.weight = d, weight
	if have := own.digest; d != nil {
		d.addBlocks(have.Blocks, have.Loose, weight*have.Sum)
	}
}

// looseWord is the word of a loose block. Unlike mix it is the same in every process.
func looseWord(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// looseWord returns the word of a block of a loose piece. It does not depend on the
// constant.
func (r *piece) looseWord(at uint32) uint64 {
	if r.meta&isOther != 0 {
		return looseWord(normal(r.chainIdentity().seqOf(r.localHashes()[at])))
	}
	return looseWord(r.localHashes()[at])
}

// sumWords returns the sum of the words of some blocks, and how many of them are loose.
//
// A run of neighbours, the usual case, is a plain loop that the compiler keeps free of bit
// scans.
func (r *piece) sumWords(blocks uint64) (sum uint64, loose int) {
	l := r.localHashes()
	if r.loose() {
		for w := blocks; w != 0; w &= w - 1 {
			sum += r.looseWord(lowestBit(w))
		}
		return sum, bits.OnesCount64(blocks)
	}
	if lo, hi := lowestBit(blocks), uint32(bits.Len64(blocks)); blocks == spanOf(lo, hi) {
		for _, word := range l[lo:hi] {
			sum += word
		}
		return sum, 0
	}
	for w := blocks; w != 0; w &= w - 1 {
		sum += l[lowestBit(w)]
	}
	return sum, 0
}
