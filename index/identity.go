package index

import (
	"sync/atomic"
	"unsafe"
)

// An identity is an adapter and a salt of the deployment. All identities share tables,
// pieces, owner sets, owners and names. What keeps their chains apart is a constant C of 64
// bits:
//
//	S[0] = local[0]   S[i] = next(S[i-1], local[i])   canonical sequence hashes, the same in all
//	K[i] = S[i] ^ C                                   keys in the index; C of the base identity is 0
//
// A piece of another identity than the base one has two more words in its body: the
// constant and the number. Writers that go on behind a piece read them there, so a chain
// keeps its identity whatever an event says. Queries have the constant of the identity that
// they ask for.

// Identity numbers an adapter and salt of the deployment; 0 is the base model without a
// salt.
type Identity uint32

// chainIdentity is the identity of a chain, for writers that go on with it.
type chainIdentity struct {
	id       Identity
	constant uint64
}

// firstKey returns the key of a block that begins prompts.
func (b chainIdentity) firstKey(local uint64) uint64 { return normal(local ^ b.constant) }

// keyOf returns the key of a block by its canonical sequence hash, and seqOf is the
// reverse.
func (b chainIdentity) keyOf(seq uint64) uint64 { return normal(seq ^ b.constant) }
func (b chainIdentity) seqOf(key uint64) uint64 { return plain(key) ^ b.constant }

// Says is what an event says of the identity of its blocks. The rest of Store.Identity is a
// guess.
type Says uint8

const (
	SaysAdapter Says = 1 << iota
	SaysSalt
)

// mayFollow reports whether blocks of an event may lie behind a parent: what the event says
// of their identity is true of the parent's. An identity that has left since agrees with no
// other.
func (t *identities) mayFollow(says Says, of chainIdentity, c cursor) bool {
	return says == 0 || c.kind == atUnknown || c.chainIdentity == of || t.agree == nil ||
		t.isCurrent(of) && t.agree(says, of.id, c.id)
}

// identity is what the index has of an identity.
type identity struct {
	constant uint64
	weight   uint64 // of the words of its blocks in digests; 0 stands for 1
	pieces   uint32 // changed atomically
	blocks   uint32 // with an owner, changed atomically
	dropped  bool   // its number is to be used again
}

// identities lists the identities of an index by their number, from 1 on. Lock all lanes to add or
// drop one; queries read the constants without a lock. Queries read the constants meanwhile.
type identities struct {
	list  atomic.Pointer[[]identity]
	spare []Identity                          // dropped ones
	agree func(says Says, a, b Identity) bool // Options.Agree, nil if all identities agree
}

// newIdentities returns a list with the base identity alone.
func newIdentities(agree func(says Says, a, b Identity) bool) *identities {
	t := &identities{agree: agree}
	t.list.Store(new(make([]identity, 1)))
	return t
}

// byID returns what the index has of an identity. The list may be replaced by a longer one
// meanwhile, but the counters of an entry are changed only by events, and the list only
// while none runs.
func (t *identities) byID(id Identity) *identity { return &(*t.list.Load())[id] }

// constantOf returns the constant of an identity.
func (t *identities) constantOf(id Identity) uint64 {
	if id == 0 {
		return 0
	}
	return load64(&t.byID(id).constant)
}

// isCurrent reports whether a root is that of an identity, whose number is not another
// one's by now. Links in waiting rooms outlive identities, and a number that was dropped is
// given to the next one.
func (t *identities) isCurrent(of chainIdentity) bool {
	return of.id == 0 || !t.byID(of.id).dropped && t.byID(of.id).constant == of.constant
}

func (t *identities) bytes() int {
	return cap(*t.list.Load())*int(unsafe.Sizeof(identity{})) + 4*cap(t.spare)
}

// NewIdentity returns the number of an identity with a constant, which no other one may
// have. It panics if the constant is 0. Numbers of dropped identities are used again.
func (x *Index) NewIdentity(constant uint64) Identity {
	if constant == 0 {
		panic("BUG: the constant 0 is that of the base identity")
	}
	x.lock()
	defer x.unlock()
	t := x.tree.identities
	if k := len(t.spare); k > 0 {
		id := t.spare[k-1]
		t.spare = t.spare[:k-1]
		store64(&t.byID(id).constant, constant)
		t.byID(id).dropped = false
		return id
	}
	list := append(*t.list.Load(), identity{constant: constant})
	t.list.Store(&list)
	return Identity(len(list) - 1)
}

// DropIdentity gives the number of an identity back. It does nothing and returns false if a
// piece of the identity is there, which may be one whose owners were cleared a while ago,
// or one of ghosts, or if id is 0 or was dropped before. The caller sees to it that no
// event or query with the number runs.
func (x *Index) DropIdentity(id Identity) bool {
	x.lock()
	defer x.unlock()
	t := x.tree.identities
	if id == 0 || int(id) >= len(*t.list.Load()) || t.byID(id).dropped || load32(&t.byID(id).pieces) > 0 {
		return false
	}
	t.byID(id).dropped, t.byID(id).weight = true, 0 // the constant stays: it is the key to nothing
	t.spare = append(t.spare, id)
	return true
}

