// Package names says to which block of a deployment an event refers.
//
// A deployment has one index. What separates its adapters and salts is a constant for each of them,
// its identity: the index XORs it into the key of every block, so that equal tokens of two identities
// have different keys. Table maps each adapter and salt of a deployment to its Identity. Speaker is how one source names
// blocks there, and Resolve says where the blocks of a stored event begin.
//
//	event --Resolve--> identity, how its hashes become names --> index.Store
//
// The index does the rest: a child lies behind its parent, whatever its event says, and a hash is
// the name of one block, so a removal needs no search.
//
// Engines hash adapter and salt themselves. Two kinds of hashes leave them out: those of standardized
// events, and those of engines whose adapter or salt only the registration names. Such hashes become
// names by XORing the constant in as well. So two names are equal only if they mean the same block.
package names

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/steady"
	"example.com/conductor/index"
)

// Identity is an adapter and a salt of a deployment.
type Identity struct {
	scope.Variant
	Constant uint64         // in keys and names; 0 of the base model without a salt
	Number   index.Identity // until the identity leaves the table
	askedAt  atomic.Uint32  // when the last query came, see steady.Seconds; 0: none did
}

// Asked records that a query asks for the identity.
func (id *Identity) Asked(now time.Time) {
	if t := uint32(steady.Seconds(now)); id.askedAt.Load() != t {
		id.askedAt.Store(t)
	}
}

// SinceAsked returns how long ago a query asked for the identity last, to the second. It is decades if none did.
func (id *Identity) SinceAsked(now time.Time) time.Duration {
	return time.Duration(steady.Seconds(now)-int64(id.askedAt.Load())) * time.Second
}

// Secret is what the constants of a table are made from. A client that does not know it cannot choose
// tokens whose keys under one identity are keys under another.
type Secret [16]byte

// nameBytes is how long the adapter and salt of an identity may be on average, in bytes, if the number of identities is
// bounded.
const nameBytes = 256

// ErrFull says that a deployment has as many adapters and salts as it may have, and that all of them have blocks.
var ErrFull = errors.New("the deployment has as many adapters and salts as limits.max_contexts allows")

// Table has the identities of a deployment. It is safe for concurrent use.
type Table struct {
	x      *index.Index
	most   int // identities next to the base one, 0 for no bound
	seed   maphash.Seed
	weight func(scope.Variant) uint64
	base   *Identity // of the base model without a salt

	mu     sync.RWMutex
	secret Secret               // guarded by mu
	by     map[uint64]*Identity // by the hash of adapter and salt; guarded by mu
	bytes  int                  // of all adapters and salts; guarded by mu
	hand   int                  // where drop goes on; guarded by mu
	last   index.Identity       // the highest number so far; guarded by mu
	n      atomic.Int64         // identities next to the base one

	all atomic.Pointer[[]*chunk] // by Number; written with mu held

	// folds are the constants of the adapters and salts that engines are registered with, and that
	// they do not hash. They only grow.
	folds atomic.Pointer[[]fold]
}

// chunk has the identities of consecutive numbers. Where one has left there is nil.
type chunk struct {
	ids  [chunkSize]atomic.Pointer[Identity]
	used [chunkSize]atomic.Bool // since the table looked for one to drop
}

const chunkSize = 256

// fold is the constant of an adapter and salt that a registration names.
type fold struct {
	scope.Variant
	constant uint64
}

// New returns the table of an index that has no identity yet. It holds at most the given number of
// identities next to the base one, 0 for no bound. weight is that of index.SetWeight.
func New(x *index.Index, most int, weight func(scope.Variant) uint64) *Table {
	t := &Table{x: x, most: most, weight: weight, seed: maphash.MakeSeed(), by: make(map[uint64]*Identity), base: new(Identity)}
	t.all.Store(new([]*chunk))
	t.setNumber(0, t.base)
	rand.Read(t.secret[:]) // it never fails
	t.folds.Store(&[]fold{{}})
	return t
}

// Base returns the identity of the base model without a salt.
func (t *Table) Base() *Identity { return t.base }

// Len returns the number of identities next to the base one.
func (t *Table) Len() int { return int(t.n.Load()) }

// Find returns the identity of an adapter and salt, nil if none has entered.
func (t *Table) Find(v scope.Variant) *Identity {
	if v == (scope.Variant{}) {
		return t.base
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.findIdentity(v)
}

// Look returns the identity of an adapter and salt for a query. If they have not entered, it makes an identity that the
// table does not keep.
func (t *Table) Look(v scope.Variant) *Identity {
	if id := t.Find(v); id != nil {
		return id
	}
	return &Identity{Variant: v, Constant: t.Constant(v)}
}

// findIdentity does what Find does, for callers that hold mu.
func (t *Table) findIdentity(v scope.Variant) *Identity {
	if v == (scope.Variant{}) {
		return t.base
	}
	if id := t.by[maphash.Comparable(t.seed, v)]; id != nil && id.Variant == v {
		return id
	}
	return nil
}

// Constant returns the constant of an adapter and salt, whether or not they have entered.
func (t *Table) Constant(v scope.Variant) uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id := t.findIdentity(v); id != nil {
		return id.Constant
	}
	return t.computeConstant(v)
}

// computeConstant computes the constant of an adapter and salt from the secret. mu is held.
func (t *Table) computeConstant(v scope.Variant) uint64 {
	if v == (scope.Variant{}) {
		return 0
	}
	text := make([]byte, 0, 128)
	text = append(text, t.secret[:]...)
	text = binary.AppendUvarint(text, uint64(len(v.Lora)))
	text = append(append(text, v.Lora...), v.Salt...)
	sum := sha256.Sum256(text)
	return max(binary.LittleEndian.Uint64(sum[:]), 1)
}

