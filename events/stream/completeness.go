package stream

// Reasons of State Partial; storm.go, unusable.go and evidence.go have one more each.
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

// completeness records which parts of the publisher's history may be missing. All of it ends with a new epoch, and all
// but doubt with a clear event of each rank.
type completeness struct {
	// lost: batches of this epoch were never consumed.
	lost string
	// tail: batches may have been published after the last one consumed. Ends
	// with a live batch that continues the sequence, or a complete replay.
	tail string
	// unverified: after a reconnect there is no proof whether anchor, a batch
	// consumed before, is of the same lifetime.
	unverified bool
	anchor     fingerprint
	// doubt: the caller misses something, see MarkIncomplete.
	doubt string

	// cleared are the ranks that were cleared since the last loss. before is why batches before the clears of
	// all ranks were missing, which matters again if the publisher names another rank.
	cleared []int
	before  string

	probe probePlan
}

// beginCompleteness is what is known in an epoch whose batches are all unseen.
func (t *completeness) beginCompleteness(canReplay bool) {
	*t = completeness{}
	if !canReplay {
		t.lost = ReasonUnknown
	}
}

// noteLost notes that batches are missing for good.
func (t *completeness) noteLost(reason string) {
	t.lost, t.probe, t.cleared = reason, probePlan{}, nil
}

// noteTail notes that batches may have been published after the last one consumed.
func (t *completeness) noteTail(reason string) { t.tail, t.cleared = reason, nil }

// noteWhole notes that the publisher's first batch is there.
func (t *completeness) noteWhole() {
	t.lost, t.probe, t.before = "", probePlan{}, ""
}

// blameReplay makes a foreign replay service the reason of what no replay has brought.
func (t *completeness) blameReplay() {
	for _, why := range []*string{&t.lost, &t.tail} {
		switch *why {
		case ReasonUnknown, ReasonOverrun, ReasonGap, ReasonTimeout:
			*why = ReasonForeign
		}
	}
}

// reasonWithoutReplay is why nothing is known of what came while there was no connection.
func (t *completeness) reasonWithoutReplay(foreign bool) string {
	if foreign {
		return ReasonForeign
	}
	return ReasonUnknown
}

// lossReason is why a gap cannot be filled. has: something was consumed before it.
func (t *completeness) lossReason(has bool) string {
	switch {
	case has:
		return ReasonGap
	case t.lost != "":
		return t.lost
	}
	return ReasonUnknown
}

// wantsSnapshot reports whether a snapshot would help.
func (t *completeness) wantsSnapshot() bool { return t.lost != "" || t.unverified }

// noteNothingBehind notes that nothing is missing behind the last batch consumed.
func (t *completeness) noteNothingBehind() {
	t.tail = ""
	if t.probe.from == probeTail {
		t.probe = probePlan{}
	}
}

// partialReason is why the source is partial, "" if it is not.
func (t *completeness) partialReason() string {
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

// historyReasonOf returns why the batches up to the watermark are not all there, or not all of one
// lifetime, "" if they are. What may follow them, the tail, is no part of it; nor does it
// matter whether there is a connection, except that the end of one casts doubt on a replay
// boundary. It goes into snapshots of the index and from there into a Mark, so that a peer
// which takes the blocks over takes the doubt over with them.
func historyReasonOf(m *machine) string {
	switch t := &m.completeness; {
	case m.storm.active:
		return ReasonStorm
	case t.lost != "":
		return t.lost
	case t.unverified:
		return ReasonTimeout
	case !m.boundary.at.IsZero() && (!m.connected || m.replay.kind == askVerify && !m.replay.anchored):
		return ReasonUnverified
	}
	return m.completeness.doubt
}
