package conductor

import (
	"fmt"
	"maps"

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
	return fmt.Sprintf("%s has another hash profile in the same context: %s is %q there, got %q", e.By, e.Field, e.Have, e.Want)
}

// checkProfile refuses a profile that an engine registered for the same context
// contradicts, whichever source it takes the place of. A past is taken as it was.
// c.mu is held.
func (c *registry) checkProfile(r registration.Registration, replaced *source) error {
	p := r.ResolvedProfile()
	d := c.deployments[r.Deployment()]
	if p == (hash.Profile{}) || d == nil || c.past {
		return nil
	}
	var by *source
	for _, in := range d.instances {
		for s := range in.sources {
			if s != replaced && s.reg.Lora == r.Lora && s.profile != (hash.Profile{}) && s.profile != p &&
				(by == nil || s.reg.Key().Compare(by.reg.Key()) < 0) {
				by = s
			}
		}
	}
	if by == nil {
		return nil
	}
	field, have, got := registration.DiffProfiles(by.reg.Profile, r.Profile)
	return &ProfileConflictError{Key: r.Key(), Pool: r.IsPool(), By: by.reg.Key(), Field: field, Have: have, Want: got}
}

// profile returns the profile of an adapter's blocks: that of the engines registered
// for it, else of one that has announced blocks under it, else of a pool.
func (d *deployment) profile(lora string) (hash.Profile, bool) {
	all := d.profiles.Load()
	if all == nil {
		return hash.Profile{}, false
	}
	p, ok := (*all)[lora]
	return p, ok
}

// publishProfiles rebuilds what profile reads, and tells of pools whose profile is
// not that of the engines they serve. c.mu is held.
func (d *deployment) publishProfiles() {
	engines, announcers, best := make(map[string]*source), make(map[string]*source), make(map[string]*source)
	offer := func(to map[string]*source, lora string, s *source) { // the first by key counts
		if by := to[lora]; s.profile != (hash.Profile{}) && (by == nil || s.reg.Key().Compare(by.reg.Key()) < 0) {
			to[lora] = s
		}
	}
	for _, in := range d.instances {
		for s := range in.sources {
			offer(engines, s.reg.Lora, s)
			for lora := range s.holdings.announced {
				offer(announcers, lora, s)
			}
		}
	}
	for s := range d.pooled {
		offer(best, s.reg.Lora, s)
	}
	maps.Copy(announcers, engines)
	for s := range d.pooled {
		s.observeEngine(announcers[s.reg.Lora])
	}
	maps.Copy(best, announcers)

	var next *map[string]hash.Profile
	if len(best) > 0 {
		all := make(map[string]hash.Profile, len(best))
		for lora, by := range best {
			all[lora] = by.profile
		}
		next = &all
	}
	// The same table stays, so that who has seen it need not look again.
	if old := d.profiles.Load(); old == nil || next == nil || !maps.Equal(*old, *next) {
		d.profiles.Store(next)
	}
}
