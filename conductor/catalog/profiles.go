package catalog

import (
	"fmt"
	"maps"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/index/hash"
)

// ProfileConflictError says that the engines of a context name their blocks another
// way than the registration says.
type ProfileConflictError struct {
	Key   registration.Key // that was to be registered
	Pool  bool             // it is a pool
	By    registration.Key // a source whose profile the context has
	Field string           // of the profile, the first that differs
	Have  string
	Want  string
}

func (e *ProfileConflictError) Error() string {
	return fmt.Sprintf("%s has another hash profile in the same context: %s", e.By, describeDifference(e.Field, e.Have, e.Want))
}

// describeDifference says in which field two profiles differ, and how unless that is a secret.
func describeDifference(field, have, got string) string {
	if registration.IsSecret(field) {
		return "another " + field
	}
	return fmt.Sprintf("%s is %q there, %q here", field, have, got)
}

// CheckProfile refuses a profile that an engine registered for the same context
// contradicts, whichever source it takes the place of. A past is taken as it was.
func (c *Catalog) CheckProfile(r registration.Registration, replaced *Member) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p := r.ResolvedProfile()
	d := c.byKey[r.Deployment()]
	if p == (hash.Profile{}) || d == nil || c.past {
		return nil
	}
	var by *Member
	for _, in := range d.instances {
		for m := range in.members {
			if m != replaced && m.Registration.Lora == r.Lora && m.Profile != (hash.Profile{}) && m.Profile != p &&
				(by == nil || m.Key().Compare(by.Key()) < 0) {
				by = m
			}
		}
	}
	if by == nil {
		return nil
	}
	field, have, got := registration.DiffProfiles(by.Registration.Profile, r.Profile)
	return &ProfileConflictError{Key: r.Key(), Pool: r.IsPool(), By: by.Key(), Field: field, Have: have, Want: got}
}

// Profiles returns the profiles by adapter, see Profile; nil if there is none. It is the same table until one changes.
func (d *Deployment) Profiles() *map[string]hash.Profile { return d.profiles.Load() }

// Profile returns the profile of an adapter's blocks: that of the engines registered
// for it, else of one that has announced blocks under it, else of a pool.
func (d *Deployment) Profile(lora string) (hash.Profile, bool) {
	all := d.profiles.Load()
	if all == nil {
		return hash.Profile{}, false
	}
	p, ok := (*all)[lora]
	return p, ok
}

// publishProfiles rebuilds what Profile reads, and tells of pools whose profile is
// not that of the engines they serve. Catalog.mu is held.
func (d *Deployment) publishProfiles() {
	engines, announcers, best := make(map[string]*Member), make(map[string]*Member), make(map[string]*Member)
	offer := func(to map[string]*Member, lora string, m *Member) { // the first by key counts
		if by := to[lora]; m.Profile != (hash.Profile{}) && (by == nil || m.Key().Compare(by.Key()) < 0) {
			to[lora] = m
		}
	}
	for _, in := range d.instances {
		for m := range in.members {
			offer(engines, m.Registration.Lora, m)
			for lora := range m.announced {
				offer(announcers, lora, m)
			}
		}
	}
	for m := range d.pooled {
		offer(best, m.Registration.Lora, m)
	}
	maps.Copy(announcers, engines)
	for m := range d.pooled {
		m.compareProfile(announcers[m.Registration.Lora])
	}
	maps.Copy(best, announcers)

	var next *map[string]hash.Profile
	if len(best) > 0 {
		all := make(map[string]hash.Profile, len(best))
		for lora, by := range best {
			all[lora] = by.Profile
		}
		next = &all
	}
	// The same table stays, so that who has seen it need not look again.
	if old := d.profiles.Load(); old == nil || next == nil || !maps.Equal(*old, *next) {
		d.profiles.Store(next)
	}
}

// compareProfile compares a pool's profile with that of the engine which gives the blocks of its adapter theirs,
// nil if there is none.
func (m *Member) compareProfile(engine *Member) {
	if m.Profile == (hash.Profile{}) || engine == nil || engine.Profile == m.Profile {
		m.Findings.Withdraw(doctor.FindingProfile)
		return
	}
	field, have, got := registration.DiffProfiles(engine.Registration.Profile, m.Registration.Profile)
	m.Findings.Report(doctor.FindingProfile,
		"registered with another hash profile than the engine %s: %s; the engine's counts, register the pool with that", engine.Key(),
		describeDifference(field, have, got))
}
