package stream

// Reasons of State Partial.
const (
	// The publisher cannot replay and its first batch was not seen, or nothing
	// was seen since the connection was lost.
	ReasonUnknown = "history_unknown"
	// The publisher replays, but its ring begins after its first batch.
	ReasonOverrun = "replay_overrun"
	// Batches are missing and the publisher has them no more, or cannot replay.
	ReasonGap = "gap_unrecoverable"
	// A batch cannot be decoded, or is larger than a limit.
	ReasonUndecodable = "undecodable"
	ReasonTooLarge    = "batch_too_large"
	// The replay service does not answer.
	ReasonTimeout = "replay_timeout"
	// Two replays may have gone to different lifetimes of the publisher, and the
	// next connection has not told yet. Of Status.History only.
	ReasonUnverified = "unverified"
)

// trust records which parts of the publisher's history may be missing. All of it ends with a new epoch, and all
// but doubt with a clear event.
type trust struct {
	// lost: batches of this epoch were never consumed.
	lost string
	// tail: batches may have been published after the last one consumed. Ends
	// with a live batch that continues the sequence, or a complete replay.
	tail string
	// unverified: after a reconnect there is no proof whether anchor, a batch
	// consumed before, is of the same lifetime.
	unverified bool
	anchor     print
	// doubt: the caller misses something, see MarkIncomplete.
	doubt string

	heal heal
}

// begin is the trust in an epoch whose batches are all unseen.
func (t *trust) begin(canReplay bool) {
	*t = trust{}
	if !canReplay {
		t.lost = ReasonUnknown
	}
}

// clear is the trust after a clear event.
func (t *trust) clear() { *t = trust{doubt: t.doubt} }

// lose notes that batches are missing for good.
func (t *trust) lose(reason string) {
	t.lost, t.heal = reason, heal{}
}

// whole notes that the publisher's first batch is there.
func (t *trust) whole() {
	t.lost, t.heal = "", heal{}
}

// lossReason is why a gap cannot be filled. has: something was consumed before it.
func (t *trust) lossReason(has bool) string {
	switch {
	case has:
		return ReasonGap
	case t.lost != "":
		return t.lost
	}
	return ReasonUnknown
}

// wantsSnapshot reports whether a snapshot would help.
func (t *trust) wantsSnapshot() bool { return t.lost != "" || t.unverified }

// joined notes that nothing is missing behind the last batch consumed.
func (t *trust) joined() {
	t.tail = ""
	if t.heal.from == healTail {
		t.heal = heal{}
	}
}

// reason is why the source is partial, "" if it is not.
func (t *trust) reason() string {
	switch {
	case t.lost != "":
		return t.lost
	case t.unverified:
		return ReasonTimeout
	case t.doubt != "":
		return t.doubt
	}
	return t.tail
}

// history is why the batches up to the watermark are not all there, or not all of
// one lifetime, "" if they are. What may follow them, the tail, is no part of it;
// nor does it matter whether there is a connection, except that the end of one
// casts doubt on a joint.
func (m *machine) history() string {
	switch t := &m.trust; {
	case m.storm.on:
		return ReasonStorm
	case t.lost != "":
		return t.lost
	case t.unverified:
		return ReasonTimeout
	case !m.joint.at.IsZero() && (!m.connected || m.ask.kind == askVerify && !m.ask.anchored):
		return ReasonUnverified
	}
	return m.trust.doubt
}
