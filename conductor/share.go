package conductor

import (
	"slices"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
)

// sharing hears what clients change, so that other replicas learn of it.
type sharing struct {
	registered   func(registration.Registration)
	unregistered func(key registration.Key, known bool)
	sources      func() []registration.Registration
	apart        func() time.Duration
}

// Share lets two functions hear which sources clients register and unregister. They must not wait. known is false for a
// key of which this replica has not heard: another one may have.
// sources returns the sources that replicas share, this one's among them. apart returns how
// long after a change a client is answered, at least, so that its next change counts as a later one at any replica.
// Call Share before the first client asks.
func (c *Conductor) Share(registered func(registration.Registration), unregistered func(key registration.Key, known bool),
	sources func() []registration.Registration, apart func() time.Duration) {
	c.sharing = &sharing{registered, unregistered, sources, apart}
}

// Shared returns the sources of the client's tenants that this replica or another follows.
func (v View) Shared() []registration.Registration {
	var shared []registration.Registration
	if v.conductor.sharing != nil {
		shared = v.conductor.sharing.sources()
	}
	known := make(map[registration.Key]bool, len(shared))
	for _, r := range shared {
		known[r.Key()] = true
	}
	shared = v.seen(shared)
	for _, r := range v.Registrations() {
		if !known[r.Key()] {
			shared = append(shared, r)
		}
	}
	return shared
}

// shares reports whether replicas share a source.
func (c *Conductor) shares(key registration.Key) bool {
	return c.sharing != nil && slices.ContainsFunc(c.sharing.sources(), func(r registration.Registration) bool { return r.Key() == key })
}

// tellRegistered reports what a client has registered.
func (c *Conductor) tellRegistered(r registration.Registration) {
	if c.sharing != nil {
		c.sharing.registered(c.Canonical(r))
	}
}

// Canonical returns a registration that was accepted as Registrations lists it.
func (c *Conductor) Canonical(r registration.Registration) registration.Registration {
	r, _ = c.sources.Canonical(r, true)
	return r
}

// tellUnregistered reports a key that a client has unregistered. known says that there was such a source.
func (c *Conductor) tellUnregistered(key registration.Key, known bool) {
	if c.sharing != nil {
		c.sharing.unregistered(key, known)
	}
}

// States returns the registered sources by their state. It looks at no index.
func (c *Conductor) States() map[stream.State][]registration.Key {
	all := make(map[stream.State][]registration.Key)
	c.sources.EachSource(func(_ *registration.Registration, s status.SourceState, _ bool) {
		all[s.State] = append(all[s.State], s.Key)
	})
	return all
}
