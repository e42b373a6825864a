package ingest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// An engine whose model has several kinds of layers announces a group of blocks for each. The source learns what the groups
// of each rank need, and owners of their blocks get a tiers.Cache, from which queries tell what the engine will take:
//
//	event with a kind --normalize.Learned--> holdings.specs --newCache--> tiers.Owner.Cache of each owner of the rank
//
// A rank with one group of full attention has no cache, unless its engine has a drafter, or a connector that loads chunks.

// cacheKey names what a rank has on one medium.
type cacheKey struct {
	rank   int32
	medium string
}

// learnGroup remembers what a rank has announced about one of its groups. Callers hold turn.
func (s *holdings) learnGroup(spec *normalize.Spec) {
	list := slices.Clone(s.specs[spec.Rank])
	at, known := slices.BinarySearchFunc(list, spec.Group, func(g normalize.Spec, n int) int { return cmp.Compare(g.Group, n) })
	forEncoders := normalize.ForEncoders(spec.Kind)
	switch {
	case known && forEncoders: // it has another kind than it said before
		list = slices.Delete(list, at, at+1)
	case known:
		list[at] = *spec
	case !forEncoders:
		list = slices.Insert(list, at, *spec)
	}
	s.mu.Lock()
	if s.specs == nil {
		s.specs = make(map[int32][]normalize.Spec)
	}
	s.specs[spec.Rank] = list
	s.mu.Unlock()
	for _, ns := range s.namespaces {
		s.renewCaches(ns, spec.Rank)
	}
}

// reportGroups adds a finding for each group of a rank if its events leave out what a hit depends on.
func reportGroups(d *doctor.Doctor, specs []normalize.Spec, reg *registration.Registration) {
	for i := range specs {
		if why := whyUnknown(specs, i, reg.BlockSize, reg.Drafter); why != "" {
			d.Findings.Report(doctor.FindingLayers, "attention group %d of rank %d: %s, so answers do not ask for what it needs and are "+
				"an upper bound", specs[i].Group, specs[i].Rank, why)
		}
	}
}

// whyUnknown says what events leave out about group i of a rank. It returns "" if they leave out nothing, or the kind, which
// Doctor.weighGroups reports.
func whyUnknown(specs []normalize.Spec, i, size int, drafter string) string {
	spec := &specs[i]
	switch g := spec.NeedIn(size); {
	case spec.Kind == "":
		return ""
	case !normalize.IndexedGroup(spec.Kind):
		return fmt.Sprintf("its kind %q is not known", spec.Kind)
	case g.Need == tiers.NeedWindow && spec.Block > 0 && hidesBlocks(specs, i, drafter):
		return "its window keeps a block more for a drafter, its blocks are smaller than those with full attention, and events " +
			"do not say which it keeps"
	case g.Need != tiers.NeedUnknown:
		return ""
	case spec.Block%size != 0:
		return fmt.Sprintf("its blocks of %d tokens are no multiple of the registered %d", spec.Block, size)
	}
	return fmt.Sprintf("events do not say how long the chunks of its %s are", spec.Kind)
}

// renewCaches gives the owners of a rank in a namespace the groups that are known now.
func (s *holdings) renewCaches(ns *namespace, rank int32) {
	for key := range ns.caches {
		if key.rank == rank {
			delete(ns.caches, key)
		}
	}
	changed := make(map[index.Owner]tiers.Owner)
	table := ns.Deployment.Owners()
	for key, h := range ns.owners {
		if key.Rank != rank {
			continue
		}
		cache, group := s.cacheOf(ns, key)
		for _, o := range h.owners {
			now := table[o]
			now.Cache, now.Group = cache, group
			changed[o] = now
			for i := range s.hidden {
				if hidden := &s.hidden[i]; hidden.ns == ns && hidden.owner == o {
					hidden.shown.Cache, hidden.shown.Group = cache, group
				}
			}
		}
	}
	if len(changed) > 0 {
		ns.Deployment.SetOwners(changed)
	}
}

// cacheOf returns the cache of a holder and the place of its group there, nil if it has none.
func (s *holdings) cacheOf(ns *namespace, key normalize.Owner) (*tiers.Cache, uint32) {
	if key.Owned || key.Objects || s.reg.IsPool() {
		return nil, 0
	}
	name, specs := cacheKey{key.Rank, key.Medium}, s.specs[key.Rank]
	alone := s.reg.Drafter != "" || ns.loads[key.Rank] // a single group with full attention needs a cache, too
	if alone || len(specs) > 0 {
		specs = withFull(specs, key.Rank)
	}
	at, known := slices.BinarySearchFunc(specs, key.Group, func(g normalize.Spec, n int) int { return cmp.Compare(g.Group, n) })
	if !known || len(specs) == 1 && normalize.MainGroup(specs[0].Kind) && !alone {
		return nil, 0
	}
	cache := ns.caches[name]
	if cache == nil || len(cache.Groups) != len(specs) || cache.Tier > tiers.Device && cache.Groups[at].Unannounced {
		cache = ns.newCache(name, specs, key.Group, s.reg.Drafter)
	}
	return cache, uint32(at)
}

