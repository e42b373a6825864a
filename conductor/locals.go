package conductor

import (
	"sync"

	"kvconductor/index/hash"
)

// Dynamo's clients name the blocks of a prompt by local hashes into which adapter
// and salt are mixed; ours leave them out, because they name the context:
//
//	tokens --XXH3(1337 + lora + salt)--> theirs     what clients send and dumps show
//	       --XXH3(hash.seed)-----------> local      what chains into seq hashes
//
// For the base model without a salt, and the usual seed, both are one. A context
// where they differ remembers which is which.

// dynamoSeed is the seed of the local hashes Dynamo's clients compute for a context.
func (k contextKey) dynamoSeed() uint64 { return hash.Seeded(hash.DefaultSeed, k.lora, k.salt) }

// translation maps the local hashes of Dynamo's clients to those of a context
// whose own differ. What no block has any more is forgotten now and then.
type translation struct {
	mu   sync.RWMutex
	of   map[uint64]uint64 // theirs -> local; guarded by mu
	full int               // entries at which to look for dead ones; guarded by mu
}

// minTranslations is how many entries are kept whether or not a block has them.
const minTranslations = 4096

// learn notes the hashes of blocks that are stored, ours and Dynamo's.
func (x *indexContext) learn(theirs, local []uint64) {
	if len(theirs) == 0 {
		return
	}
	t := &x.translation
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of, t.full = make(map[uint64]uint64), minTranslations
	}
	for i, h := range theirs {
		t.of[h] = local[i]
	}
	if len(t.of) <= t.full {
		return
	}
	// What is stored but not yet learned is not in the map: nothing is lost.
	living := make(map[uint64]uint64)
	x.index.Labels(func(label uint64) {
		if l, ok := t.of[label]; ok {
			living[label] = l
		}
	})
	t.of, t.full = living, max(minTranslations, 2*len(living))
}

// local returns the local hash of a block.
func (t *translation) local(theirs uint64) (uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.of[theirs]
	return h, ok
}

// local returns what a local hash of Dynamo's clients is in the context.
func (x *indexContext) local(theirs uint64) (uint64, bool) {
	if !x.translates {
		return theirs, true
	}
	return x.translation.local(theirs)
}

// Mixed reports whether there may be blocks of adapters and salts among those of the
// base model: a peer that is Dynamo's names both only by what they do to its local
// hashes, so what is recovered from one stands there, under hashes that no prompt of
// the base model has, until the sources announce it themselves. Query.Mixed asks for
// it. With another hash.seed than Dynamo's nothing of it can be found.
func (c *Conductor) Mixed() bool { return c.mixed.Load() }

// localChain is a prompt given as the local hashes of Dynamo's clients; the index
// asks for seq hashes as far as it matches.
type localChain struct {
	context *indexContext
	locals  []uint64
	seq     []uint64
	ended   bool // the last of seq was of a block nobody has announced
}

func (c *localChain) reset(x *indexContext, locals []uint64) {
	*c = localChain{context: x, locals: locals, seq: c.seq[:0]}
}

// Len returns the number of blocks.
func (c *localChain) Len() int { return len(c.locals) }

// At returns the seq hash of block i. Behind a block nobody has announced every
// hash is one that nobody holds.
func (c *localChain) At(i int) uint64 {
	for n := len(c.seq); n <= i; n++ {
		local, known := c.context.local(c.locals[n])
		if c.ended = c.ended || !known; c.ended {
			local = ^c.locals[n]
		}
		if n > 0 {
			local = c.context.scheme.Next(c.seq[n-1], local)
		}
		c.seq = append(c.seq, local)
	}
	return c.seq[i]
}

// asked returns the context a query is about, nil when nothing is known of it.
func (d *deployment) asked(q *Query) *indexContext {
	if q.Mixed {
		return d.context(contextKey{})
	}
	if !q.ByLocal {
		return d.context(contextKey{lora: q.Lora, salt: q.Salt})
	}
	if len(q.Locals) == 0 {
		return nil
	}
	base := d.context(contextKey{})
	found := base
	d.contexts.Range(func(_, v any) bool {
		x := v.(*indexContext)
		if !x.translates {
			return true
		}
		if _, ok := x.translation.local(q.Locals[0]); ok {
			found = x
		}
		return found == base
	})
	return found
}
