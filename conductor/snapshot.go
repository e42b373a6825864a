package conductor

import (
	"slices"
	"time"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events/stream"
	"kvconductor/index"
	"kvconductor/tiers"
)

// Snapshot is a copy of the holdings of all sources, each at the batch it applied last.
// Taking a snapshot holds up each event for the pieces that it changes. Walking it holds up
// no event.
type Snapshot struct {
	// Sources with their marks, sorted by key.
	Sources  []SourceMark
	contexts []snapContext
	paused   time.Duration // how long events waited for the moment of the snapshot
}

// Mark is the batch that a source applied last, with its epoch.
type Mark = stream.Mark

// Stretch is a run of blocks, each behind the one before.
type Stretch = index.Stretch

// Of returns the part of a snapshot for one partition and block size, with all sources.
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

// Partitions returns the block sizes of each partition at the moment of the snapshot, as
// Conductor.Partitions does.
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

// SourceMark is a source with all that a replica needs to go on behind its mark.
type SourceMark struct {
	Registration
	// Static says that the configuration names the source.
	Static bool
	// Mark is the batch applied last, nil before the first.
	Mark *Mark
	// Parts is the most parts that one of its blocks had: see normalize/parts.go.
	Parts int
	// LookAheads are the look-aheads of its blocks in tokens, nil for 0 alone: see ahead.go.
	LookAheads []int
}

// snapContext is one context of a snapshot.
type snapContext struct {
	context *indexContext
	cut     *index.Cut // until its blocks are copied
	snap    *index.Snapshot
	known   map[uint64]uint64 // translation.of of then, maybe still in use; guarded by its mu
	holders map[index.Owner]snapHolder
	sources map[index.Source]Registration
	groups  map[int]string // kinds of attention groups
}

// snapHolder is the holder that an owner of the index stood for.
type snapHolder struct {
	key    normalize.Owner
	source Registration
	medium tiers.Medium
	// older and unverified are those of holder, of its previous generation.
	older, unverified bool
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

// Snapshot takes a snapshot. KeepsClientHashes must hold.
func (c *registry) Snapshot() *Snapshot {
	c.cutting.Lock()
	defer c.cutting.Unlock()
	snap := c.cut(nil)
	for i := range snap.contexts {
		snap.contexts[i].snap = snap.contexts[i].cut.Snapshot()
	}
	return snap
}

// cut returns a snapshot whose blocks are not copied yet, of one deployment unless of is nil.
// c.cutting is held until they are copied.
func (c *registry) cut(of *scope.Deployment) *Snapshot {
	began := time.Now()
	all, release := c.lockSources(of)
	defer release()
	snap := &Snapshot{}
	contexts := make(map[*indexContext]*snapContext)
	for _, s := range all {
		if s.recovered && !s.settled {
			continue // a recovery fills it: its mark promises blocks that have not come yet
		}
		snap.Sources = append(snap.Sources, s.snapshotMark())
		s.snapshotHolders(contexts)
	}
	for x, sc := range contexts {
		sc.cut, sc.known, sc.groups = x.index.Cut(), x.translation.all(), c.groupsOf(x.deployment)
		snap.contexts = append(snap.contexts, *sc)
	}
	slices.SortFunc(snap.contexts, func(a, b snapContext) int {
		x, y := a.context.scope(), b.context.scope()
		return x.Compare(&y)
	})
	snap.paused = time.Since(began)
	return snap
}

// Walk calls f for the blocks on a tier, one partition after the other, parents before
// children, until f returns false. f must not keep its argument.
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

// walk is Walk for one context.
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
	c.snap.Walk(func(o index.Owner) bool { h, ok := c.holders[o]; return ok && h.medium.Tier == tier }, func(e *index.Stretch) bool {
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
