package conductor

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"kvconductor/conductor/scope"
	"kvconductor/index"
)

// recall remembers the meaning of engine hashes whose blocks no source holds now. A block
// without tokens finds its place by it, although the engine that announced the tokens has
// evicted the block since. An index drops a name with the last owner of the block. Then the
// name comes here, bounded in bytes. Blocks whose name recall does not know wait under
// their hash: see tokenless.go.
//
// A full memory forgets the oldest name. How often a name was asked for says nothing about
// whether it will be: an engine moves a block to a lower tier at about the time it evicts the
// block from the device, so events ask for the names that came last, and mostly once.
type recall struct {
	most int // names there is room for, at least 1

	found, missed atomic.Uint64 // lookups
	// move is held while names come here from an index, and by readers that have not found
	// them there: a name is always in one of both.
	move   sync.RWMutex
	closed bool              // guarded by move
	names  []recalled        // grows to most names, then the newest replaces the oldest; guarded by move
	next   int               // place of the next name in the ring; guarded by move
	places map[uint64]uint32 // of the newest name of each key; guarded by move
}

// recalled is a name with its context, which its key only sums up.
type recalled struct {
	name index.Name
	at   *recalledFrom
}

// recalledFrom is the context that knew names.
type recalledFrom struct {
	scope.Context
	lookAheads lookAheads // that the names may have
}

// recallBytes is the most that a name takes: 24 bytes in the ring, and up to 40 in the map,
// which has 17 bytes a slot and is between seven sixteenths and seven eighths full.
const recallBytes = 64

// newRecall returns a memory of the given bytes, nil if they hold no name.
func newRecall(bytes int64) *recall {
	most := min(bytes/recallBytes, math.MaxUint32)
	if most < 1 {
		return nil
	}
	return &recall{most: int(most), places: make(map[uint64]uint32)}
}

// bytes returns about how many bytes the memory takes.
func (r *recall) bytes() int64 {
	if r == nil {
		return 0
	}
	r.move.RLock()
	defer r.move.RUnlock()
	return int64(len(r.names)) * recallBytes
}

func (r *recall) close() {
	if r != nil {
		r.move.Lock()
		defer r.move.Unlock()
		r.closed, r.names, r.places = true, nil, nil
	}
}

// recallKey returns the key of a name of a deployment.
func recallKey(k scope.Deployment, engine uint64) uint64 {
	return engine ^ xxh3.HashString(k.Tenant) ^ bits.RotateLeft64(xxh3.HashString(k.Model), 21) ^ uint64(k.BlockSize)<<40
}

// remember adds names that a context has forgotten, in place of the oldest ones where the
// memory is full. move is held.
func (r *recall) remember(x *indexContext, forgotten []index.Name) {
	if r.closed || len(forgotten) == 0 {
		return // a source that was unregistered before may still be ending
	}
	x.deployment.early.Add(int64(len(forgotten)))
	at := recalledFrom{x.scope(), max(x.lookAheads.ofNames(), noLookAhead)}
	if x.recalledFrom == nil || *x.recalledFrom != at {
		x.recalledFrom = new(at)
	}
	for _, name := range forgotten {
		r.add(recalled{name, x.recalledFrom})
	}
}

// add puts a name at the next place of the ring. A name that is there already is found at its
// new place, and the old one is forgotten in its turn. move is held.
func (r *recall) add(v recalled) {
	if len(r.names) < r.most {
		r.names = append(r.names, v)
	} else {
		old := &r.names[r.next]
		if key := recallKey(old.at.Deployment, old.name.Engine); r.places[key] == uint32(r.next) {
			delete(r.places, key)
		}
		*old = v
	}
	r.places[recallKey(v.at.Deployment, v.name.Engine)] = uint32(r.next)
	r.next = (r.next + 1) % r.most
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
	place, ok := r.places[recallKey(dk, engine)]
	if !ok {
		return m, false
	}
	v := r.names[place]
	if v.name.Engine != engine || v.at.Deployment != dk {
		return m, false
	}
	return meaning{v.at.Variant, v.name.Key, v.at.lookAheads}, true
}

// earlyNames is how many names of adapters and salts a deployment remembers before it
// knows whether blocks reach a lower tier at all: 4 MiB. Blocks whose names recall does not
// know wait under their hashes.
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