// IdentityBlocks returns the blocks with an owner by Identity, in dst if it is large
// enough. The base identity has those that no other one has, with the blocks that wait
// under engine hashes without a constant. It costs the number of identities.
func (x *Index) IdentityBlocks(dst []int) []int {
	x.lock()
	defer x.unlock()
	list := *x.tree.identities.list.Load()
	dst = append(dst[:0], x.tree.lanes.liveBlocks())
	for i := range list[1:] {
		n := int(load32(&list[i+1].blocks))
		dst = append(dst, n)
		dst[0] -= n
	}
	return dst
}

// SetWeight makes each block of an identity count in digests as its word times an odd
// weight. The weight of the base identity is 1, as that of others is until it is set.
//
// Digests of the owners change by the difference for all blocks that are there. Weights are
// odd, so a weight has an inverse, and no block counts for nothing.
func (x *Index) SetWeight(id Identity, odd uint64) {
	if id == 0 {
		return
	}
	x.lock()
	defer x.unlock()
	i := x.tree.identities.byID(id)
	// 0 stands for 1 in both.
	more := max(odd, 1) - max(i.weight, 1)
	i.weight = odd
	if more == 0 || load32(&i.pieces) == 0 {
		return
	}
	x.tree.lines.eachPiece(func(_ uint32, r *piece) {
		if r.identityID() != id {
			return
		}
		var buf [maxPiece + 2]interval
		start := uint32(0)
		for _, v := range x.tree.lines.intervalsOf(r, &buf) {
			if v.set != 0 {
				sum, _ := r.sumWords(spanOf(start, v.end))
				x.holders.eachHolder(v.set, func(o *owner) { o.countHeld(0, 0, more*sum) })
			}
			start = v.end
		}
	})
}

// weighWords returns the sum of words of blocks of a piece as digests count it.
func (t *identities) weighWords(r *piece, sum uint64) uint64 {
	if r.meta&isOther == 0 {
		return sum
	}
	return sum * max(t.byID(r.identityID()).weight, 1)
}

// countPiece counts a piece, out if n is negative.
func (t *identities) countPiece(r *piece, n int) {
	if r.meta&isOther != 0 {
		atomic.AddUint32(&t.byID(r.identityID()).pieces, uint32(n))
	}
}

// rootOf returns the identity that a number stands for.
func (t *identities) rootOf(id Identity) chainIdentity { return chainIdentity{id, t.constantOf(id)} }

// ClearIdentities takes from some owners the blocks of the identities for which of is true, and returns how
// many memberships they had. Blocks of the base identity include what waits under engine hashes without a constant. It walks
// all pieces once, whatever the number of owners and identities. of must not call the index.
// The owners are of one source.
//
// With gone, the blocks count in Losses as taken by the event at hand, and gone hears the names that they had for the
// source: those that all share and its own. A name of a block that another source holds too may be one that only that
// source uses. gone must not call the index either.
func (x *Index) ClearIdentities(owners []Owner, of func(Identity) bool, gone func(engine uint64)) (n int) {
	x.lock()
	defer x.unlock()
	some := false
	for id := range *x.tree.identities.list.Load() {
		some = some || of(Identity(id)) && (id == 0 || load32(&x.tree.identities.byID(Identity(id)).pieces) > 0)
	}
	var all []*owner
	for _, name := range owners {
		if o := x.holders.owners[name]; some && o != nil && o.digest.Blocks > 0 {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		return 0
	}
	losses := make([]*Losses, len(all))
	for i, o := range all {
		if losses[i] = o.losses; gone == nil {
			o.losses = nil // the caller says why they leave, as with Clear
		}
		n += o.digest.Blocks
	}
	x.tree.lines.eachPiece(func(line uint32, r *piece) {
		if !of(r.identityID()) {
			return
		}
		for _, o := range all {
			if x.tree.lines.heads[line/pageLines]>>(line%pageLines)&1 == 0 {
				return // it has ended with its last holder
			}
			if gone != nil {
				x.names.eachNameHeld(o, line, r, gone)
			}
			x.holders.removeHolders(o, line, 0, r.len())
		}
	})
	for i, o := range all {
		o.losses = losses[i]
		n -= o.digest.Blocks
	}
	s := all[0].s
	if n > 0 && s.held > 0 && s.room.used > 0 {
		x.holders.sweepRoom(s)
	}
	x.maintain(s)
	return n
}

// eachNameHeld calls f with the names of the blocks of a piece that an owner holds: those that all share, and those of its
// source alone. All lanes are locked.
func (m *nameMap) eachNameHeld(o *owner, line uint32, r *piece, f func(engine uint64)) {
	for i := range r.len() {
		p := position{line, i}
		if !m.tree.sets.hasOwner(m.tree.lines.setOf(p), o.id) {
			continue
		}
		m.tree.lines.eachNameOf(p, func(engine uint64, _ uint32) { f(plain(engine)) })
		for own := range m.privates.of[p.encode()] {
			if own.s == o.s {
				f(plain(own.engine))
			}
		}
	}
}
