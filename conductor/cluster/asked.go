package cluster

import (
	"sync"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
)

// Asked is the registry of the engines that are asked for what their registrations lack. Every
// replica asks them all, and follows those of its shards. A nil Cluster is one that follows all.
//
// It is safe for concurrent use.
type Asked struct {
	conductor *conductor.Conductor // has the sources that are followed here
	cluster   *Cluster

	mu  sync.Mutex
	all map[registration.Key]askedSource // guarded by mu
}

type askedSource struct {
	registration registration.Registration
	opts         ingest.RegisterOptions
	followed     bool
	learned      string
}

// NewAsked returns a registry of no engines.
func NewAsked(c *conductor.Conductor) *Asked {
	return &Asked{conductor: c, all: make(map[registration.Key]askedSource)}
}

// Share lets a cluster say which sources are followed. Call it before the first engine is asked.
func (a *Asked) Share(c *Cluster) { a.cluster = c }

// Register registers a source if its shard is held here.
func (a *Asked) Register(r registration.Registration, opts ingest.RegisterOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := askedSource{registration: r, opts: opts}
	if s.followed = a.cluster == nil || a.cluster.Wanted(r); s.followed {
		if err := a.conductor.Register(r, opts); err != nil {
			return err
		}
	}
	if a.cluster != nil {
		s.opts.Place = nil
		a.all[r.Key()] = s
	}
	return nil
}

// HoldPlace holds a place for a source. Every replica that asks its engine has a connection of its own to it.
func (a *Asked) HoldPlace(h ingest.Holder) (*ingest.Place, error) {
	return a.conductor.Sources().HoldPlace(h)
}

// Unregister forgets a source.
func (a *Asked) Unregister(key registration.Key) (registration.Key, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, known := a.all[key]
	delete(a.all, key)
	if known && !s.followed {
		a.conductor.Sources().Unregistered.AddElsewhere(key)
		return key, nil
	}
	return a.conductor.Unregister(key)
}

// Health returns the state of a source. One that others follow is well.
func (a *Asked) Health(key registration.Key) (state stream.State, restarts uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock() // a source that goes with its shard meanwhile would be none
	s, known := a.all[key]
	if known && !s.followed {
		return stream.Synced, 0, true
	}
	return a.conductor.Sources().Health(key)
}

// ReportLearned adds a finding about a source, once it is followed.
func (a *Asked) ReportLearned(key registration.Key, text string) {
	a.mu.Lock()
	s, known := a.all[key]
	if known {
		s.learned = text
		a.all[key] = s
	}
	a.mu.Unlock()
	if !known || s.followed {
		a.conductor.Sources().ReportLearned(key, text)
	}
}

// TargetRemoved lets a recovery know that engines are not asked any more, or are again.
func (a *Asked) TargetRemoved(name registration.Key, removed bool) {
	a.conductor.Sources().Unregistered.SetTarget(name, removed)
}

// SourceBounds returns how many sources there may be, and how many that clients of one tenant
// registered; 0 is no bound.
func (a *Asked) SourceBounds() (all, ofTenant int) { return a.conductor.Sources().Places.Bounds() }

// TooManySources counts a target for which there is no room, and returns why.
func (a *Asked) TooManySources(ofTenant bool) error {
	return a.conductor.Sources().Places.TooMany(ofTenant)
}

// Sources returns the sources of all engines.
func (a *Asked) Sources() (all []registration.Registration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.all {
		all = append(all, s.registration)
	}
	return all
}

// Again follows the sources that are wanted, and no others.
func (a *Asked) Again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, s := range a.all {
		wanted := a.cluster.Wanted(s.registration)
		switch {
		case wanted && !s.followed:
			if a.conductor.Register(s.registration, s.opts) != nil {
				continue // it is tried again when the engine is asked, or shards move
			}
			if s.learned != "" {
				a.conductor.Sources().ReportLearned(key, s.learned)
			}
		case !wanted && s.followed:
			a.conductor.Unregister(key) // it may be gone
		}
		s.followed = wanted
		a.all[key] = s
	}
}

// Sources joins the sources of the store with those of engines that are asked.
type Sources struct {
	Registry
	Asked *Asked
}

// Sources implements Registry.
func (s Sources) Sources() ([]registration.Registration, bool) {
	all, known := s.Registry.Sources()
	return append(all, s.Asked.Sources()...), known
}

// Again implements Registry.
func (s Sources) Again() {
	s.Registry.Again()
	s.Asked.Again()
}
