package membership

import (
	"slices"
	"time"

	"example.com/conductor/conductor/registration"
)

// change waits for the store.
type change struct {
	source     *Source // nil for an entry that is unregistered
	configured bool
	since      time.Time
	seen       int64  // time of the entry that the change was made to, 0 for none
	again      *entry // it was in the store before
	same       *entry // the entry in the store that already says this; if it still does, only its time is raised
	skipsDisk  bool   // it reaches the store sooner than the disk, or is answered with 404
	unheard    bool   // it unregisters a source that this replica does not know: see unheard.go
	oldest     bool   // every other change counts more
}

// Registered is called when a client registered a source here.
func (g *Registry) Registered(s Source) {
	if g == nil {
		return
	}
	s.MayAnnounce = nil // a matter of the configuration
	n := s.Name()
	g.mu.Lock()
	if own, has := g.configured[n]; has {
		if own.MayAnnounce = nil; !own.equal(&s) {
			delete(g.configured, n) // the client has replaced it
		}
	}
	g.mu.Unlock()
	g.queueChange(n, &change{source: &s})
}

// Unregistered is called when a client unregistered an entry here.
func (g *Registry) Unregistered(n Name) {
	if g == nil {
		return
	}
	g.mu.Lock()
	delete(g.configured, n)
	g.mu.Unlock()
	g.queueChange(n, new(change))
}

// Configured is called when the configuration of this replica has a source.
func (g *Registry) Configured(s Source) {
	if g == nil {
		return
	}
	n := s.Name()
	if !n.Asked {
		s.Registration = g.cfg.Conductor.Canonical(s.Registration)
	}
	g.mu.Lock()
	g.configured[n] = s
	delete(g.lostNames, n)
	g.mu.Unlock()
	g.queueChange(n, &change{source: &s, configured: true})
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.known[n]; e != nil {
		e.done = false // the configuration counts here, not the entry
		g.wakeRun()
	}
}

// Unconfigured is called when the configuration has lost it. The entry stays while another replica
// confirms it: then this one follows it again.
func (g *Registry) Unconfigured(n Name) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.configured, n)
	g.lostNames[n] = g.cfg.Group.cfg.Now()
	if p := g.pending[n]; p != nil && p.configured {
		delete(g.pending, n)
	}
	g.wakeRun()
}

// queueChange lets a change wait for the store, in place of an earlier one of the same entry. What a client changes waits even
// if the entry says that already: another replica may have changed it in a way of which this one has not heard.
func (g *Registry) queueChange(n Name, c *change) {
	c.since = g.cfg.Group.cfg.Now()
	up := g.cfg.Group.Status().Up
	g.mu.Lock()
	defer g.mu.Unlock()
	e, p := g.known[n], g.pending[n]
	if e != nil && (e.done || c.source == nil) { // a client may unregister a source before it is followed
		c.seen = e.at
	}
	c.unheard = c.unheard && (p == nil || p.unheard)
	switch {
	case p != nil && p.source != nil && c.source != nil && p.source.equal(c.source):
		if c.configured {
			return
		}
		c.configured, c.same = p.configured, p.same
	case p == nil && e != nil && e.done && e.says(c) && g.trusts(e):
		if c.configured {
			return
		}
		if e.elsewhere {
			e.done = false // it was registered here: others follow it
		}
		c.same = e
	}
	if most := mostPending; p == nil {
		if c.same != nil || c.unheard {
			most /= 2 // these leave room for what others hear of
		}
		if len(g.pending) >= most {
			if g.dropped[reasonPending]++; g.dropped[reasonPending] == 1 {
				g.cfg.Log.Error().Int("pending",
					len(g.pending)).Msg("too many registrations wait for the store: further ones stay with this replica alone")
			}
			return
		}
	}
	g.pending[n] = c
	c.skipsDisk = c.unheard || c.same != nil && up
	noteKept(&g.kept, n, p)
	noteKept(&g.kept, n, c)
	g.wakeRun()
}

// wakeRun makes Run work soon, without waiting for the next beat.
func (g *Registry) wakeRun() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// queueRestored lets the sources that this replica has from its disk wait for the store, which ignores them if it has an entry
// of that name. It drops waiting changes of the configuration that the store has already.
func (g *Registry) queueRestored() {
	all, targets := g.cfg.Conductor.Registrations(), g.cfg.Targets.List()
	g.mu.Lock()
	defer g.mu.Unlock()
	var engines []Name
	for n := range g.known {
		if n.Asked {
			engines = append(engines, n)
		}
	}
	for i := range targets {
		engines = append(engines, Name{Key: registration.Key{Instance: targets[i].Instance, Tenant: targets[i].Tenant}, Asked: true})
	}
	for _, r := range all {
		s := Source{Registration: r}
		n := s.Name()
		_, configured := g.configured[n]
		if g.known[n] != nil || g.pending[n] != nil || configured || ofTarget(n.Key, engines) {
			continue
		}
		s.MayAnnounce = nil
		g.pending[n] = &change{source: &s, oldest: true}
	}
	for n, c := range g.pending {
		if e := g.known[n]; c.configured && e != nil && e.describes(c.source) && g.replicas[e.By] {
			delete(g.pending, n)
		}
	}
}

// ofTarget reports whether a source came from an engine that was asked.
func ofTarget(key registration.Key, engines []Name) bool {
	return slices.ContainsFunc(engines, func(n Name) bool {
		return n.Asked && n.Tenant == key.Tenant && registration.IsInstanceOf(key.Instance, n.Instance)
	})
}
