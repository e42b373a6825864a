package conductor

import (
	"iter"
	"sync"

	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/index/hash"
)

// Dynamo's clients name the blocks of a prompt by local hashes into which adapter
// and salt are mixed; ours leave them out, because they name the context:
//
//	tokens, items --XXH3(1337 + lora + salt)--> label    what clients send and dumps show
//	              --XXH3(hash.seed)-----------> local    what chains into seq hashes
//
// For the base model without a salt, and the usual seed, both are one. A context
// where they differ remembers which is which. Both cover the look-ahead of a block.

// dynamoSeed is the seed of the local hashes Dynamo's clients compute for a context.
func dynamoSeed(k scope.Variant) uint64 { return hash.Seeded(hash.DefaultSeed, k.Lora, k.Salt) }

// translation maps labels to the local hashes of a context, where the two differ.
// What no block has any more is forgotten now and then.
type translation struct {
	mu   sync.RWMutex
	of   map[uint64]uint64 // label -> local; guarded by mu
	full int               // entries at which to look for dead ones; guarded by mu
}

// minTranslations is how many entries are kept whether or not a block has them.
const minTranslations = 4096

// learn notes the labels of stored blocks. The first begins prompts if root.
func (x *indexContext) learn(labels, local []uint64, root bool) {
	if len(local) == 0 || len(labels) == 0 || !x.translates {
		return
	}
	t := &x.translation
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of, t.full = make(map[uint64]uint64), minTranslations
	}
	for i, h := range labels {
		if h != local[i] {
			t.of[h] = local[i]
		}
	}
	if root && labels[0] != local[0] {
		// Nearly always it is there.
		if v, ok := x.deployment.firsts.Load(labels[0]); !ok || v != any(x) {
			x.deployment.firsts.Store(labels[0], x)
		}
	}
	if len(t.of) > t.full {
		for label := range t.forget(x.index) {
			x.unlist(label)
		}
	}
}

// unlist takes a label out of those that begin prompts.
func (x *indexContext) unlist(label uint64) {
	x.deployment.firsts.CompareAndDelete(label, x)
}

// unlistAll takes out those of a context that its last source has left.
func (x *indexContext) unlistAll() {
	t := &x.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	for label := range t.of {
		x.unlist(label)
	}
}

// forget drops the labels of local hashes that no block has, and returns them. Labels
// stored but not yet learned are not in the map: none of them is lost. mu is held.
func (t *translation) forget(in *index.Index) iter.Seq[uint64] {
	held := make(map[uint64]bool, len(t.of))
	for _, local := range t.of {
		held[local] = false
	}
	in.Labels(func(label uint64) {
		if local, ok := t.of[label]; ok {
			label = local
		}
		if _, ours := held[label]; ours {
			held[label] = true
		}
	})
	living := make(map[uint64]uint64)
	all := t.of
	for label, local := range all {
		if held[local] {
			living[label] = local
		}
	}
	t.of, t.full = living, max(minTranslations, 2*len(living))
	return func(yield func(uint64) bool) {
		for label := range all {
			if _, lives := living[label]; !lives && !yield(label) {
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

// local returns the local hash of a label.
func (t *translation) local(label uint64) (uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.of[label]
	return h, ok
}

// local returns the local hash of a label in the context.
func (x *indexContext) local(label uint64) (uint64, bool) {
	if !x.translates {
		return label, true
	}
	return x.translation.local(label)
}

// localChain is a prompt given as the local hashes of Dynamo's clients; the index
// asks for local hashes as far as it matches.
type localChain struct {
	context *indexContext
	labels  []uint64
	bare    bool // labels are taken for local hashes, as those of a peer are
	local   []uint64
	seq     []uint64
	ended   bool // the last of local was of a block that no engine has announced
}

func (c *localChain) reset(x *indexContext, labels []uint64, bare bool) {
	*c = localChain{context: x, labels: labels, bare: bare, local: c.local[:0], seq: c.seq[:0]}
}

// Len returns the number of blocks.
func (c *localChain) Len() int { return len(c.labels) }

// Locals returns the local hashes of the first n blocks. Behind a block that no engine
// has announced every hash is one of no block.
func (c *localChain) Locals(n int) []uint64 {
	if c.bare || !c.context.translates {
		return c.labels
	}
	for i := len(c.local); i < n; i++ {
		local, known := c.context.local(c.labels[i])
		if c.ended = c.ended || !known; c.ended {
			local = ^c.labels[i]
		}
		c.local = append(c.local, local)
	}
	return c.local
}

// At returns the seq hash of block i.
func (c *localChain) At(i int) uint64 {
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
