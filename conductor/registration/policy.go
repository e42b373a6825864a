package registration

import (
	"slices"
	"strings"

	"example.com/conductor/index"
)

// A registration rules what the events of its source may do and how they count. The zero value of each field is the rule
// that most sources need:
//
//	Copies       ""   as stream.copies           count, set; count with a SnapshotEndpoint
//	Reports      ""   what its balance shows     incremental, full
//	Drafter      ""   takes no block of a hit    drops_last_block, drops_in_windows, drops_in_all_groups
//	Owned        ""   count                      drop
//	Clear        ""   as the type does           all, device
//	MayAnnounce  nil  the tenant of the source   further tenants

// Values of Registration.Copies, Reports, Drafter, Owned and Clear.
const (
	// DrafterDrops: the engine computes the last block of each hit again, for its drafter, whose layers are in a group with full
	// attention. DrafterDropsInWindows and DrafterDropsInAll: it does so in groups with a sliding window, or in both.
	DrafterDrops          = "drops_last_block"
	DrafterDropsInWindows = "drops_in_windows"
	DrafterDropsInAll     = "drops_in_all_groups"
	CopiesCount           = "count" // a block leaves with its last copy
	CopiesSet             = "set"   // a block leaves at the first removal
	OwnedCount            = "count" // blocks of the engine's cache runner are copies of their own
	// ReportsIncremental: a store on the device is a copy, which takes room there.
	ReportsIncremental = "incremental"
	// ReportsFull: the engine announces blocks again that it reuses, so a store of a block
	// that it has on the device is a touch.
	ReportsFull = "full"
	OwnedDrop   = "drop"   // events about them are dropped as foreign
	ClearAll    = "all"    // AllBlocksCleared takes the blocks of all tiers, as without a word from engines other than vLLM
	ClearDevice = "device" // it takes those of the device
)

// normalizePolicies brings the rules to their canonical form.
func (r *Registration) normalizePolicies(bad *faults) {
	for _, name := range []string{"copies", "reports", "drafter", "owned", "clear", "role"} {
		f := Named(name)
		value := f.Of(r).(*string)
		if *value == "" {
			continue
		}
		word, ok := canonicalWord(name, *value)
		if !ok {
			bad.add(name, "invalid_value", "%s must be %s, got %q", name, strings.Join(f.Words, " or "), *value)
		} else if *value = word; r.IsPool() {
			bad.add(name, "invalid_value", "%s is for engines, not for type %s", name, r.Type)
		}
		if *value == f.Default {
			*value = ""
		}
	}
	if r.Clear == ClearAll && r.Type != TypeVLLM {
		r.Clear = ""
	}
	switch {
	case r.SnapshotEndpoint == "":
	case r.IsPool():
		bad.add("snapshot_endpoint", "invalid_value", "snapshot_endpoint is for engines, not for type %s", r.Type)
	case r.Copies == CopiesSet:
		bad.add("copies", "conflict",
			"copies must be %s with a snapshot_endpoint: a snapshot of the engine stores each block once too often, and removes it once",
			CopiesCount)
	}
}

// AllowsTenant reports whether an event of the source may name a tenant.
func (r *Registration) AllowsTenant(tenant string) bool {
	return tenant == "" || tenant == r.Tenant || slices.Contains(r.MayAnnounce, tenant)
}

// LeavesLowerTiers reports whether an AllBlocksCleared that names no medium takes the blocks of the device alone, at first.
func LeavesLowerTiers(r *Registration) bool { return r.Clear == ClearDevice || JudgesResets(r) }

// JudgesResets reports whether later events decide if such a clear was one of the lower tiers too: vLLM announces a reset of its
// device, and then a reset of its connector looks the same.
func JudgesResets(r *Registration) bool { return r.Clear == "" && r.Type == TypeVLLM }

// CopiesWord returns the word of a registration for a policy.
func CopiesWord(p index.CopyPolicy) string {
	if p == index.CopySet {
		return CopiesSet
	}
	return CopiesCount
}

// CopyPolicy returns what repeated stores of the engine's own copies mean.
func (r *Registration) CopyPolicy(otherwise index.CopyPolicy) index.CopyPolicy {
	switch {
	case r.Copies == CopiesCount, r.SnapshotEndpoint != "":
		return index.CopyCount
	case r.Copies == CopiesSet:
		return index.CopySet
	}
	return otherwise
}
