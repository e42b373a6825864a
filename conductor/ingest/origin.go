package ingest

import (
	"slices"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/redact"
)

// Where the history of a source comes from: the rungs of the ladder that a source without blocks
// climbs down.
const (
	FromEngine   = "engine_snapshot" // a snapshot of the engine, and events behind it
	FromSnapshot = "snapshot"        // the server's own snapshot, and replays behind its mark
	FromPeer     = "peer"            // another replica
	FromShelf    = "shelf"           // what another replica left in the store
	FromReplay   = "replay"          // the engine's replays
	FromLive     = "live"            // what the engine has published since the connection
	FromReports  = "reports"         // what routers have reported, of an engine that publishes nothing
)

// historyFrom returns where the blocks of the source come from.
func historyFrom(s *Source) string {
	if origin := s.applier.origin.Load(); origin != nil {
		return *origin
	}
	switch {
	case s.Registration.IsApproximate():
		return FromReports
	case s.Registration.ReplayEndpoint != "":
		return FromReplay
	}
	return FromLive
}

// Unfilled returns how many sources no recovery has filled, and at least 1 where there is no
// source.
func (h Snapshots) Unfilled() int { return unfilled(h.sources.All()) }

// UnfilledIn is Unfilled for the sources of a deployment.
func (h Snapshots) UnfilledIn(d scope.Deployment) int {
	return unfilled(slices.DeleteFunc(slices.Clone(h.sources.All()), func(s *Source) bool {
		return s.holdings.deploymentKey() != d
	}))
}

func unfilled(all []*Source) (n int) {
	asked := false
	for _, s := range all {
		if s.Registration.IsApproximate() {
			continue // no snapshot has blocks of those
		}
		if asked = true; s.applier.origin.Load() == nil {
			n++
		}
	}
	if !asked {
		return 1
	}
	return n
}

// Registered reports whether a source is registered for a deployment.
func (h Snapshots) Registered(d scope.Deployment) bool {
	return slices.ContainsFunc(h.sources.All(), func(s *Source) bool { return !s.recovered && s.holdings.deploymentKey() == d })
}

// OwnRegistered returns why a source of the server's own snapshot takes no blocks, "" if it
// takes them: the configuration and clients of today win.
func (r *Recovery) OwnRegistered(m *image.Source) (why string) {
	if r.c.Find(m.Key()) == nil {
		return "it is not registered any more"
	}
	return r.Own(m)
}

// Own is OwnRegistered, but that a source that was registered over HTTP is registered again.
func (r *Recovery) Own(m *image.Source) (why string) {
	c := r.c
	switch s := c.Find(m.Key()); {
	case s != nil:
		field, have, was := s.Registration.Diff(&m.Registration, registration.CopiesWord(c.opts.Copies))
		switch {
		case field == "":
			return ""
		case registration.IsSecret(field):
			return "its " + field + " was another one"
		}
		return "its " + field + " is " + redact.URL(have) + " and was " + redact.URL(was)
	case m.Static:
		return "the configuration does not name it any more"
	}
	reg := m.Registration
	reg.MayAnnounce = nil // a matter of the configuration
	if err := c.Register(reg, RegisterOptions{AnyEndpoint: true, By: m.By, GivesWay: m.GivesWay}); err != nil {
		return err.Error()
	}
	return ""
}

// refuses reports whether the source takes nothing of a snapshot that has the registration theirs of it, and logs why. Where
// the two say something else about its events, the blocks there are what another reading of these events has left.
//
// Replicas may reach the publisher in different ways: the mark is compared with its stream in any case. What this registration
// leaves out by may_announce or owned it leaves out of the snapshot's blocks too. Dumps of Dynamo have no publishers, and do not
// say how they read them.
func (c *Sources) refuses(s *Source, theirs registration.Registration) bool {
	if theirs.Endpoint == "" {
		return false
	}
	ours := s.Registration
	theirs.Endpoint, theirs.ReplayEndpoint, theirs.SnapshotEndpoint = ours.Endpoint, ours.ReplayEndpoint, ours.SnapshotEndpoint
	if !slices.ContainsFunc(ours.MayAnnounce, func(tenant string) bool { return !theirs.AllowsTenant(tenant) }) {
		theirs.MayAnnounce = ours.MayAnnounce
	}
	if ours.Owned == registration.OwnedDrop {
		theirs.Owned = registration.OwnedDrop
	}
	if (ours.Clear == "" || theirs.Clear == "") && ours.Clear != registration.ClearDevice && theirs.Clear != registration.ClearDevice {
		theirs.Clear = ours.Clear // at most a trial differs, and releases without trials wrote all as ""
	}
	field, _, _ := ours.Diff(&theirs, registration.CopiesWord(c.opts.Copies))
	if field != "" {
		c.log.Warn().Str("source", theirs.Key().String()).Str("reason", "its "+field+" is another one here").
			Msg("a source of the snapshot begins without its blocks")
	}
	return field != ""
}
