package ingest

import (
	"runtime"
	"slices"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Snapshot is a copy of the holdings of all sources, each at the batch it applied last.
// Taking a snapshot holds up each event for the pieces that it changes. Walking it holds up
// no event.
type Snapshot struct {
	// Sources with their marks, sorted by key.
	Sources     []image.Source
	deployments []snapDeployment
	paused      time.Duration // how long events waited for the moment of the snapshot
}

// Mark is the batch that a source applied last, with its epoch.
type Mark = stream.Mark

// Stretch is a run of blocks, each behind the one before.
type Stretch = index.Stretch

// Of returns the part of a snapshot for one partition and block size, with all sources.
func (s *Snapshot) Of(p scope.Shard, blockSize int) *Snapshot {
	part := &Snapshot{Sources: s.Sources}
	for _, d := range s.deployments {
		if d.Deployment.Key == (scope.Deployment{Tenant: p.Tenant, Model: p.Model, BlockSize: blockSize}) {
			part.deployments = append(part.deployments, d)
		}
	}
	return part
}

// Keep drops all that belongs to other tenants.
func (s *Snapshot) Keep(tenants scope.Tenants) {
	s.Sources = slices.DeleteFunc(s.Sources, func(m image.Source) bool { return !tenants.Has(m.Tenant) })
	s.deployments = slices.DeleteFunc(s.deployments, func(d snapDeployment) bool { return !tenants.Has(d.Deployment.Key.Tenant) })
}

// Unify keeps the holders that shown accepts, before the first Walk. From then on every
// block has one name, for every holder: the one that most sources use, of equal ones
// that of the first source by key.
func (s *Snapshot) Unify(shown func(source registration.Registration, medium tiers.Medium) bool) {
	ranks := make(map[registration.Key]int, len(s.Sources))
	for i, m := range s.Sources {
		ranks[m.Key()] = i
	}
	for _, d := range s.deployments {
		d.snap.Unify(func(o index.Owner) (int, bool) {
			h, ok := d.holders[o]
			if !ok {
				return 0, false
			}
			return ranks[h.source.Key()], shown(*h.source, h.medium)
		})
	}
}

// Partitions returns the block sizes of each partition at the moment of the snapshot, as
// Catalog.Partitions does.
func (s *Snapshot) Partitions() map[scope.Shard][]int {
	all := make(map[scope.Shard][]int)
	add := func(dk scope.Deployment) {
		p := scope.Shard{Tenant: dk.Tenant, Model: dk.Model}
		if i, found := slices.BinarySearch(all[p], dk.BlockSize); !found {
			all[p] = slices.Insert(all[p], i, dk.BlockSize)
		}
	}
	for _, m := range s.Sources {
		add(m.Deployment())
	}
	for _, d := range s.deployments {
		add(d.Deployment.Key)
	}
	return all
}

// snapDeployment is one deployment of a snapshot.
type snapDeployment struct {
	Deployment *catalog.Deployment
	checkpoint *index.Checkpoint // until its blocks are copied
	snap       *index.Snapshot
	identities map[index.Identity]*names.Identity // of then
	known      map[uint64]uint64                  // translation.of of then, maybe still in use; guarded by its mu
	holders    map[index.Owner]snapHolder
	positions  map[index.Source]int // in Snapshot.Sources
	groups     map[int]string       // kinds of attention groups
}

// snapHolder is the holder that an owner of the index stood for.
type snapHolder struct {
	key    normalize.Owner
	source *registration.Registration // of the source, which never changes it
	at     int                        // position of the source in Snapshot.Sources
	medium tiers.Medium
	// older and unverified are those of holder, of its previous generation.
	older, unverified bool
	aside             bool // dumps for Dynamo's indexer leave its blocks out
}

// Stored is a run of blocks of one holder, each behind the one before.
type Stored struct {
	scope.Shard
	BlockSize int // tokens
	Lora      string
	Salt      string
	// Source announced the blocks, Rank of its instance holds them.
	Source  registration.Registration
	Rank    int32
	Medium  tiers.Medium
	Group   int
	Backend string
	Owned   bool // the copies are those of the engine's cache runner
	Chunk   int  // of normalize.Owner
	Listed  bool // of normalize.Owner
	*Stretch
	// Local hashes of the blocks, as many as ClientHashes; nil if both are the same.
	Local []uint64
}

// Snapshots takes copies of what the sources hold at one moment, and brings such copies back. The value is a view of Sources and
// costs nothing.
type Snapshots struct{ sources *Sources }

// Snapshots copies what the sources hold, and brings copies back.
func (c *Sources) Snapshots() Snapshots { return Snapshots{c} }

// Take takes a snapshot. Catalog.KeepsClientHashes must hold.
func (h Snapshots) Take() *Snapshot {
	h.sources.copying.Lock()
	defer h.sources.copying.Unlock()
	snap := h.takeCheckpoints(nil)
	for i := range snap.deployments {
		snap.deployments[i].snap = snap.deployments[i].checkpoint.Snapshot()
	}
	return snap
}

// takeCheckpoints returns a snapshot whose blocks are not copied yet, of one deployment unless of is nil.
// Sources.copying is held until they are copied.
func (h Snapshots) takeCheckpoints(of *scope.Deployment) *Snapshot {
	began := time.Now()
	all, release := h.sources.lockSources(of)
	defer release()
	snap := &Snapshot{Sources: make([]image.Source, 0, len(all))}
	deployments := make(map[*catalog.Deployment]*snapDeployment)
	for _, s := range all {
		if h.isBeingFilled(s) {
			continue // its mark promises blocks that have not come yet
		}
		s.holdings.snapshotHolders(deployments, len(snap.Sources))
		snap.Sources = append(snap.Sources, s.snapshotMark())
	}
	for d, sd := range deployments {
		sd.checkpoint, sd.known, sd.groups = d.Index.Checkpoint(), d.ClientHashes(), d.GroupKinds()
		sd.checkpoint.Yield = h.yieldToQueries
		sd.identities = make(map[index.Identity]*names.Identity)
		for _, id := range d.Names.All() { // one that leaves now has no block
			sd.identities[id.Number] = id
		}
		snap.deployments = append(snap.deployments, *sd)
	}
	slices.SortFunc(snap.deployments, func(a, b snapDeployment) int { return a.Deployment.Key.Compare(b.Deployment.Key) })
	snap.paused = time.Since(began)
	return snap
}

// queriesFirst is how long the copy of a snapshot sleeps after each 70 microseconds of work while queries arrive. It
// takes 7 % of a processor then.
const queriesFirst = time.Millisecond

// yieldToQueries lets queries have the only processor for a while, if one has arrived in this second or the last. It
// sleeps, because a goroutine that calls runtime.Gosched may go on before the sockets are polled: the next query would
// wait until the runtime preempts the copy, after 10 ms. With more processors, another one polls.
func (h Snapshots) yieldToQueries() {
	if runtime.GOMAXPROCS(0) > 1 {
		return
	}
	if ago := h.sources.catalog.SinceAsked(h.sources.now()); ago >= 0 && ago <= time.Second {
		time.Sleep(queriesFirst)
	}
}

// Walk calls f for the blocks on a tier, one partition after the other, parents before
// children, until f returns false. f must not keep its argument. Of the attention groups of a rank it
// passes one with full attention.
func (s *Snapshot) Walk(tier tiers.Tier, f func(*Stored) bool) {
	for _, d := range s.deployments {
		if !d.walk(tier, f) {
			return
		}
	}
}

// localOf returns the local hash of a client hash. Its block may be gone by now, or have
// come since.
func (d *snapDeployment) localOf(clientHash uint64) (uint64, bool) {
	if local, ok := d.Deployment.LocalHashIn(d.known, clientHash); ok {
		return local, true
	}
	return d.Deployment.LocalHashOf(clientHash)
}

// walk is Walk for one deployment.
func (d *snapDeployment) walk(tier tiers.Tier, f func(*Stored) bool) (more bool) {
	wanted := false
	for _, h := range d.holders {
		wanted = wanted || h.medium.Tier == tier
	}
	if !wanted {
		return true
	}
	dk := d.Deployment.Key
	st := Stored{Shard: scope.Shard{Tenant: dk.Tenant, Model: dk.Model}, BlockSize: dk.BlockSize}
	more = true
	var local []uint64
	of := func(o index.Owner) bool { h, ok := d.holders[o]; return ok && h.medium.Tier == tier && !h.aside }
	d.snap.Walk(of, func(e *index.Stretch) bool {
		h, id := d.holders[e.Owner], d.identities[e.Identity]
		if id == nil {
			return true // it came and left while the snapshot began
		}
		st.Lora, st.Salt = id.Lora, id.Salt
		st.Source, st.Rank, st.Medium, st.Group, st.Backend, st.Owned, st.Chunk, st.Listed = *h.source, h.key.Rank, h.medium, h.key.Group,
			h.key.Backend, h.key.Owned, h.key.Chunk, h.key.Listed
		fold(e, d.Deployment.Names.FoldOf(h.source.Variant(), catalog.NamingOf(h.source), id.Variant)) // out again
		st.Stretch, st.Local = e, nil
		if e.ClientHashes[0] != 0 && d.Deployment.TranslatesClientHashes(id.Variant) {
			local = local[:0]
			for _, clientHash := range e.ClientHashes {
				l, _ := d.localOf(clientHash)
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

// fold makes names of the hashes of a stretch, and hashes of its names.
func fold(e *index.Stretch, constant uint64) {
	if constant == 0 {
		return
	}
	e.Parent ^= constant
	for i := range e.Engine {
		e.Engine[i] ^= constant
	}
	for _, more := range e.More {
		for i := range more {
			more[i] ^= constant
		}
	}
}
