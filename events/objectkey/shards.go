package objectkey

import (
	"fmt"
	"strings"
)

// A Pool is the caller's number for one place objects are kept in: an endpoint,
// a backend and a tenant. A Tier is its number for a medium. A Number is that of a
// known block; another block may get it once the block is forgotten.
type (
	Pool   uint32
	Tier   uint8
	Number uint32
)

// Completeness is which of its objects make a block count.
type Completeness uint8

const (
	All Completeness = iota // every shard that any block of the kind has had in the pool, and as many as the layout in the keys has
	Any                     // one
)

// String returns the name in settings: all or any.
func (c Completeness) String() string {
	if c == Any {
		return "any"
	}
	return "all"
}

// ParseCompleteness is the reverse of String.
func ParseCompleteness(name string) (Completeness, error) {
	for _, c := range []Completeness{All, Any} {
		if name == c.String() {
			return c, nil
		}
	}
	return All, fmt.Errorf("completeness is all or any, not %q", name)
}

// Block is one block on one tier of a pool.
type Block struct {
	Pool Pool
	Tier Tier
	Kind *Kind // shared, not to be changed
	Hash uint64
	Rest uint64 // tells digests apart that share Hash
}

// Shards knows the shards of each block that are there, and says so when a block
// becomes whole or ceases to be.
//
//	(pool, kind) -> shards seen, numbered    map[Shard]int
//	             -> block -> shards there    map[member]*set, a bit a number
//
// Invariants:
//
//  1. A block is known while one of its shards is there, a kind while one of its
//     blocks is. What a kind was seen to consist of is forgotten with its last
//     block, not before: shards that left under pressure are still missed.
//  2. Reports of a block alternate, and begin with it being whole. Whole is counted
//     per tier: keys on one and values on another are whole on neither.
//  3. Held objects are counted in bytes. At the limit Add refuses what needs
//     more, and changes nothing.
//  4. numbered holds every known block at its number, nil at the numbers in free.
//
// Not for concurrent use. Adding and removing cost a few map lookups, but for a
// shard that is new, which costs a look at the kind's blocks: those
// that were whole are no more.
type Shards struct {
	need   Completeness
	limit  int64
	held   int64
	blocks int
	counts int // of blocks, those that are whole
	report func(b Block, whole bool)
	kinds  map[poolKind]*members

	numbered []*set
	free     []Number
}

type poolKind struct {
	pool Pool
	kind Kind
}

// members are the blocks of a kind in a pool.
type members struct {
	kind   Kind
	least  int // shards that a block has, as far as keys say it
	number map[Shard]int
	sets   map[member]*set
	whole  int
}

type member struct {
	hash, rest uint64
	tier       Tier
}

// set is a known block: the numbers of its shards that are there.
type set struct {
	first  uint64
	more   []uint64
	size   int32
	number Number
	old    bool // no object of it was added since the last Age
}

// What things cost, about: twice the payload, for maps and slices are half empty.
const (
	kindBytes  = 2 * 512
	shardBytes = 2 * 48
	blockBytes = 2*(24+8) + 48 + 2*(8+4) // member and pointer, set, number and place in free
	wordBytes  = 8
)

// NewShards returns an empty one that holds up to limit bytes. report is called
// from Add, Remove, Clear and Age, and must not call back.
func NewShards(need Completeness, limit int64, report func(b Block, whole bool)) *Shards {
	return &Shards{need: need, limit: limit, report: report, kinds: make(map[poolKind]*members)}
}

// Len is how many blocks have a shard there, Bytes about what they take.
func (s *Shards) Len() int     { return s.blocks }
func (s *Shards) Bytes() int64 { return s.held }

// Incomplete is how many of the blocks lack a shard, each tier for itself.
func (s *Shards) Incomplete() int { return s.blocks - s.counts }

