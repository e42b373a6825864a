package bench

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// kind of an operation.
type kind uint8

const (
	query kind = iota
	store
	remove
)

// op is one operation on consecutive blocks.
type op struct {
	kind      kind
	hasParent bool
	owner     uint32 // worker*tiers + tier
	from, to  uint32 // of Stream.seq; of Stream.gone for a removal
	name      uint32 // where the blocks of a store begin in Stream.names
	parent    uint64 // name of the block before the first of a store
}

// Stream is what a fleet asks and announces, in order. It holds no pointers, so
// that the collector has nothing to do with it.
type Stream struct {
	ops   []op
	seq   []uint64 // canonical hashes of chains
	local []uint64 // local hashes, parallel to seq
	ids   []int32  // blocks of prompts, parallel to seq; only kept for Wire
	gone  []uint64 // names of removed blocks
	names []uint64 // names of stored blocks; seq itself with canonical hashes

	owners int
	tiers  int
	// Load is how many operations come before the queries of a synthetic load.
	load int
	Size Sizes
}

// Sizes count what is in a stream.
type Sizes struct {
	Requests     int `json:"requests"`
	QueryBlocks  int `json:"query_blocks"`
	StoreBlocks  int `json:"store_blocks"`
	RemoveBlocks int `json:"remove_blocks"`
	UniqueBlocks int `json:"unique_blocks"` // over all prompts, held or not
}

func (s *Stream) query(p *prompts, chain []int32) (from uint32) {
	from = s.append(p, chain)
	s.ops = append(s.ops, op{kind: query, from: from, to: from + uint32(len(chain))})
	s.Size.Requests++
	s.Size.QueryBlocks += len(chain)
	return from
}

func (s *Stream) append(p *prompts, ids []int32) (from uint32) {
	from = uint32(len(s.seq))
	for _, id := range ids {
		s.seq = append(s.seq, p.blocks[id].seq)
		s.local = append(s.local, p.blocks[id].local)
	}
	s.ids = append(s.ids, ids...)
	return from
}

// store announces blocks that lie in s.seq already; parent is -1 at the root.
func (s *Stream) store(p *prompts, owner int, parent int32, from, to uint32) {
	o := op{kind: store, owner: uint32(owner), from: from, to: to, name: from}
	if parent >= 0 {
		o.hasParent, o.parent = true, p.blocks[parent].seq
	}
	s.ops = append(s.ops, o)
	s.Size.StoreBlocks += int(to - from)
}

// storeRuns announces blocks of any chains, parents before children: one
// operation for each stretch in which every block follows its parent.
func (s *Stream) storeRuns(p *prompts, owner int, ids []int32) {
	for len(ids) > 0 {
		n := 1
		for n < len(ids) && p.blocks[ids[n]].parent == ids[n-1] {
			n++
		}
		from := s.append(p, ids[:n])
		s.store(p, owner, p.blocks[ids[0]].parent, from, from+uint32(n))
		ids = ids[n:]
	}
}

func (s *Stream) remove(p *prompts, owner int, ids []int32) {
	if len(ids) == 0 {
		return
	}
	from := uint32(len(s.gone))
	for _, id := range ids {
		s.gone = append(s.gone, p.blocks[id].seq)
	}
	s.ops = append(s.ops, op{kind: remove, owner: uint32(owner), from: from, to: uint32(len(s.gone))})
	s.Size.RemoveBlocks += len(ids)
}

// named returns the stream with the engines' own hashes in the place of canonical
// ones; workers w and v hash alike when w and v leave the same rest by seeds.
func (s *Stream) named(seeds int) *Stream {
	n := *s
	n.ops = slices.Clone(s.ops)
	n.gone = slices.Clone(s.gone)
	n.names = nil
	if seeds == 1 {
		n.names = make([]uint64, len(s.seq))
		for i, k := range s.seq {
			n.names[i] = name(k, 0)
		}
	}
	for i := range n.ops {
		o := &n.ops[i]
		seed := uint64(int(o.owner) / s.tiers % seeds)
		switch o.kind {
		case store:
			o.parent = name(o.parent, seed)
			if seeds == 1 {
				break
			}
			o.name = uint32(len(n.names))
			for _, k := range s.seq[o.from:o.to] {
				n.names = append(n.names, name(k, seed))
			}
		case remove:
			for j := o.from; j < o.to; j++ {
				n.gone[j] = name(n.gone[j], seed)
			}
		}
	}
	return &n
}

// name is an engine's own hash of a block; a bijection for each seed.
func name(seq, seed uint64) uint64 {
	h := seq ^ (seed+1)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// print is a fingerprint of all operations.
func (s *Stream) print() uint64 {
	h := fnv.New64a()
	var b [8]byte
	put := func(v uint64) {
		for i := range b {
			b[i] = byte(v >> (8 * i))
		}
		h.Write(b[:])
	}
	for _, o := range s.ops {
		put(uint64(o.kind)<<32 | uint64(o.owner))
		put(o.parent)
		switch o.kind {
		case remove:
			for _, k := range s.gone[o.from:o.to] {
				put(k)
			}
		case store:
			for i := range o.to - o.from {
				put(s.names[o.name+i])
			}
			fallthrough
		case query:
			for i := o.from; i < o.to; i++ {
				put(s.seq[i])
				put(s.local[i])
			}
		}
	}
	return h.Sum64()
}

// synthesize stores every family at its holders, holder by holder, and then asks
// for families in random order.
func synthesize(c *Config) *Stream {
	p := synthetic(c.Synthetic, c.BlockSize)
	s := &Stream{owners: c.owners(), tiers: 1}
	s.Size.UniqueBlocks = len(p.blocks)
	r := rand.New(rand.NewPCG(c.Seed, 2))
	type family struct {
		from, to uint32
		holders  []int32
	}
	families := make([]family, len(p.chains))
	for i, chain := range p.chains {
		from := s.append(p, chain)
		families[i] = family{from, from + uint32(len(chain)), sample(r, c.Workers, c.Holders)}
	}
	for h := range c.Holders {
		for _, f := range families {
			s.store(p, int(f.holders[h]), -1, f.from, f.to)
		}
	}
	s.load = len(s.ops)
	const queries = 200_000
	for range min(queries, 4*len(families)) {
		f := families[r.IntN(len(families))]
		s.ops = append(s.ops, op{kind: query, from: f.from, to: f.to})
		s.Size.Requests++
		s.Size.QueryBlocks += int(f.to - f.from)
	}
	s.names = s.seq
	return s
}

// sample returns k different numbers below n.
func sample(r *rand.Rand, n, k int) []int32 {
	out := make([]int32, 0, k)
	for len(out) < k {
		if v := int32(r.IntN(n)); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
