package index

import (
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

// class is a group of queries that a report shows apart.
type class uint8

// Classes of smg's benchmark; other streams have one class, ordinary.
const (
	ordinary class = iota
	oneHolder
	eightHolders
	manyHolders
	gate
	miss
	mixed
	classes
)

var classNames = [classes]string{"all", "H=1", "H=8", "H=64", "gate", "miss", "mixed"}

// op is one operation on consecutive blocks.
type op struct {
	kind      kind
	hasParent bool
	bare      bool  // of a store: without tokens, hence without local hashes and parent
	family    uint8 // of engine hashes; two families name the same block differently
	owner     uint32
	from, to  uint32 // of Stream.seq; of Stream.gone for a removal
	name      uint32 // where the blocks of a store begin in Stream.names
	class     class  // of a query
	parent    uint64 // name of the block before the first of a store
}

// Stream is the queries and events of a fleet, in order. It holds no pointers, so that the
// collector has no work with it.
type Stream struct {
	ops   []op
	seq   []uint64 // canonical hashes of chains
	local []uint64 // local hashes, parallel to seq
	ids   []int32  // blocks of prompts, parallel to seq; only kept for Wire
	gone  []uint64 // names of removed blocks
	names []uint64 // names of stored blocks; nil for seq itself

	owners  int  // numbered source*tiers + tier
	tiers   int  // owners of a source
	counted bool // an owner may hold copies of a block
	// load is how many operations come before the part in which writes are timed.
	load int
}

// Sizes count the operations of a stream.
type Sizes struct {
	Requests     int `json:"requests"`
	QueryBlocks  int `json:"query_blocks"`
	StoreBlocks  int `json:"store_blocks"`
	RemoveBlocks int `json:"remove_blocks"`
	HashOnly     int `json:"hash_only_blocks"` // of those stored and removed
}

func (z *Sizes) countOp(o *op) {
	n := int(o.to - o.from)
	switch o.kind {
	case query:
		z.Requests++
		z.QueryBlocks += n
	case store:
		z.StoreBlocks += n
	case remove:
		z.RemoveBlocks += n
	}
	if o.bare {
		z.HashOnly += n
	}
}

func (z *Sizes) written() int { return z.StoreBlocks + z.RemoveBlocks }

// countSizes counts all operations.
func (s *Stream) countSizes() (z Sizes) {
	for i := range s.ops {
		z.countOp(&s.ops[i])
	}
	return z
}

func (s *Stream) addQuery(p *prompts, chain []int32) (from uint32) {
	from = s.appendBlocks(p, chain)
	s.ops = append(s.ops, op{kind: query, from: from, to: from + uint32(len(chain))})
	return from
}

func (s *Stream) appendBlocks(p *prompts, ids []int32) (from uint32) {
	from = uint32(len(s.seq))
	for _, id := range ids {
		s.seq = append(s.seq, p.blocks[id].seq)
		s.local = append(s.local, p.blocks[id].local)
	}
	s.ids = append(s.ids, ids...)
	return from
}

// addStore announces blocks that lie in s.seq already; parent is -1 at the root.
func (s *Stream) addStore(p *prompts, t *tier, parent int32, from, to uint32) {
	o := op{kind: store, owner: uint32(t.owner), family: t.family, bare: t.bare, from: from, to: to, name: from}
	if parent >= 0 && !t.bare {
		o.hasParent, o.parent = true, p.blocks[parent].seq
	}
	s.ops = append(s.ops, o)
}

// storeRuns announces blocks of any chains, parents before children: one
// operation for each stretch in which every block follows its parent.
func (s *Stream) storeRuns(p *prompts, t *tier, ids []int32) {
	for len(ids) > 0 {
		n := 1
		for n < len(ids) && p.blocks[ids[n]].parent == ids[n-1] {
			n++
		}
		from := s.appendBlocks(p, ids[:n])
		s.addStore(p, t, p.blocks[ids[0]].parent, from, from+uint32(n))
		ids = ids[n:]
	}
}

func (s *Stream) addRemoval(p *prompts, t *tier, ids []int32) {
	from := uint32(len(s.gone))
	for _, id := range ids {
		s.gone = append(s.gone, p.blocks[id].seq)
	}
	s.ops = append(s.ops, op{kind: remove, owner: uint32(t.owner), family: t.family, bare: t.bare, from: from, to: uint32(len(s.gone))})
}

// namesOf returns the names of the blocks of a store.
func (s *Stream) namesOf(o *op) []uint64 {
	if s.names == nil {
		return s.seq[o.from:o.to]
	}
	return s.names[o.name : o.name+o.to-o.from]
}

// withEngineHashes returns the stream with the engines' own hashes in the place of canonical ones.
func (s *Stream) withEngineHashes() *Stream {
	n := *s
	n.ops = slices.Clone(s.ops)
	n.gone = slices.Clone(s.gone)
	one := !slices.ContainsFunc(s.ops, func(o op) bool { return o.family != s.ops[0].family })
	if one {
		n.names = make([]uint64, len(s.seq))
		for i, k := range s.seq {
			n.names[i] = engineHash(k, s.ops[0].family)
		}
	} else {
		n.names = []uint64{}
	}
	for i := range n.ops {
		o := &n.ops[i]
		switch o.kind {
		case store:
			o.parent = engineHash(o.parent, o.family)
			if o.name = o.from; one {
				break
			}
			o.name = uint32(len(n.names))
			for _, k := range s.seq[o.from:o.to] {
				n.names = append(n.names, engineHash(k, o.family))
			}
		case remove:
			for j := o.from; j < o.to; j++ {
				n.gone[j] = engineHash(n.gone[j], o.family)
			}
		}
	}
	return &n
}

// engineHash returns an engine's own hash of a block; a bijection for each family.
func engineHash(seq uint64, family uint8) uint64 { return mix(seq ^ (uint64(family)+1)*golden) }

// golden is the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// mix is the output function of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// synthesizeStream stores every family at its holders, holder by holder, replaces the oldest
// families by new ones for Config.Churn blocks, and then asks for held families in random
// order.
func synthesizeStream(c *Config) *Stream {
	p := makeFamilies(c.Synthetic+c.Churn, c.BlockSize)
	s := &Stream{owners: c.Workers, tiers: 1}
	r := rand.New(rand.NewPCG(c.Seed, 2))
	type family struct {
		from, to uint32
		holders  []int32
	}
	families := make([]family, len(p.chains))
	for i, chain := range p.chains {
		from := s.appendBlocks(p, chain)
		families[i] = family{from, from + uint32(len(chain)), drawNumbers(r, c.Workers, c.Holders)}
	}
	at := func(f *family, h int) *tier {
		return &tier{owner: int(f.holders[h]), family: uint8(int(f.holders[h]) % c.HashSeeds)}
	}
	held := (c.Synthetic + depth - 1) / depth
	for h := range c.Holders {
		for i := range families[:held] {
			s.addStore(p, at(&families[i], h), -1, families[i].from, families[i].to)
		}
	}
	s.load = len(s.ops)
	oldest := 0
	for i := held; i < len(families); i++ {
		for h := range c.Holders {
			tail := slices.Clone(p.chains[oldest])
			slices.Reverse(tail)
			s.addRemoval(p, at(&families[oldest], h), tail)
			s.addStore(p, at(&families[i], h), -1, families[i].from, families[i].to)
		}
		oldest++
	}
	const queries = 200_000
	for range min(queries, 4*held) {
		f := families[oldest+r.IntN(held)]
		s.ops = append(s.ops, op{kind: query, from: f.from, to: f.to})
	}
	return s
}

// drawNumbers returns k different numbers below n.
func drawNumbers(r *rand.Rand, n, k int) []int32 {
	out := make([]int32, 0, k)
	for len(out) < k {
		if v := int32(r.IntN(n)); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
