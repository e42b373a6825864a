package conductor

import (
	"slices"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events/stream"
	"kvconductor/index"
	"kvconductor/tiers"
)

// Snapshot is what all sources hold, each at the batch it applied last. Taking one
// holds up the application of events for as long as it takes to copy some bytes a
// block; walking it holds up no event.
type Snapshot struct {
	// Sources and how far each had come, sorted by key.
	Sources  []SourceMark
	contexts []snapContext
}

// Mark is how far a source had come.
type Mark = stream.Mark

// Stretch is a run of blocks, each behind the one before.
type Stretch = index.Stretch

// Of returns the part of a snapshot that is about one partition and block size. The
// sources are all there.
func (s *Snapshot) Of(p Partition, blockSize int) *Snapshot {
	part := &Snapshot{Sources: s.Sources}
	for _, c := range s.contexts {
		if dk := c.context.deployment.key; dk == (scope.Deployment{Tenant: p.Tenant, Model: p.Model, BlockSize: blockSize}) {
			part.contexts = append(part.contexts, c)
		}
	}
	return part
}

// Unify keeps the holders that shown accepts, before the first Walk. From then on every
// block has one name, for every holder: the one that most sources use, of equal ones
// that of the first source by key.
func (s *Snapshot) Unify(shown func(source Registration, medium tiers.Medium) bool) {
	ranks := make(map[Key]int, len(s.Sources))
	for i, m := range s.Sources {
		ranks[m.Key()] = i
	}
	for _, c := range s.contexts {
		c.snap.Unify(func(o index.Owner) (int, bool) {
			h, ok := c.holders[o]
			return ranks[h.source.Key()], ok && shown(h.source, h.medium)
		})
	}
}

// Partitions returns what Conductor.Partitions did at that moment.
func (s *Snapshot) Partitions() map[Partition][]int {
	all := make(map[Partition][]int)
	add := func(dk scope.Deployment) {
		p := Partition{Tenant: dk.Tenant, Model: dk.Model}
		if i, found := slices.BinarySearch(all[p], dk.BlockSize); !found {
			all[p] = slices.Insert(all[p], i, dk.BlockSize)
		}
	}
	for _, m := range s.Sources {
		add(m.deploymentKey())
	}
	for _, c := range s.contexts {
		add(c.context.deployment.key)
	}
	return all
}

// SourceMark is a source and what a replica has to know to go on where it was.
type SourceMark struct {
	Registration
	// Mark is the batch applied last, nil before the first.
	Mark *Mark
	// Parts is the most parts a block of its had: see normalize/normalize/parts.go.
	Parts int
	// LookAheads are the look-aheads of its blocks in tokens, nil where there is none but 0:
	// see ahead.go.
	LookAheads []int
}

// snapContext is one context as it was.
type snapContext struct {
	context *indexContext
	snap    *index.Snapshot
	known   map[uint64]uint64 // client hashes, as translation.of then and maybe now; guarded by its mu
	holders map[index.Owner]snapHolder
	sources map[index.Source]Registration
}

// snapHolder is who an owner was.
type snapHolder struct {
	key    normalize.Owner
	source Registration
	medium tiers.Medium
}

// Stored is a run of blocks of one holder, each behind the one before.
type Stored struct {
	Partition
	BlockSize int // tokens
	Lora      string
	Salt      string
	// Source announced the blocks, Rank of its instance holds them.
	Source  Registration
	Rank    int32
	Medium  tiers.Medium
	Group   int
	Backend string
	Owned   bool // the copies are those of the engine's cache runner
	*Stretch
	// Local hashes of the blocks, as many as ClientHashes; nil if both are the same.
	Local []uint64
}

// Snapshot takes one. KeepsClientHashes must hold.
func (c *registry) Snapshot() *Snapshot {
	all, release := c.lockAllSources()
	defer release()
	snap := &Snapshot{}
	contexts := make(map[*indexContext]*snapContext)
	for _, s := range all {
		snap.Sources = append(snap.Sources, s.snapshotMark())
		s.snapshotHolders(contexts)
	}
	for x, sc := range contexts {
		sc.snap, sc.known = x.index.Snapshot(), x.translation.all()
		snap.contexts = append(snap.contexts, *sc)
	}
	slices.SortFunc(snap.contexts, func(a, b snapContext) int {
		x, y := a.context.scope(), b.context.scope()
		return x.Compare(&y)
	})
	return snap
}

// Name is the meaning of an engine hash. Its users hold no block of it, but others do.
type Name struct {
	Partition
	BlockSize int // tokens
	Lora      string
	Salt      string
	Source    Registration // who taught it
	Engine    uint64
	Key       uint64
}

// Names calls f for each, until it returns false. With the blocks of Walk they are
// all that the contexts know.
func (s *Snapshot) Names(f func(*Name) bool) {
	for i := range s.contexts {
		c := &s.contexts[i]
		x, dk, more := c.context, c.context.deployment.key, true
		n := Name{
			Partition: Partition{Tenant: dk.Tenant, Model: dk.Model}, BlockSize: dk.BlockSize, Lora: x.key.Lora, Salt: x.key.Salt,
		}
		c.snap.Names(func(src index.Source, engine, key uint64) bool {
			reg, known := c.sources[src]
			if !known {
				return true
			}
			n.Source, n.Engine, n.Key = reg, engine, key
			more = f(&n)
			return more
		})
		if !more {
			return
		}
	}
}

// Walk calls f for the blocks on a tier, parents before children and one
// partition after the other, until f returns false. What f gets is valid until it
// returns.
func (s *Snapshot) Walk(tier tiers.Tier, f func(*Stored) bool) {
	for _, c := range s.contexts {
		if !c.walk(tier, f) {
			return
		}
	}
}

// localOf returns the local hash of a client hash. Its block may be gone by now, or have
// come since.
func (c *snapContext) localOf(clientHash uint64) (uint64, bool) {
	if c.known != nil {
		t := &c.context.translation
		t.mu.RLock()
		local, ok := c.known[clientHash]
		t.mu.RUnlock()
		if ok {
			return local, true
		}
	}
	return c.context.localOf(clientHash)
}

// walk does it for one context.
func (c *snapContext) walk(tier tiers.Tier, f func(*Stored) bool) (more bool) {
	wanted := false
	for _, h := range c.holders {
		wanted = wanted || h.medium.Tier == tier
	}
	if !wanted {
		return true
	}
	x, dk := c.context, c.context.deployment.key
	st := Stored{
		Partition: Partition{Tenant: dk.Tenant, Model: dk.Model}, BlockSize: dk.BlockSize,
		Lora: x.key.Lora, Salt: x.key.Salt,
	}
	more = true
	var local []uint64
	c.snap.Walk(c.localOf, func(o index.Owner) bool { h, ok := c.holders[o]; return ok && h.medium.Tier == tier }, func(e *index.Stretch) bool {
		h := c.holders[e.Owner]
		st.Source, st.Rank, st.Medium, st.Group, st.Backend, st.Owned = h.source, h.key.Rank, h.medium, h.key.Group, h.key.Backend, h.key.Owned
		st.Stretch, st.Local = e, nil
		if e.ClientHashes[0] != 0 && x.translates {
			local = local[:0]
			for _, clientHash := range e.ClientHashes {
				l, _ := c.localOf(clientHash)
				local = append(local, l)
			}
			if !slices.Equal(local, e.ClientHashes) {
				st.Local = local
			}
		}
		more = f(&st)
		return more
	})
	return more
}