// withFull returns the groups of a rank. If no event has named any kind, it adds group 0 with full attention, as EVENT-1 says.
func withFull(specs []normalize.Spec, rank int32) []normalize.Spec {
	if slices.ContainsFunc(specs, func(g normalize.Spec) bool { return g.Kind != "" }) {
		return specs
	}
	return slices.Insert(slices.Clone(specs), 0, normalize.Spec{Rank: rank, Kind: fullAttention})
}

// noteLoads remembers that the connector of a rank loads chunks of several blocks, and only whole ones.
func noteLoads(s *holdings, ns *namespace, rank int32) {
	if ns.loads[rank] {
		return
	}
	if ns.loads == nil {
		ns.loads = make(map[int32]bool)
	}
	ns.loads[rank] = true
	s.renewCaches(ns, rank)
}

// groupsOn returns the groups that a rank has announced on a medium.
func (ns *namespace) groupsOn(at cacheKey) map[int]bool {
	groups := make(map[int]bool)
	for key := range ns.owners {
		if key.Rank == at.rank && key.Medium == at.medium && !key.Owned {
			groups[key.Group] = true
		}
	}
	return groups
}

// fullAttention is the kind of a group whose engine tells none.
const fullAttention = "full_attention"

// newCache makes the cache of a rank on a medium, on which it announces a group now. drafter is that of the registration. Below the
// device the rank may keep some groups only, or say nothing of the others, so what these need is not known before it has announced
// them there.
func (ns *namespace) newCache(name cacheKey, specs []normalize.Spec, group int, drafter string) *tiers.Cache {
	size, below := ns.Deployment.Key.BlockSize, name.medium != tiers.NameDevice
	groups, unit, fine := make([]tiers.Group, len(specs)), 0, false
	var announced map[int]bool
	if below {
		announced = ns.groupsOn(name)
	}
	for i := range specs {
		switch {
		case !below:
			groups[i] = specs[i].NeedIn(size)
		case specs[i].Group == group || announced[specs[i].Group]:
			groups[i] = specs[i].NeedBelow(size)
		default:
			groups[i] = tiers.Group{Number: specs[i].Group, Need: tiers.NeedUnknown, Block: 1, Unannounced: true}
		}
		if specs[i].Unit > 0 && specs[i].Unit%size == 0 {
			unit = max(unit, specs[i].Unit/size)
			fine = fine || groups[i].Need == tiers.NeedState
		}
	}
	// A hit ends inside a block only if there are state-space layers, although full attention announces such ends in any case. A connector
	// loads up to such an end only if all groups have blocks of one size.
	if !fine || below && sizesDiffer(specs) {
		unit = 0
	}
	cache := &tiers.Cache{Slot: ns.slotOf(name), Rank: ns.slotOf(cacheKey{rank: name.rank}), Tier: tiers.ParseMedium(name.medium).Tier}
	cache.SetGroups(groups, unit)
	setDrops(cache, specs, drafter)
	if ns.caches == nil {
		ns.caches = make(map[cacheKey]*tiers.Cache)
	}
	ns.caches[name] = cache
	return cache
}

// setDrops marks the groups of a new cache that drop the last block of a hit for a drafter.
func setDrops(c *tiers.Cache, specs []normalize.Spec, drafter string) {
	inWindows := dropsInWindows(drafter, specs)
	for i := range c.Groups {
		switch g := &c.Groups[i]; g.Need {
		case tiers.NeedAll:
			g.Drops = drafter == registration.DrafterDrops || drafter == registration.DrafterDropsInAll
		case tiers.NeedWindow:
			if g.Drops = inWindows; hidesBlocks(specs, i, drafter) {
				*g = tiers.Group{Number: g.Number, Need: tiers.NeedUnknown, Block: g.Block}
			}
		}
	}
}

// hidesBlocks reports whether events leave out which blocks the window of group i has. That is so if it keeps one more for a drafter and
// full attention, whose blocks are larger, does not name them all. See sparse.go.
func hidesBlocks(specs []normalize.Spec, i int, drafter string) bool {
	return dropsInWindows(drafter, specs) && hasFull(specs) && !namesAll(specs, specs[i].Block)
}