// Add takes one object and returns the number of its block. It reports false where
// there is no room for it. Adding an object again changes no count.
func (s *Shards) Add(pool Pool, tier Tier, k *Key) (Number, bool) {
	at := poolKind{pool, k.Kind}
	who := memberOf(tier, k)
	m := s.kinds[at]
	var in *set
	n, known := 0, false
	cost := int64(0)
	if m == nil {
		cost += k.Kind.countBytes()
	} else {
		n, known = m.number[k.Shard]
		if !known {
			n = len(m.number)
		}
		in = m.sets[who]
	}
	if !known {
		cost += shardBytes
	}
	if in == nil {
		cost += blockBytes + int64(n/64)*wordBytes
	} else {
		cost += int64(max(0, n/64-len(in.more))) * wordBytes
	}
	if s.held+cost > s.limit {
		return 0, false
	}
	s.held += cost

	if m == nil {
		m = &members{kind: k.Kind.cloneText(), least: k.leastShards(), number: make(map[Shard]int), sets: make(map[member]*set)}
		s.kinds[poolKind{pool, m.kind}] = m
	}
	if !known {
		s.numberShard(pool, m, k.Shard)
	}
	if in == nil {
		in = &set{number: s.newNumber()}
		s.numbered[in.number] = in
		m.sets[who] = in
		s.blocks++
	}
	in.old = false
	if before := s.isWhole(m, in); in.addShard(n) && !before && s.isWhole(m, in) {
		s.reportTurn(pool, m, who, true)
	}
	return in.number, true
}

// KnowsBlock reports whether the block with this number is known.
func (s *Shards) KnowsBlock(n Number) bool { return int(n) < len(s.numbered) && s.numbered[n] != nil }

// Remove takes one object away; one that is not there changes nothing.
func (s *Shards) Remove(pool Pool, tier Tier, k *Key) {
	at := poolKind{pool, k.Kind}
	m := s.kinds[at]
	if m == nil {
		return
	}
	who := memberOf(tier, k)
	n, known := m.number[k.Shard]
	in := m.sets[who]
	if !known || in == nil {
		return
	}
	if before := s.isWhole(m, in); in.dropShard(n) && before && !s.isWhole(m, in) {
		s.reportTurn(pool, m, who, false)
	}
	if in.size == 0 {
		s.forgetBlock(m, who, in)
		s.pruneKind(at, m)
	}
}

// EachWhole calls f for every block that counts.
func (s *Shards) EachWhole(f func(Block)) {
	for at, m := range s.kinds {
		for who, in := range m.sets {
			if s.isWhole(m, in) {
				f(Block{Pool: at.pool, Tier: who.tier, Kind: &m.kind, Hash: who.hash, Rest: who.rest})
			}
		}
	}
}

// EachWithHash calls f for each block with a hash: how many of its shards are there, and how many are
// known. It walks all blocks.
func (s *Shards) EachWithHash(hash uint64, f func(b Block, have, want int)) {
	for at, m := range s.kinds {
		for who, in := range m.sets {
			if who.hash == hash {
				f(Block{Pool: at.pool, Tier: who.tier, Kind: &m.kind, Hash: who.hash, Rest: who.rest}, int(in.size), m.want())
			}
		}
	}
}

// RemoveWhere takes away what goes.
func (s *Shards) RemoveWhere(goes func(Pool, Tier) bool) {
	for at, m := range s.kinds {
		for who, in := range m.sets {
			if goes(at.pool, who.tier) {
				s.removeBlock(at.pool, m, who, in)
			}
		}
		s.pruneKind(at, m)
	}
}

// ForgetStale forgets the blocks on the tiers that ages names, unless Add met one of
// their objects since the Age before.
func (s *Shards) ForgetStale(ages func(Tier) bool) {
	for at, m := range s.kinds {
		for who, in := range m.sets {
			if !ages(who.tier) {
				continue
			}
			if in.old {
				s.removeBlock(at.pool, m, who, in)
			}
			in.old = true
		}
		s.pruneKind(at, m)
	}
}

