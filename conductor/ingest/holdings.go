package ingest

import (
	"slices"
	"sync"
	"sync/atomic"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// holdings are what one source holds, by deployment. They alone enter and leave deployments, hand
// out owners, and take blocks away. The turn of the source guards them where nothing else
// is said.
type holdings struct {
	catalog *catalog.Catalog
	member  *catalog.Member
	reg     *registration.Registration // of member
	policy  index.CopyPolicy           // of reg, for the engine's own copies
	// full says that a store of a block which the engine has on its device is a touch: the registration says
	// so, or the balance of stores and removals has shown it.
	full bool

	digest  *index.SharedDigest             // of the blocks, see digest.go
	media   map[string]tiers.Medium         // announced in this epoch, by name; see mediumOf
	past    past                            // what the source lost lately, see past.go
	byKey   map[scope.Deployment]*namespace // namespaces by their deployment
	holders int                             // of all namespaces
	specs   map[int32][]normalize.Spec      // attention groups by rank, ordered by number, see caches.go; as namespaces
	folded  []uint64                        // buffer of names

	resets  map[lowerTier]*reset // see resets.go; guarded as namespaces are
	cleared clearing             // the last one

	filling bool          // a snapshot of the engine is being applied, see fill.go
	hidden  []hiddenOwner // owners that are shown at its end

	mu         sync.Mutex
	namespaces []*namespace               // changed with turn held; guarded by mu for others
	tallies    map[tallyKey]*atomic.Int64 // blocks on devices; guarded by mu
}

// withdraw takes blocks from every deployment that has them, and returns how many of them one had.
func (s *holdings) withdraw(e *events.Event, key normalize.Owner) (found int) {
	if key.Group == normalize.NoGroup {
		found = s.withdrawFrom(e, key)
		if key.Group = 0; found == len(e.Hashes) {
			return found
		}
	}
	return min(found+s.withdrawFrom(e, key), len(e.Hashes))
}

// withdrawFrom is withdraw for one group.
func (s *holdings) withdrawFrom(e *events.Event, key normalize.Owner) (found int) {
	if e.Joined > 0 && !s.namesOnce(e) {
		for one := range e.Split() {
			found += s.withdrawFrom(one, key) // a block leaves under the first of its names that one has
		}
		return found
	}
	for _, ns := range s.namespaces {
		if !ns.Deployment.Key.Within(e) {
			continue
		}
		if ns.parts() > 0 || len(ns.chunks[key.Medium]) > 0 {
			found += s.withdrawChunks(ns, e, key)
			continue
		}
		h, ok := ns.owners[key]
		if !ok {
			continue
		}
		ns.Names.Removed(e, func(fold uint64) bool {
			for _, o := range h.owners {
				res := ns.Deployment.Index.Remove(o, s.names(e.Hashes, fold), e.Remaining, s.copies(key))
				found += res.Removed + res.Copies
			}
			return found < len(e.Hashes)
		})
	}
	return min(found, len(e.Hashes))
}

// namesOnce reports whether each hash of a removed event has a single name.
func (s *holdings) namesOnce(e *events.Event) bool {
	return !slices.ContainsFunc(s.namespaces, func(ns *namespace) bool { return !ns.Names.NamesOnce(e) })
}

// names returns what hashes name if a constant is folded in. It is valid until the next call.
func (s *holdings) names(hashes []uint64, fold uint64) []uint64 {
	if fold == 0 {
		return hashes
	}
	if cap(s.folded) > keptHashes {
		s.folded = nil
	}
	s.folded = s.folded[:0]
	for _, h := range hashes {
		s.folded = append(s.folded, h^fold)
	}
	return s.folded
}

// keptHashes bounds the buffers of hashes that a source keeps: 32 KiB each.
const keptHashes = 4096

// clear drops all blocks of a holder, and returns how many it held.
func (ns *namespace) clear(h *holder) (n int) {
	for _, o := range h.owners {
		n += ns.Deployment.Index.ClearOwner(o)
	}
	ns.Deployment.TidySoon()
	return n
}

// clearNamed drops the blocks of a holder that a cleared event is about, and returns how many it held.
// Only standardized events name an adapter or a salt.
func (ns *namespace) clearNamed(h *holder, e *events.Event) (n int) {
	if e.LoraName == nil && e.Salt == nil {
		return ns.clear(h)
	}
	n = ns.Deployment.Index.ClearIdentities(h.owners, func(number index.Identity) bool {
		id := ns.Names.Table.Of(number)
		return id != nil && id.Within(e)
	}, nil)
	ns.Deployment.TidySoon()
	return n
}

// purgeGroup drops blocks of a group that was indexed before its kind was known.
func (s *holdings) purgeGroup(rank int32, group int) {
	for _, ns := range s.namespaces {
		for key, h := range ns.owners {
			if key.Rank == rank && key.Group == group {
				ns.clear(h)
			}
		}
	}
}

// parts is the most parts a published block of the deployment had, 0 while none had
// several.
func (ns *namespace) parts() int { return ns.Deployment.MostParts() }

// copies returns what repeated stores mean for a holder. In a pool that announces blocks
// one is there or not, however often it is announced; the pool distinguishes objects before. The
// cache runner holds a block once.
func (s *holdings) copies(key normalize.Owner) index.CopyPolicy {
	switch {
	case key.Objects, s.filling:
		return index.CopyCount
	case s.reg.IsPool(), key.Owned, s.full && key.Medium == tiers.NameDevice:
		return index.CopySet
	}
	return s.policy
}

// onDevice calls f for each owner that stands for blocks which the engine itself has on its device. chunk is how many registered
// blocks each of those is.
func (s *holdings) onDevice(f func(ns *namespace, o index.Owner, chunk int)) {
	for _, ns := range s.namespaces {
		for key, h := range ns.owners {
			if key.Medium == tiers.NameDevice && !key.Owned {
				for _, o := range h.owners {
					f(ns, o, max(key.Chunk, 1))
				}
			}
		}
	}
}

// countedOnDevice returns how many blocks and copies, of its own size, the engine has on its device by its events.
func (s *holdings) countedOnDevice() (n int) {
	s.onDevice(func(ns *namespace, o index.Owner, chunk int) {
		n += ns.Deployment.Index.Inspect().CountCopies(o) / chunk
	})
	return n
}

// assumeFull makes stores of blocks that the engine has on its device touches, those before included. What
// the engine may have evicted since goes. Blocks from a snapshot or a peer do not tell which those are, so
// then all go, and so do all that have several parts, where a part has copies for other reasons.
func (s *holdings) assumeFull(inherited bool) {
	s.full = true
	s.onDevice(func(ns *namespace, o index.Owner, chunk int) {
		if inherited || chunk > 1 {
			ns.Deployment.Index.ClearOwner(o)
		} else {
			ns.Deployment.Index.DropCopies(o)
		}
		ns.Deployment.TidySoon()
	})
}

// previousGeneration returns the previous generation of a holder, making it when new.
func (s *holdings) previousGeneration(ns *namespace, h *holder, key normalize.Owner, medium tiers.Medium) index.Owner {
	if len(h.owners) == 1 {
		old := s.newOwner(ns, key, medium)
		s.mu.Lock()
		h.owners = append(h.owners, old)
		s.mu.Unlock()
	}
	return h.owners[1]
}

// unverifiedGeneration is previousGeneration, for blocks that are a guess at those the engine
// holds.
func (s *holdings) unverifiedGeneration(ns *namespace, h *holder, key normalize.Owner, medium tiers.Medium) index.Owner {
	h.unverified = true
	return s.previousGeneration(ns, h, key, medium)
}

// placed reports whether the parent of the stretch is already in a chain.
func (ns *namespace) placed(e *index.Stretch) bool {
	return e.HasParent && ns.Deployment.Index.Inspect().IsPlaced(ns.Source, e.Parent)
}

// dropUnverified drops what was recovered without a mark, now that the source has seen the
// whole history of its publisher. turn is held.
func (s *holdings) dropUnverified() {
	for _, ns := range s.namespaces {
		for _, h := range ns.owners {
			if h.unverified {
				ns.Deployment.Index.ClearOwner(h.owners[1])
				ns.Deployment.TidySoon()
				h.unverified = false
			}
		}
	}
}

// hasUnverified reports whether an older generation holds blocks that a peer knew, without a
// mark. turn is held.
func hasUnverified(s *holdings) bool {
	for _, ns := range s.namespaces {
		for _, h := range ns.owners {
			if h.unverified {
				return true
			}
		}
	}
	return false
}

// snapshotHolders adds the owners of the source to all. at is the position that the source will have in Snapshot.Sources.
// turn is held.
func (s *holdings) snapshotHolders(all map[*catalog.Deployment]*snapDeployment, at int) {
	if s.filling {
		return // it holds nothing yet
	}
	for _, ns := range s.namespaces {
		of := all[ns.Deployment]
		if of == nil {
			of = &snapDeployment{Deployment: ns.Deployment, holders: make(map[index.Owner]snapHolder, len(ns.Deployment.Owners())),
				positions: make(map[index.Source]int)}
			all[ns.Deployment] = of
		}
		of.positions[ns.Source] = at
		for key, h := range ns.owners {
			for i, o := range h.owners {
				of.holders[o] = snapHolder{key: key, source: s.reg, at: at, medium: s.media[key.Medium], older: i > 0,
					unverified: i > 0 && h.unverified, aside: isAside(s.specs[key.Rank], key.Group)}
			}
		}
	}
}

// namespace is a Namespace with what the source holds in it.
type namespace struct {
	*catalog.Namespace
	owners map[normalize.Owner]*holder
	chunks map[string][]int // by medium, sizes of chunks that holders have, in blocks, ascending; guarded by turn
	// caches are those that owners have now, slots the numbers that they keep; see caches.go. Guarded by turn.
	caches map[cacheKey]*tiers.Cache
	slots  map[cacheKey]int
	// loads are the ranks with vLLM's OffloadingConnector and chunks of several blocks, which it loads whole. Guarded by turn.
	loads map[int32]bool
}

// holder has the owners of the index that stand for one normalize.Owner.
type holder struct {
	// owners are one or two generations: that of blocks announced now, and the one of the period before
	// where the source has a time to live, or blocks that are a guess. Guarded as namespaces are.
	owners     []index.Owner
	unverified bool // the older one holds blocks that a peer knew, without a mark
	// inParts says that a holder of single blocks may have blocks of several parts: it is from a snapshot of a release which did
	// not tell those apart.
	inParts bool
}

func (s *holdings) deploymentKey() scope.Deployment { return s.reg.Deployment() }

// namespaceIn returns the source's namespace in a deployment, entering it when new; nil if there are too
// many.
func (s *holdings) namespaceIn(key scope.Deployment) *namespace {
	ns, ok := s.byKey[key]
	if !ok {
		if len(s.byKey) >= maxDeployments {
			return nil
		}
		ns = &namespace{Namespace: s.catalog.Enter(s.member, key), owners: make(map[normalize.Owner]*holder)}
		s.byKey[key] = ns
		s.mu.Lock()
		s.namespaces = append(s.namespaces, ns)
		s.mu.Unlock()
	}
	return ns
}

// in returns the namespace in a deployment, nil if there is none. mu is held.
func (s *holdings) in(d *catalog.Deployment) *namespace {
	for _, ns := range s.namespaces {
		if ns.Deployment == d {
			return ns
		}
	}
	return nil
}

// Publishers choose the names and numbers that tell holders apart: media, ranks, groups, backends, models
// and block sizes. Each holder takes room in the index, and some are rows of answers and metrics, so a
// source has bounds.
const (
	// maxHolders bounds the holders of a source: 64 ranks with 16 groups on 4 media.
	maxHolders = 4096
	// maxDeployments bounds the tenants, models and block sizes that a source holds blocks of.
	maxDeployments = 256
	// maxOtherMedia bounds the media that no table has. The publishers that are known have none.
	maxOtherMedia = 16
	// maxMediumName is in bytes.
	maxMediumName = 64
)

// otherMedia stands for all media that mediumOf does not tell apart.
const otherMedia = "OTHER"

// mediumOf returns what a medium of the source's events counts as: itself, unless no table has it and the
// source has stored on too many of those. stores is true for a medium of a stored event. turn is held.
func (s *holdings) mediumOf(raw string, stores bool) tiers.Medium {
	m := tiers.ParseMedium(raw)
	if m.Tier != tiers.Other {
		return m
	}
	if _, known := s.media[m.Name]; known {
		return m
	}
	others := 0
	for _, o := range s.media {
		if o.Tier == tiers.Other && o.Name != otherMedia {
			others++
		}
	}
	if others >= maxOtherMedia || len(m.Name) > maxMediumName {
		m.Name = otherMedia
	}
	if stores {
		s.media[m.Name] = m
	}
	return m
}

// noRoomFor reports whether the source may have no holder for a key, because it has too many others. turn is held.
func (s *holdings) noRoomFor(ns *namespace, key normalize.Owner) bool {
	return s.holders >= maxHolders && ns.owners[key] == nil
}

// leaveAll drops all that the source holds.
func (s *holdings) leaveAll() {
	s.mu.Lock()
	all := s.namespaces
	s.namespaces, s.tallies, s.holders, s.specs, s.resets = nil, nil, 0, nil, nil
	s.mu.Unlock()
	s.media = make(map[string]tiers.Medium) // another source may have inherited the old one
	s.cleared = clearing{}
	for _, ns := range all {
		delete(s.byKey, ns.Deployment.Key)
		s.catalog.Leave(ns.Namespace)
		ns.Deployment.Index.DecideContests(nil)
	}
}

// blocks returns the memberships in the namespace. Callers that do not hold the turn hold mu of
// its source.
func (ns *namespace) blocks() int {
	n := 0
	for _, h := range ns.owners {
		for _, o := range h.owners {
			n += ns.Deployment.Index.BlocksOf(o)
		}
	}
	return n
}

// holder returns the holder for a key, making it when new.
func (s *holdings) holder(ns *namespace, key normalize.Owner, medium tiers.Medium) *holder {
	if h, ok := ns.owners[key]; ok {
		return h
	}
	if key.Listed && key.Chunk > 1 {
		noteLoads(s, ns, key.Rank)
	}
	o := s.newOwner(ns, key, medium)
	h := &holder{owners: []index.Owner{o}}
	s.countIn(ns, key, o)
	s.media[medium.Name] = medium
	s.holders++
	ns.noteChunks(key)
	if medium.Tier == tiers.Device && !key.Owned && key.Chunk > 0 { // others may have come without a size: see put
		ns.NoteEngineBlock(key.Chunk)
	}
	s.mu.Lock()
	ns.owners[key] = h
	s.mu.Unlock()
	if medium.Tier != tiers.Device && len(s.specs[key.Rank]) > 1 { // the rank has this group there now, too
		s.renewCaches(ns, key.Rank)
	}
	return h
}

func (s *holdings) newOwner(ns *namespace, key normalize.Owner, medium tiers.Medium) index.Owner {
	var tally *atomic.Int64
	if medium.Tier == tiers.Device {
		tally = s.tally(ns.Deployment.Key, key.Rank)
	} else {
		ns.Deployment.Index.KeepGhosts() // lower tiers name blocks that have left the device
	}
	shown := tiers.Owner{Instance: ns.InstanceID, Rank: key.Rank, Medium: medium, Serves: ns.Serves, Chunk: uint32(key.Chunk)}
	shown.Cache, shown.Group = s.cacheOf(ns, key)
	at := shown
	if s.filling {
		at.Instance = tiers.Retired
	}
	o := ns.Deployment.NewOwner(ns.Source, at, tally)
	if s.filling {
		s.hidden = append(s.hidden, hiddenOwner{ns, o, shown})
	}
	s.past.recordLosses(ns, key, o)
	return o
}

// blocks returns how many block memberships the source has, over all deployments.
func (s *holdings) blocks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ns := range s.namespaces {
		n += ns.blocks()
	}
	return n
}

// tallyKey is what blocks of one source are counted by, over adapters and salts.
type tallyKey struct {
	deployment scope.Deployment
	rank       int32
}

// tally returns the number of blocks a rank holds on devices.
func (s *holdings) tally(of scope.Deployment, rank int32) *atomic.Int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := tallyKey{of, rank}
	n := s.tallies[key]
	if n == nil {
		if s.tallies == nil {
			s.tallies = make(map[tallyKey]*atomic.Int64)
		}
		n = new(atomic.Int64)
		s.tallies[key] = n
	}
	return n
}

// ringBells tells watches that a step of the source was applied. Deployments that it left meanwhile ring by
// themselves.
func (s *holdings) ringBells() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		ns.Deployment.NotifyChange()
	}
}
