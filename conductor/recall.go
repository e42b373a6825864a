package conductor

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/zeebo/xxh3"

	"kvconductor/conductor/scope"
	"kvconductor/index"
)

// recall remembers the meaning of engine hashes whose blocks no source holds now. A block
// without tokens finds its place by it, although the engine that announced the tokens has
// evicted the block since. An index drops a name with the last owner of the block. Then the
// name comes here, bounded in bytes. Blocks whose name recall does not know wait under
// their hash: see tokenless.go.
type recall struct {
	cache *ristretto.Cache[uint64, recalled] // nil until a name comes; guarded by move
	most  int                                // names there is room for

	found, missed atomic.Uint64 // lookups
	// move is held while names come here from an index, and by readers that have not found
	// them there: a name is always in one of both.
	move   sync.RWMutex
	closed bool // guarded by move
}

// recalled is a name with its context, which its cache key only sums up.
type recalled struct {
	name index.Name
	at   *recalledFrom
}

// recalledFrom is the context that knew names.
type recalledFrom struct {
	scope.Context
	lookAheads lookAheads // that the names may have
}

const (
	// recallBytes is what a name takes in the cache, its bookkeeping included, about.
	recallBytes = 192
	// recallCounters is how many counters the cache has for each name there is room for.
	recallCounters = 10
	// counterBytes is what one of them takes: four halves of a byte in the policy that
	// estimates frequencies, and about ten bits in the filter before it.
	counterBytes = 4
)

// newRecall returns a memory of the given bytes, nil if they hold no name.
func newRecall(bytes int64) *recall {
	most := bytes / recallBytes
	if most < 1 {
		return nil
	}
	return &recall{most: int(most)}
}

// openCache makes the cache at the first name. Most servers remember nothing, and the
// counters alone take a fifth of the bound. move is held.
func (r *recall) openCache() {
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, recalled]{
		NumCounters: recallCounters * int64(r.most), MaxCost: int64(r.most), BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		panic(fmt.Sprintf("BUG: a memory for %d names: %v", r.most, err))
	}
	r.cache = cache
}

// bytes returns about how many bytes the memory takes.
func (r *recall) bytes() int64 {
	if r == nil {
		return 0
	}
	r.move.RLock()
	defer r.move.RUnlock()
	if r.cache == nil || r.closed {
		return 0
	}
	counters := int64(1) << bits.Len64(uint64(recallCounters*r.most-1))
	return counters*counterBytes + (r.cache.MaxCost()-r.cache.RemainingCost())*(recallBytes-recallCounters*counterBytes)
}

func (r *recall) close() {
	if r != nil {
		r.move.Lock()
		defer r.move.Unlock()
		if !r.closed && r.cache != nil {
			r.cache.Close()
		}
		r.closed = true
	}
}

// cacheKey returns the key of a name of a deployment in the cache.
func cacheKey(k scope.Deployment, engine uint64) uint64 {
	return engine ^ xxh3.HashString(k.Tenant) ^ bits.RotateLeft64(xxh3.HashString(k.Model), 21) ^ uint64(k.BlockSize)<<40
}

// remember adds names that a context has forgotten. move is held.
func (r *recall) remember(x *indexContext, forgotten []index.Name) {
	if r.closed || len(forgotten) == 0 {
		return // a source that was unregistered before may still be ending
	}
	if r.cache == nil {
		r.openCache()
	}
	x.deployment.early.Add(int64(len(forgotten)))
	at := recalledFrom{x.scope(), max(x.lookAheads.ofNames(), noLookAhead)}
	for i, name := range forgotten {
		r.cache.Set(cacheKey(at.Deployment, name.Engine), recalled{name, &at}, 1)
		if i%1024 == 1023 {
			r.cache.Wait() // it would drop what comes faster than it takes
		}
	}
	r.cache.Wait()
}

// findCounted returns the meaning that an engine hash had, and counts the lookup.
func (r *recall) findCounted(dk scope.Deployment, engine uint64) (m meaning, known bool) {
	if r == nil {
		return m, false
	}
	if m, known = r.findName(dk, engine); known {
		r.found.Add(1)
	} else {
		r.missed.Add(1)
	}
	return m, known
}

// findName is findCounted without the count, for hashes that contexts may know.
func (r *recall) findName(dk scope.Deployment, engine uint64) (m meaning, known bool) {
	if r == nil {
		return m, false
	}
	r.move.RLock()
	defer r.move.RUnlock()
	if r.cache == nil {
		return m, false
	}
	v, ok := r.cache.Get(cacheKey(dk, engine))
	if !ok || v.name.Engine != engine || v.at.Deployment != dk {
		return m, false
	}
	return meaning{v.at.Variant, v.name.Key, v.at.lookAheads}, true
}

// earlyNames is how many names of adapters and salts a deployment remembers before it
// knows whether blocks reach a lower tier at all: 12 MiB. In a full memory a name costs 2.3
// us and 7 allocations, seven times the cost of storing its block. Blocks whose names recall
// does not know wait under their hashes.
const earlyNames = 1 << 16

// mayRecall reports whether an event may ask for names that the context has forgotten:
// one without tokens, or one about a lower tier that does not repeat adapter and salt.
func (x *indexContext) mayRecall() bool {
	d := x.deployment
	return d.tokenless.Load() || x.key != scope.Variant{} && (d.tiered.Load() || d.early.Load() < earlyNames)
}

// maxForgotten returns how many forgotten names an index keeps until recall fetches them.
func (r *recall) maxForgotten() int {
	if r == nil {
		return 0
	}
	return r.most
}

func (x *indexContext) scope() scope.Context {
	return scope.Context{Deployment: x.deployment.key, Variant: x.key}
}
