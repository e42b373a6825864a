package conductor

import (
	"iter"
	"sync"

	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/index/hash"
)

// A client hash is the local hash of a block as Dynamo's clients compute it: they mix
// adapter and salt in. Ours leave them out, because they name the context:
//
//	tokens, items --XXH3(1337 + lora + salt)--> client hash   what clients send and dumps show
//	              --XXH3(hash.seed)-----------> local hash    what chains into seq hashes
//
// For the base model without a salt, and the usual seed, both are one. A context
// where they differ remembers which is which. Both cover the look-ahead of a block.

// dynamoSeed is the seed of the local hashes Dynamo's clients compute for a context.
func dynamoSeed(k scope.Variant) uint64 { return hash.Seeded(hash.DefaultSeed, k.Lora, k.Salt) }

// translation maps client hashes to the local hashes of a context, where the two differ.
// What no block has any more is forgotten now and then.
type translation struct {
	mu   sync.RWMutex
	of   map[uint64]uint64 // client hash -> local; guarded by mu
	full int               // entries at which to look for dead ones; guarded by mu
}

// minTranslations is how many entries are kept whether or not a block has them.
const minTranslations = 4096

// learn notes the client hashes of stored blocks. The first begins prompts if root.
func (x *indexContext) learn(clientHashes, local []uint64, root bool) {
	if len(local) == 0 || len(clientHashes) == 0 || !x.translates {
		return
	}
	t := &x.translation
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of, t.full = make(map[uint64]uint64), minTranslations
	}
	for i, h := range clientHashes {
		if h != local[i] {
			t.of[h] = local[i]
		}
	}
	if root && clientHashes[0] != local[0] {
		// Nearly always it is there.
		if v, ok := x.deployment.firsts.Load(clientHashes[0]); !ok || v != any(x) {
			x.deployment.firsts.Store(clientHashes[0], x)
		}
	}
	if len(t.of) > t.full {
		for clientHash := range t.forget(x.index) {
			x.unlist(clientHash)
		}
	}
}

// unlist takes a client hash out of those that begin prompts.
func (x *indexContext) unlist(clientHash uint64) {
	x.deployment.firsts.CompareAndDelete(clientHash, x)
}

// unlistAll takes out those of a context that its last source has left.
func (x *indexContext) unlistAll() {
	t := &x.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	for clientHash := range t.of {
		x.unlist(clientHash)
	}
}

// forget drops the client hashes of local hashes that no block has, and returns them. Those
// stored but not yet learned are not in the map: none of them is lost. mu is held.
func (t *translation) forget(in *index.Index) iter.Seq[uint64] {
	held := make(map[uint64]bool, len(t.of))
	for _, local := range t.of {
		held[local] = false
	}
	in.ClientHashes(func(clientHash uint64) {
		if local, ok := t.of[clientHash]; ok {
			clientHash = local
		}
		if _, ours := held[clientHash]; ours {
			held[clientHash] = true
		}
	})
	living := make(map[uint64]uint64)
	all := t.of
	for clientHash, local := range all {
		if held[local] {
			living[clientHash] = local
		}
	}
	t.of, t.full = living, max(minTranslations, 2*len(living))
	return func(yield func(uint64) bool) {
		for clientHash := range all {
			if _, lives := living[clientHash]; !lives && !yield(clientHash) {
				return
			}
		}
	}
}

// all returns the map, which a later forget leaves as it is; guarded by mu.
func (t *translation) all() map[uint64]uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.of
}

// localOf returns the local hash of a client hash.
func (t *translation) localOf(clientHash uint64) (uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.of[clientHash]
	return h, ok
}

// localOf returns the local hash of a client hash in the context.
func (x *indexContext) localOf(clientHash uint64) (uint64, bool) {
	if !x.translates {
		return clientHash, true
	}
	return x.translation.localOf(clientHash)
}

// clientChain is a prompt given as client hashes. The index asks for local hashes as far
// as it matches.
type clientChain struct {
	context      *indexContext
	clientHashes []uint64
	asLocal      bool // take clientHashes for local hashes, as those recovered from a peer of Dynamo's
	local        []uint64
	seq          []uint64
	ended        bool // the last of local was of a block that no engine has announced
}

func (c *clientChain) reset(x *indexContext, clientHashes []uint64, asLocal bool) {
	*c = clientChain{context: x, clientHashes: clientHashes, asLocal: asLocal, local: c.local[:0], seq: c.seq[:0]}
}

// Len returns the number of blocks.
func (c *clientChain) Len() int { return len(c.clientHashes) }

// Locals returns the local hashes of the first n blocks. Behind a block that no engine
// has announced every hash is one of no block.
func (c *clientChain) Locals(n int) []uint64 {
	if c.asLocal || !c.context.translates {
		return c.clientHashes
	}
	for i := len(c.local); i < n; i++ {
		local, known := c.context.localOf(c.clientHashes[i])
		if c.ended = c.ended || !known; c.ended {
			local = ^c.clientHashes[i]
		}
		c.local = append(c.local, local)
	}
	return c.local
}

// At returns the seq hash of block i.
func (c *clientChain) At(i int) uint64 {
	local := c.Locals(i + 1)
	for n := len(c.seq); n <= i; n++ {
		l := local[n]
		if n > 0 {
			l = c.context.scheme.Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}
