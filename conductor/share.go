package conductor

import (
	"slices"

	"kvconductor/events/stream"
)

// sharing hears what clients change, so that other replicas learn of it.
type sharing struct {
	registered   func(Registration)
	unregistered func(Key)
	elsewhere    func() []Registration
}

// Share lets two functions hear which sources clients register and unregister. They must not wait.
// elsewhere returns sources that other replicas follow and this one does not. Call Share before the
// first client asks.
func (c *Conductor) Share(registered func(Registration), unregistered func(Key), elsewhere func() []Registration) {
	c.sharing = &sharing{registered, unregistered, elsewhere}
}

// Elsewhere returns the sources of the client's tenants that other replicas follow and this one does
// not.
func (v View) Elsewhere() []Registration {
	if v.conductor.sharing == nil {
		return nil
	}
	return slices.DeleteFunc(v.conductor.sharing.elsewhere(), func(r Registration) bool { return !v.reader.Tenants.Has(r.Tenant) })
}

// isElsewhere reports whether another replica follows a source.
func (v View) isElsewhere(key Key) bool {
	return slices.ContainsFunc(v.Elsewhere(), func(r Registration) bool { return r.Key() == key })
}

// tellRegistered reports what a client has registered.
func (c *Conductor) tellRegistered(r Registration) {
	if c.sharing != nil {
		c.sharing.registered(c.Canonical(r))
	}
}

// Canonical returns a registration that was accepted as Registrations lists it.
func (c *Conductor) Canonical(r Registration) Registration {
	r, _ = c.canonical(r, true)
	return r
}

// tellUnregistered reports a key that a client has unregistered.
func (c *Conductor) tellUnregistered(key Key) {
	if c.sharing != nil {
		c.sharing.unregistered(key)
	}
}

// States returns the registered sources by their state. It looks at no index.
func (c *Conductor) States() map[stream.State][]Key {
	all := make(map[stream.State][]Key)
	for _, s := range c.registered() {
		if !s.recovered {
			state := s.stream.Status().State
			all[state] = append(all[state], s.reg.Key())
		}
	}
	return all
}