// removeBlock takes away all shards of a block.
func (s *Shards) removeBlock(pool Pool, m *members, who member, in *set) {
	if s.isWhole(m, in) {
		s.reportTurn(pool, m, who, false)
	}
	s.forgetBlock(m, who, in)
}

// numberShard numbers a shard of a kind that no block has had.
func (s *Shards) numberShard(pool Pool, m *members, shard Shard) {
	if s.need == All && m.whole > 0 {
		for who, in := range m.sets {
			if s.isWhole(m, in) {
				s.reportTurn(pool, m, who, false)
			}
		}
	}
	m.number[shard] = len(m.number)
}

func (s *Shards) isWhole(m *members, in *set) bool {
	if s.need == Any {
		return in.size > 0
	}
	return int(in.size) == m.want()
}

// want returns how many shards a whole block has.
func (m *members) want() int { return max(m.least, len(m.number)) }

func (s *Shards) reportTurn(pool Pool, m *members, who member, whole bool) {
	if whole {
		m.whole++
		s.counts++
	} else {
		m.whole--
		s.counts--
	}
	s.report(Block{Pool: pool, Tier: who.tier, Kind: &m.kind, Hash: who.hash, Rest: who.rest}, whole)
}

func (s *Shards) forgetBlock(m *members, who member, in *set) {
	delete(m.sets, who)
	s.numbered[in.number] = nil
	s.free = append(s.free, in.number)
	if s.blocks--; s.blocks == 0 {
		s.numbered, s.free = nil, nil
	}
	s.held -= blockBytes + int64(len(in.more))*wordBytes
}

// newNumber returns a number that no known block has.
func (s *Shards) newNumber() Number {
	if last := len(s.free) - 1; last >= 0 {
		n := s.free[last]
		s.free = s.free[:last]
		return n
	}
	s.numbered = append(s.numbered, nil)
	return Number(len(s.numbered) - 1)
}

func (s *Shards) pruneKind(at poolKind, m *members) {
	if len(m.sets) > 0 {
		return
	}
	delete(s.kinds, at)
	s.held -= m.kind.countBytes() + int64(len(m.number))*shardBytes
}

// Of FNV-1a with 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func memberOf(tier Tier, k *Key) member {
	// FNV-1a over the values of the digits, so that their case does not matter.
	rest := uint64(fnvOffset)
	for i := range len(k.Digest) {
		rest = (rest ^ uint64(nibble[k.Digest[i]])) * fnvPrime
	}
	return member{hash: k.Hash, rest: rest, tier: tier}
}

func (k *Kind) countBytes() int64 {
	return int64(kindBytes + len(k.Namespace) + len(k.Model) + len(k.Family) + len(k.DType) + len(k.Tags))
}

// cloneText lets go of the text the kind was read from.
func (k *Kind) cloneText() Kind {
	c := *k
	for _, s := range []*string{&c.Namespace, &c.Model, &c.Family, &c.DType, &c.Tags} {
		*s = strings.Clone(*s)
	}
	return c
}

// addShard adds a number, and reports whether it was not there.
func (s *set) addShard(n int) bool {
	word := &s.first
	if n >= 64 {
		for len(s.more) < n/64 {
			s.more = append(s.more, 0)
		}
		word = &s.more[n/64-1]
	}
	fresh := *word>>(n%64)&1 == 0
	*word |= 1 << (n % 64)
	if fresh {
		s.size++
	}
	return fresh
}

// dropShard takes a number out, and reports whether it was there.
func (s *set) dropShard(n int) bool {
	word := &s.first
	if n >= 64 {
		if n/64 > len(s.more) {
			return false
		}
		word = &s.more[n/64-1]
	}
	there := *word>>(n%64)&1 == 1
	*word &^= 1 << (n % 64)
	if there {
		s.size--
	}
	return there
}