// sizesDiffer reports whether groups of a rank have blocks of several sizes.
func sizesDiffer(specs []normalize.Spec) bool {
	size := 0
	for i := range specs {
		if own := specs[i].Block; own > 0 && size > 0 && own != size {
			return true
		}
		size = max(size, specs[i].Block)
	}
	return false
}

// hasFull reports whether a group of a rank has full attention.
func hasFull(specs []normalize.Spec) bool {
	return slices.ContainsFunc(specs, func(g normalize.Spec) bool { return normalize.MainGroup(g.Kind) })
}

// dropsInWindows reports whether a drafter has layers in the windows of a rank, as it has if there is no full attention.
func dropsInWindows(drafter string, specs []normalize.Spec) bool {
	return drafter != "" && (drafter != registration.DrafterDrops || !hasFull(specs))
}

// slotOf returns the number of a cache, or of a rank where the medium is "".
func (ns *namespace) slotOf(name cacheKey) int {
	slot, known := ns.slots[name]
	if !known {
		if ns.slots == nil {
			ns.slots = make(map[cacheKey]int)
		}
		slot = ns.Deployment.Caches.NewSlot()
		ns.slots[name] = slot
	}
	return slot
}

// repeatsHit reports whether a stored event lists blocks that a request reuses, of an engine that reports them. Of a sliding window and
// of state-space layers vLLM lists all blocks of the hit, although the group may have kept the last ones alone. That it has the last
// one tells such a report from new blocks.
func repeatsHit(a *applier, ns *namespace, c *normalize.Change, fold uint64) bool {
	if !a.holdings.full || c.Medium.Tier != tiers.Device || c.Cut.HasParent || len(c.Cut.Hashes) == 0 {
		return false
	}
	for _, g := range a.holdings.specs[c.Owner.Rank] {
		if g.Group != c.Owner.Group || normalize.MainGroup(g.Kind) {
			continue
		}
		last := []uint64{c.Cut.Hashes[len(c.Cut.Hashes)-1] ^ fold}
		for key, h := range ns.owners {
			if key.Rank != c.Owner.Rank || key.Group != g.Group || key.Medium != c.Owner.Medium {
				continue
			}
			for _, o := range h.owners {
				if ns.Deployment.Index.Inspect().Copies(nil, o, last)[0] > 0 {
					return true
				}
			}
		}
	}
	return false
}

// isSparse reports whether the groups of a source are known, and none has full attention.
func isSparse(specs map[int32][]normalize.Spec) bool {
	for rank, list := range specs {
		if hasFull(withFull(list, rank)) {
			return false
		}
	}
	return len(specs) > 0
}

// decidesStay reports whether the times that a holder's blocks stay show how long prompts stay. Engines free blocks behind a sliding
// window at once, so if a rank has full attention, only the blocks of that count.
func decidesStay(specs []normalize.Spec, key normalize.Owner) bool {
	decides := true
	for i := range specs {
		spec := &specs[i]
		if normalize.MainGroup(spec.Kind) && spec.Group != key.Group {
			decides = false
		} else if spec.Group == key.Group && normalize.MainGroup(spec.Kind) {
			return true
		}
	}
	return decides
}

// groupRows returns the groups of all ranks with the blocks that they hold, nil if each rank has group 0 alone and that has full
// attention.
func groupRows(specs map[int32][]normalize.Spec, blocks map[groupOf]int) (rows []status.Group) {
	plain := true
	for _, rank := range slices.Sorted(maps.Keys(specs)) {
		for _, g := range withFull(specs[rank], rank) {
			plain = plain && g.Group == 0 && normalize.MainGroup(g.Kind)
			rows = append(rows, status.Group{Rank: int(rank), Number: g.Group, Kind: g.Kind, Window: g.Window, BlockSize: g.Block,
				Blocks: blocks[groupOf{rank, g.Group}]})
		}
	}
	if plain {
		return nil
	}
	return rows
}

// groupOf names a group of a rank.
type groupOf struct {
	rank  int32
	group int
}

// isAside reports whether dumps for Dynamo's indexer, which knows one group, leave out the blocks of a group of a rank: those of groups
// without full attention, and of further ones with it.
func isAside(specs []normalize.Spec, group int) bool {
	for i := range specs {
		if normalize.MainGroup(specs[i].Kind) {
			return specs[i].Group != group && group != normalize.NoGroup
		}
	}
	return slices.ContainsFunc(specs, func(g normalize.Spec) bool { return g.Group == group })
}
