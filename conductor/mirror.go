package conductor

import "example.com/conductor/conductor/match"

// Mirror tells other replicas what routers have reported to this one, so that all that serve a shard expect the same.
type Mirror interface {
	// Routed tells the other replicas that serve the shard of a report. It does not wait for them, and keeps
	// nothing of r, whose model has its registered name.
	Routed(from Teller, r *match.Routed)
	// TakenBack lets all other replicas take back what they have of a report. It does not wait for them.
	TakenBack(from Teller, tenant, requestID string)
	// TakeBack asks all other replicas to take back a report that this one does not have. It returns whether one
	// of them had it.
	TakeBack(from Teller, tenant, requestID string) bool
	// Me is the id of this replica.
	Me() string
}

// MirrorBy sets what tells other replicas of reports. Without it nothing does. Call MirrorBy before the first report.
func (c *Conductor) MirrorBy(m Mirror) { c.mirror = m }

// Teller describes the client of a request to another replica.
type Teller interface{ Tell() string }

// Sender says how a request has come to this replica.
type Sender struct {
	Client Teller // nil is a client with every role
	// Replica is the id of the replica that has sent the request here, "" if that was its client.
	Replica string
	// Mirrored says that the replica has kept the report itself, and tells all others that are to keep it.
	Mirrored bool
}

// From returns the view for a request that has come in some way.
func (v View) From(s Sender) View {
	v.sender = s
	return v
}

// Mirrored reports whether another replica has sent reports here that it has kept itself. They may be about several shards,
// so that one that is not served here does not change the others.
func (v View) Mirrored() bool { return v.sender.Mirrored }

// ownReport reports whether a mirrored report is this replica's own: it is one of its own peers.
func (v View) ownReport() bool {
	return v.sender.Mirrored && v.conductor.mirror != nil && v.sender.Replica == v.conductor.mirror.Me()
}

// mirrorRouted tells other replicas of a report that this one has kept.
func (v View) mirrorRouted(r *match.Routed) {
	if m := v.conductor.mirror; m != nil && !v.sender.Mirrored {
		m.Routed(v.sender.Client, r)
	}
}

// mirrorTakenBack lets other replicas take a report back. here says whether this one had it. It returns whether some replica
// had it.
func (v View) mirrorTakenBack(tenant, requestID string, here bool) bool {
	m := v.conductor.mirror
	switch {
	case m == nil || v.sender.Mirrored:
	case here:
		m.TakenBack(v.sender.Client, tenant, requestID)
	case v.sender.Replica == "": // no request goes over two replicas
		return m.TakeBack(v.sender.Client, tenant, requestID)
	}
	return here
}