// Enter returns the identity of an adapter and salt, which it makes if need be. It returns ErrFull if there is no room and
// no identity without blocks that could leave. The identity may leave as soon as it has no block, unless Pin keeps it.
func (t *Table) Enter(v scope.Variant) (*Identity, error) {
	if id := t.Find(v); id != nil {
		return id, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id := t.findIdentity(v); id != nil {
		return id, nil
	}
	if t.by[maphash.Comparable(t.seed, v)] != nil {
		return nil, ErrFull // two hashes are the same: one in 2^64
	}
	size := len(v.Lora) + len(v.Salt)
	for t.most > 0 && (t.Len() >= t.most || t.bytes+size > t.most*nameBytes) {
		if !t.dropUnused() {
			return nil, ErrFull
		}
	}
	return t.addIdentity(v, t.computeConstant(v)), nil
}

// addIdentity adds an identity. mu is held.
func (t *Table) addIdentity(v scope.Variant, constant uint64) *Identity {
	id := &Identity{Variant: v, Constant: constant, Number: t.x.NewIdentity(constant)}
	t.x.SetWeight(id.Number, t.weight(v))
	t.by[maphash.Comparable(t.seed, v)] = id
	t.setNumber(id.Number, id)
	t.markUsed(id.Number)
	t.last = max(t.last, id.Number)
	t.bytes += len(v.Lora) + len(v.Salt)
	t.n.Add(1)
	return id
}

// maxLooks is how many identities dropUnused looks at, twice: more would make a publisher that invents a salt
// for each request costly.
const maxLooks = 8

// dropUnused drops an identity without blocks to make room. It prefers one that was not used since it was last looked at. It
// looks at a few at a time, and reports false if all of those have blocks. mu is held.
func (t *Table) dropUnused() bool {
	for look := range 2 * maxLooks {
		if t.hand++; t.hand > int(t.last) {
			t.hand = 1
		}
		id := t.Of(index.Identity(t.hand))
		if id != nil && (!t.chunkOf(id.Number).used[id.Number%chunkSize].Swap(false) || look >= maxLooks) && t.x.DropIdentity(id.Number) {
			t.removeIdentity(id)
			return true
		}
	}
	return false
}

// removeIdentity removes an identity from the table. mu is held.
func (t *Table) removeIdentity(id *Identity) {
	delete(t.by, maphash.Comparable(t.seed, id.Variant))
	t.setNumber(id.Number, nil)
	t.bytes -= len(id.Lora) + len(id.Salt)
	t.n.Add(-1)
}

// Pin keeps all identities in the table until Unpin is called. It reports false, and pins nothing, if
// id has left already.
func (t *Table) Pin(id *Identity) bool {
	t.mu.RLock()
	if t.Of(id.Number) == id {
		t.markUsed(id.Number)
		return true
	}
	t.mu.RUnlock()
	return false
}

// Unpin undoes Pin.
func (t *Table) Unpin() { t.mu.RUnlock() }

// markUsed notes that an identity of the table is in use.
func (t *Table) markUsed(n index.Identity) {
	if used := &t.chunkOf(n).used[n%chunkSize]; !used.Load() {
		used.Store(true)
	}
}

// Of returns the identity of a number, nil if it has left. It takes no lock, so that the index may
// call it.
func (t *Table) Of(n index.Identity) *Identity {
	if c := t.chunkOf(n); c != nil {
		return c.ids[n%chunkSize].Load()
	}
	return nil
}

// chunkOf returns the chunk with the identity of a number, nil if no identity has had a number of that chunk.
func (t *Table) chunkOf(n index.Identity) *chunk {
	if all := *t.all.Load(); int(n)/chunkSize < len(all) {
		return all[n/chunkSize]
	}
	return nil
}

// setNumber sets the identity of a number. mu is held.
func (t *Table) setNumber(n index.Identity, id *Identity) {
	for t.chunkOf(n) == nil {
		all := append(slices.Clip(*t.all.Load()), new(chunk))
		t.all.Store(&all)
	}
	t.chunkOf(n).ids[n%chunkSize].Store(id)
}

// All returns all identities, the base one first.
func (t *Table) All() (all []*Identity) {
	for _, c := range *t.all.Load() {
		for i := range c.ids {
			if id := c.ids[i].Load(); id != nil {
				all = append(all, id)
			}
		}
	}
	return all
}

// Secret returns what the constants are made from, for a snapshot.
func (t *Table) Secret() Secret {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.secret
}

// Adopt takes over the secret of a snapshot, whose keys then need no change. It reports false if the
// table has made constants from its own already.
func (t *Table) Adopt(s Secret) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.secret == s {
		return true
	}
	if len(t.by) > 0 || len(*t.folds.Load()) > 1 {
		return false
	}
	t.secret = s
	return true
}

// Fold records that engines are registered with an adapter and salt that their hashes do not cover, and returns the constant
// of these.
func (t *Table) Fold(v scope.Variant) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := *t.folds.Load()
	for _, f := range have {
		if f.Variant == v {
			return f.constant
		}
	}
	more := append(slices.Clip(have), fold{v, t.computeConstant(v)})
	t.folds.Store(&more)
	return more[len(have)].constant
}

// Folds calls f with each constant that engine hashes may need to become names of blocks under an
// adapter and salt, 0 first, until f returns false.
func (t *Table) Folds(of scope.Variant, f func(constant uint64) bool) {
	for _, one := range *t.folds.Load() {
		if (one.Lora == "" || one.Lora == of.Lora) && (one.Salt == "" || one.Salt == of.Salt) && !f(one.constant) {
			return
		}
	}
}
