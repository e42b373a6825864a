package registration

import (
	"slices"
	"strings"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/index"
)

// A registration rules what the events of its source may do and how they count. The zero value of each field is the rule
// that most sources need:
//
//	Copies       ""   as stream.copies           count, set; count with a SnapshotEndpoint
//	Reports      ""   what its balance shows     incremental, full
//	Owned        ""   count                      drop
//	Clear        ""   all                        device
//	MayAnnounce  nil  the tenant of the source   further tenants

// Values of Registration.Copies, Reports, Owned and Clear.
const (
	CopiesCount = "count" // a block leaves with its last copy
	CopiesSet   = "set"   // a block leaves at the first removal
	OwnedCount  = "count" // blocks of the engine's cache runner are copies of their own
	// ReportsIncremental: a store on the device is a copy, which takes room there.
	ReportsIncremental = "incremental"
	// ReportsFull: the engine announces blocks again that it reuses, so a store of a block
	// that it has on the device is a touch.
	ReportsFull = "full"
	OwnedDrop   = "drop"   // events about them are dropped as foreign
	ClearAll    = "all"    // AllBlocksCleared takes the blocks of all tiers
	ClearDevice = "device" // it takes those of the device
)

// normalizePolicies brings the rules to their canonical form, or names the first bad
// field.
func (r *Registration) normalizePolicies() error {
	for _, f := range []struct {
		field string
		value *string
		words [2]string // the first is what "" means, but for copies and reports
	}{
		{"copies", &r.Copies, [2]string{CopiesCount, CopiesSet}},
		{"reports", &r.Reports, [2]string{ReportsIncremental, ReportsFull}},
		{"owned", &r.Owned, [2]string{OwnedCount, OwnedDrop}},
		{"clear", &r.Clear, [2]string{ClearAll, ClearDevice}},
	} {
		if *f.value == "" {
			continue
		}
		at := slices.IndexFunc(f.words[:], func(word string) bool { return strings.EqualFold(word, *f.value) })
		if at < 0 {
			return invalid.Field(f.field, "invalid_value", "%s must be %s or %s, got %q", f.field, f.words[0], f.words[1], *f.value)
		}
		if r.IsPool() {
			return invalid.Field(f.field, "invalid_value", "%s is for engines, not for type %s", f.field, r.Type)
		}
		*f.value = f.words[at]
	}
	if r.Owned == OwnedCount {
		r.Owned = ""
	}
	if r.Clear == ClearAll {
		r.Clear = ""
	}
	switch {
	case r.SnapshotEndpoint == "":
	case r.IsPool():
		return invalid.Field("snapshot_endpoint", "invalid_value", "snapshot_endpoint is for engines, not for type %s", r.Type)
	case r.Copies == CopiesSet:
		return invalid.Field("copies", "conflict",
			"copies must be %s with a snapshot_endpoint: a snapshot of the engine stores each block once too often, and removes it once",
			CopiesCount)
	}
	for i, tenant := range r.MayAnnounce {
		if tenant == "" {
			return &invalid.FieldError{Field: "may_announce", Index: i, Reason: "invalid_value",
				Message: "may_announce must not name an empty tenant"}
		}
	}
	r.MayAnnounce = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.MayAnnounce))), func(tenant string) bool {
		return tenant == r.Tenant
	})
	if len(r.MayAnnounce) == 0 {
		r.MayAnnounce = nil
	}
	return nil
}

// AllowsTenant reports whether an event of the source may name a tenant.
func (r *Registration) AllowsTenant(tenant string) bool {
	return tenant == "" || tenant == r.Tenant || slices.Contains(r.MayAnnounce, tenant)
}

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
