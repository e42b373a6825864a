package cluster

import (
	"sync"

	"example.com/conductor/conductor"
	"example.com/conductor/events/stream"
)

// Asked is the registry of the engines that are asked for what their registrations lack. Every
// replica asks them all, and follows those of its shards. A nil Cluster is one that follows all.
//
// It is safe for concurrent use.
type Asked struct {
	*conductor.Conductor
	cluster *Cluster

	mu  sync.Mutex
	all map[conductor.Key]askedSource // guarded by mu
}

type askedSource struct {
	conductor.Registration
	opts     conductor.RegisterOptions
	followed bool
	learned  string
}

// NewAsked returns a registry of no engines.
func NewAsked(c *conductor.Conductor) *Asked {
	return &Asked{Conductor: c, all: make(map[conductor.Key]askedSource)}
}

// Share lets a cluster say which sources are followed. Call it before the first engine is asked.
func (a *Asked) Share(c *Cluster) { a.cluster = c }

// Register registers a source if its shard is held here.
func (a *Asked) Register(r conductor.Registration, opts conductor.RegisterOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := askedSource{Registration: r, opts: opts}
	if s.followed = a.cluster == nil || a.cluster.Wanted(r); s.followed {
		if err := a.Conductor.Register(r, opts); err != nil {
			return err
		}
	}
	if a.cluster != nil {
		a.all[r.Key()] = s
	}
	return nil
}

// Unregister forgets a source.
func (a *Asked) Unregister(key conductor.Key) (conductor.Key, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, known := a.all[key]
	delete(a.all, key)
	if known && !s.followed {
		return key, nil
	}
	return a.Conductor.Unregister(key)
}

// Health returns the state of a source. One that others follow is well.
func (a *Asked) Health(key conductor.Key) (state stream.State, restarts uint64, ok bool) {
	a.mu.Lock()
	s, known := a.all[key]
	a.mu.Unlock()
	if known && !s.followed {
		return stream.Synced, 0, true
	}
	return a.Conductor.Health(key)
}

// ReportLearned adds a finding about a source, once it is followed.
func (a *Asked) ReportLearned(key conductor.Key, text string) {
	a.mu.Lock()
	s, known := a.all[key]
	if known {
		s.learned = text
		a.all[key] = s
	}
	a.mu.Unlock()
	if !known || s.followed {
		a.Conductor.ReportLearned(key, text)
	}
}

// Sources returns the sources of all engines.
func (a *Asked) Sources() (all []conductor.Registration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.all {
		all = append(all, s.Registration)
	}
	return all
}

// Again follows the sources that are wanted, and no others.
func (a *Asked) Again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, s := range a.all {
		wanted := a.cluster.Wanted(s.Registration)
		switch {
		case wanted && !s.followed:
			if a.Conductor.Register(s.Registration, s.opts) != nil {
				continue // it is tried again when the engine is asked, or shards move
			}
			if s.learned != "" {
				a.Conductor.ReportLearned(key, s.learned)
			}
		case !wanted && s.followed:
			a.Conductor.Unregister(key) // it may be gone
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
func (s Sources) Sources() ([]conductor.Registration, bool) {
	all, known := s.Registry.Sources()
	return append(all, s.Asked.Sources()...), known
}

// Again implements Registry.
func (s Sources) Again() {
	s.Registry.Again()
	s.Asked.Again()
}
