package fleet

import (
	"errors"

	"kvconductor/conductor"
	"kvconductor/conductor/discovery"
)

// take takes over the entries that are new: first those that are gone, which may make room.
func (g *Registry) take() {
	var gone, there []Name
	g.mu.Lock()
	for n, e := range g.known {
		switch {
		case e.done || g.pending[n] != nil:
		case e.Gone:
			gone = append(gone, n)
		case !g.lostNames[n].IsZero(): // until it is known whether another replica has it
		default:
			there = append(there, n)
		}
	}
	g.mu.Unlock()
	for _, n := range append(gone, there...) {
		g.takeOne(n)
	}
}

// takeOne takes over an entry.
func (g *Registry) takeOne(n Name) {
	g.mu.Lock()
	e, wanted, asked := g.known[n], g.wanted, g.asked
	own, has := g.configured[n]
	fresh := e.fresh
	e.fresh = false
	g.mu.Unlock()
	var err error
	elsewhere := false
	switch {
	case e.Gone && has && e.Swept: // its next confirmation registers it again
	case e.Gone:
		g.mu.Lock()
		delete(g.configured, n) // a client has unregistered it
		g.mu.Unlock()
		g.leave(n)
	default:
		s := e.source()
		if has {
			if fresh && !own.equal(&s) {
				g.cfg.Log.Warn().Str("source", n.String()).Str("replica", e.By).Msg("the registry has other fields than the configuration of this replica, which counts here")
			}
			s = own
		}
		if elsewhere = wanted != nil && !n.Asked && !wanted(s.Registration); elsewhere {
			if g.cfg.Conductor.Follows(n.Key) { // else a takeover may be filling it
				g.leave(n)
			}
			break
		}
		if s.Asked() {
			err = g.cfg.Targets.Add(discovery.Target{Registration: s.Registration, URL: s.Discover, Static: has}, true)
		} else {
			err = g.cfg.Conductor.Register(s.Registration, conductor.RegisterOptions{Static: has, AnyEndpoint: true, Replace: true})
		}
	}
	if errors.Is(err, conductor.ErrClosed) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known[n] != e {
		return
	}
	if err != nil && (e.why == nil || e.why.Error() != err.Error()) {
		g.refused[reasonRefused]++
		g.cfg.Log.Warn().Str("source", n.String()).Str("replica", e.By).Err(err).Msg("a source of the registry is refused by this replica")
	}
	e.done, e.why, e.elsewhere = asked == g.asked, err, elsewhere // other entries may be wanted since
}

// leave stops following a source. One that is not followed is no error.
func (g *Registry) leave(n Name) {
	if n.Asked {
		g.cfg.Targets.Remove(n.Key)
		return
	}
	if _, err := g.cfg.Conductor.Unregister(n.Key); err != nil && !errors.Is(err, conductor.ErrNotFound) {
		g.cfg.Log.Error().Str("source", n.String()).Err(err).Msg("a source that left the registry is still followed")
	}
}
