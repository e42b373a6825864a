package ingest

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/events"
	"example.com/conductor/index"
)

// An adapter can be unloaded and loaded again under its name from another path. The engine counts what it loads, so the
// lora_id of its events rises, and from vLLM 0.32 on it hashes the path: nothing that it has cached for the old version serves
// the new one. Both have one name, and so one place in the index, where the blocks of the old version leave:
//
//	stored sql, lora_id 1: h1 h2    version 1 has 2 blocks
//	stored sql, lora_id 2: h7       a higher number: h1 h2 leave all media, and are remembered as retired
//	stored     (cpu)     : h2       retired: left out
//	stored sql, lora_id 1: h3       a lower number: left out, and retired
//	removed              : h1 h3    retired: nothing to remove, and not unknown
//
// Engines that leave the path out of their hashes, and those that load the same path again, have one version under several
// numbers. It shows where the event names a block that the source holds, or goes on behind one: then nothing leaves.
//
// The numbers are those of one process, and with data parallelism those of one rank.

// versionKey is an adapter of a rank.
type versionKey struct {
	rank int32
	lora string
}

// versionIDs are the lora_ids, from the lowest to the highest, of the version that a rank has.
type versionIDs struct{ lowest, highest uint64 }

// retiredHash is the hash of a block of a version that a rank does not have any more.
type retiredHash struct {
	rank int32
	hash uint64
}

// maxRetired bounds the retired hashes that a source remembers; they take some 3 MB. A removal of any further one counts as one of an
// unknown block.
const maxRetired = 1 << 16

// versions are the adapters that the events of a source number. Only the registered deployment has any: events about
// others are standardized ones, which have no lora_id.
type versions struct {
	ids     map[versionKey]versionIDs
	retired map[retiredHash]struct{} // nil until an adapter is replaced
}

// isOutdated reports whether stored blocks are of a version of their adapter that the source has replaced. If they are the
// first ones of a new version, the blocks of the old one leave.
func (a *applier) isOutdated(ns *namespace, c *normalize.Change) bool {
	e, v := c.Event, &a.versions
	if e.LoraID == 0 || e.LoraName == nil || *e.LoraName == "" {
		return v.retired != nil && v.hasRetired(c.Owner.Rank, e.Hashes)
	}
	if a.reg.IsPool() {
		return false
	}
	key := versionKey{c.Owner.Rank, *e.LoraName}
	ids, known := v.ids[key]
	switch {
	case !known:
		v.keep(key, versionIDs{e.LoraID, e.LoraID}, ns)
	case ids.lowest <= e.LoraID && e.LoraID <= ids.highest:
	case ns.Names.HoldsAs(key.lora, ns.ownersOf(key.rank), e): // the same version under another number
		v.ids[key] = versionIDs{min(ids.lowest, e.LoraID), max(ids.highest, e.LoraID)}
	case e.LoraID < ids.lowest:
		v.retire(key.rank, e.Hashes)
		return true
	default:
		a.replaceVersion(ns, key)
		v.ids[key] = versionIDs{e.LoraID, e.LoraID}
	}
	if v.retired != nil {
		for _, h := range e.Hashes {
			delete(v.retired, retiredHash{key.rank, h})
		}
	}
	return false
}

// replaceVersion takes the blocks of an adapter, with all salts, from the holders of a rank.
func (a *applier) replaceVersion(ns *namespace, key versionKey) {
	table, v := ns.Names.Table, &a.versions
	if len(v.retired) >= maxRetired {
		v.retired = nil // the older ones have nearly all been removed by now
	}
	ns.Deployment.Index.ClearIdentities(ns.ownersOf(key.rank), func(number index.Identity) bool {
		id := table.Of(number)
		return id != nil && id.Lora == key.lora
	}, func(name uint64) { v.retireHash(key.rank, ns.Names.HashOf(name)) })
	ns.Deployment.Index.DecideContests(nil)
	ns.Deployment.TidySoon()
}

// ownersOf returns the owners of all holders of a rank.
func (ns *namespace) ownersOf(rank int32) (all []index.Owner) {
	for key, h := range ns.owners {
		if key.Rank == rank {
			all = append(all, h.owners...)
		}
	}
	return all
}

// keep notes the numbers of an adapter that had none. Publishers name adapters as they like: if there are too many, those
// without blocks in the deployment are forgotten, and if none is, this one is not kept.
func (v *versions) keep(key versionKey, ids versionIDs, ns *namespace) {
	if v.ids == nil {
		v.ids = make(map[versionKey]versionIDs)
	}
	if len(v.ids) >= catalog.MaxAdapters {
		living := make(map[string]bool)
		for _, id := range ns.Names.Table.All() {
			living[id.Lora] = true
		}
		for of := range v.ids {
			if !living[of.lora] {
				delete(v.ids, of)
			}
		}
	}
	if len(v.ids) < catalog.MaxAdapters {
		v.ids[key] = ids
	}
}

// retire remembers hashes of an old version.
func (v *versions) retire(rank int32, hashes []uint64) {
	for _, h := range hashes {
		v.retireHash(rank, h)
	}
}

func (v *versions) retireHash(rank int32, hash uint64) {
	if v.retired == nil {
		v.retired = make(map[retiredHash]struct{})
	}
	if len(v.retired) < maxRetired {
		v.retired[retiredHash{rank, hash}] = struct{}{}
	}
}

// hasRetired reports whether one of some hashes is retired.
func (v *versions) hasRetired(rank int32, hashes []uint64) bool {
	return slices.ContainsFunc(hashes, func(h uint64) bool {
		_, old := v.retired[retiredHash{rank, h}]
		return old
	})
}

// withoutRetired returns a removed event without the hashes that are retired. Their blocks have left, and where another source
// has the old version still, their hashes would name blocks that this one has by the hashes of the new version.
func (v *versions) withoutRetired(rank int32, e *events.Event) *events.Event {
	if !v.hasRetired(rank, e.Hashes) {
		return e
	}
	kept := *e
	kept.Hashes, kept.Remaining = nil, nil
	for i, h := range e.Hashes {
		if _, old := v.retired[retiredHash{rank, h}]; old {
			continue
		}
		kept.Hashes = append(kept.Hashes, h)
		if e.Remaining != nil {
			kept.Remaining = append(kept.Remaining, e.Remaining[i])
		}
	}
	if e.Joined > 0 {
		kept.Joined = max(len(kept.Hashes)-1, 0)
	}
	return &kept
}

// list returns the numbers for a snapshot, in the order of ranks and names.
func (v *versions) list() (all []image.Adapter) {
	for key, ids := range v.ids {
		all = append(all, image.Adapter{Rank: key.rank, Lora: key.lora, Lowest: ids.lowest, Highest: ids.highest})
	}
	slices.SortFunc(all, func(a, b image.Adapter) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Lora, b.Lora)) })
	return all
}

// restore takes the numbers of a snapshot over.
func (v *versions) restore(all []image.Adapter) {
	for _, one := range all {
		if v.ids == nil {
			v.ids = make(map[versionKey]versionIDs)
		}
		if len(v.ids) < catalog.MaxAdapters {
			v.ids[versionKey{one.Rank, one.Lora}] = versionIDs{one.Lowest, one.Highest}
		}
	}
}
