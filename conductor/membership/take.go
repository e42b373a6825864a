package membership

import (
	"cmp"
	"errors"
	"slices"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
)

// reasonConfigured is the reason of entries that the configuration of this replica has with other fields. They are no
// refusals.
const reasonConfigured = "configured"

var errConfigured = errors.New("the configuration of this replica has other fields, which count here")

// takeEntries takes over the entries that are new. It begins with those that are gone, because they may make room for others.
func (g *Registry) takeEntries() {
	var gone, there []Name
	rank := make(map[Name]entryRank)
	g.mu.Lock()
	for n, e := range g.known {
		switch {
		case e.done || g.pending[n] != nil:
		case e.Gone:
			gone = append(gone, n)
		case !g.lostNames[n].IsZero(): // until it is known whether another replica has it
		default:
			there = append(there, n)
			rank[n] = entryRank{!g.trusts(e), e.By == "", e.at}
		}
	}
	g.mu.Unlock()
	slices.SortFunc(there, func(a, b Name) int { return rank[a].compare(rank[b]) })
	full := make(map[string]error) // by tenant, "" for all: what gives way is refused alike
	for _, n := range append(gone, there...) {
		err := cmp.Or(full[""], full[n.Tenant])
		if !rank[n].givesWay || n.Asked {
			err = nil
		}
		switch err = g.takeEntry(n, rank[n].givesWay, err); {
		case errors.Is(err, ingest.ErrTenantFull):
			full[n.Tenant] = err
		case errors.Is(err, ingest.ErrTooManySources):
			full[""] = err
		}
	}
}

// entryRank decides which entries are taken over first, where the limits leave no room for all. The entry of a
// replica has its id, and those of a flood are new.
type entryRank struct {
	givesWay, unsigned bool
	at                 int64
}

func (r entryRank) compare(other entryRank) int {
	number := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(number(r.givesWay)-number(other.givesWay), number(r.unsigned)-number(other.unsigned), cmp.Compare(r.at, other.at))
}

// trusts reports whether an entry is from the configuration of this replica, or by a replica that was
// alive since this one started. mu is held.
func (g *Registry) trusts(e *entry) bool {
	if g.replicas[e.By] || e.Gone {
		return true
	}
	s := e.source()
	_, has := g.configured[s.Name()]
	return has
}

// registeredNames returns the names of the sources that this replica follows, and of the engines that it asks.
func (g *Registry) registeredNames() map[Name]bool {
	all := make(map[Name]bool)
	for _, r := range g.cfg.Conductor.Registrations() {
		all[Name{Key: r.Key()}] = true
	}
	for _, t := range g.cfg.Targets.List() {
		s := Source{Registration: t.Registration, Discover: t.URL}
		all[s.Name()] = true
	}
	return all
}

// takeEntry takes over an entry, unless why is set: then it is refused. It returns why it is refused.
func (g *Registry) takeEntry(n Name, givesWay bool, why error) error {
	g.mu.Lock()
	e, wanted, asked := g.known[n], g.wanted, g.asked
	own, has := g.configured[n]
	fresh := e.fresh
	e.fresh = false
	g.mu.Unlock()
	err, elsewhere := why, false
	switch {
	case e.Gone && has && e.Swept: // its next confirmation registers it again
	case e.Gone:
		g.mu.Lock()
		delete(g.configured, n) // a client has unregistered it
		g.mu.Unlock()
		if !e.Unheard { // else it may be a name that no source ever had
			noteGone(g, n)
		}
		g.unfollow(n)
	default:
		s := e.source()
		if has {
			if fresh && !own.equal(&s) {
				g.addComplaint(reasonConfigured, n.String(), e.By, errConfigured)
			}
			s = own
		}
		if elsewhere = wanted != nil && !n.Asked && !wanted(s.Registration); elsewhere {
			if g.cfg.Conductor.Sources().Follows(n.Key) { // else a takeover may be filling it
				g.unfollow(n)
			}
			break
		}
		switch {
		case why != nil:
		case s.Asked():
			err = g.cfg.Targets.Add(discovery.Target{Registration: s.Registration, URL: s.Discover, Static: has, GivesWay: givesWay}, true)
		default:
			by := registration.Registrar{Kind: registration.ByReplica, Name: e.By}
			switch {
			case has:
				by = registration.Registrar{Kind: registration.ByConfiguration}
			case e.By == g.cfg.Group.ID(): // registered here, before a restart
				by = registration.Registrar{Kind: registration.ByClient}
			}
			err = g.cfg.Conductor.Register(s.Registration, ingest.RegisterOptions{Static: has, AnyEndpoint: true, Replace: true,
				GivesWay: givesWay, By: by})
		}
	}
	if errors.Is(err, ingest.ErrClosed) {
		return nil
	}
	if err != nil && (e.why == nil || e.why.Error() != err.Error()) {
		g.countRefusal(reasonRefused, n.String(), e.By, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known[n] != e {
		return err
	}
	e.done, e.why, e.elsewhere = asked == g.asked, err, elsewhere // other entries may be wanted since
	return err
}

// noteGone lets a recovery of this replica know that an entry was unregistered, whether or not it has followed it.
func noteGone(g *Registry, n Name) {
	if n.Asked {
		g.cfg.Conductor.Sources().Unregistered.SetTarget(n.Key, true)
	} else {
		g.cfg.Conductor.Sources().Unregistered.AddElsewhere(n.Key)
	}
}

// unfollow stops following a source, or asking an engine. It is no error if neither is done.
func (g *Registry) unfollow(n Name) {
	if n.Asked {
		g.cfg.Targets.Remove(n.Key)
		return
	}
	if _, err := g.cfg.Conductor.Unregister(n.Key); err != nil && !errors.Is(err, ingest.ErrNotFound) {
		g.cfg.Log.Error().Str("source", n.String()).Err(err).Msg("a source that left the registry is still followed")
	}
}
