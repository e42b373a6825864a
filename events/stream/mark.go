package stream

import "example.com/conductor/events"

// Mark says how far a peer applied this publisher's batches.
type Mark struct {
	Seq   uint64 // the last batch applied
	Print uint64 // its Step.Print
	// ID is its Step.ID: with one, the next batch that has another is of another lifetime.
	ID events.PublisherID
	// Missing is why what was applied up to Seq is not all there, "" if it is: a
	// Status.History.
	Missing string
	// Ranks are those of the blocks up to Seq: a clear of one of them leaves the blocks of the others.
	Ranks []int
}

// ResumeBehind makes the stream go on behind m, as if it had applied everything up to
// there itself. It is for a caller that copied the outcome from a peer, once and
// before the first Next. A first connection verifies the mark as a reconnect
// verifies the watermark. A mark at 2^64-1, which is no batch's number, is none.
func (s *Stream) ResumeBehind(m Mark) {
	if !s.turn.TryLock() {
		panic("BUG: a stream resumes while Next runs")
	}
	defer s.turn.Unlock()
	if s.nextCalled {
		panic("BUG: a stream resumes after its first step was asked for")
	}
	if m.Seq == endSeq {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	early := s.status.connects
	if !s.status.st.Connected {
		early++ // it may be up already, and about to be noted
	}
	m.resumeMachine(s.machine, early)
	s.status.st.LastSeq, s.status.st.HasSeq, s.status.st.History = m.Seq, true, m.Missing
}

// inheritedMark is the mark a stream resumed behind, and what the connections made
// before the mark was taken bring of the batches at and below it. Their
// fingerprints were never seen, so that the rule for old numbers, which takes a
// batch that is not remembered for a restart, would reset every stream that resumes.
//
// On such a connection numbers below the mark are expected, for the batches were
// published while the peer still applied them. They count as covered as long as
// they ascend, which TCP guarantees within a lifetime, and are at most maxBacklog
// behind the mark. That proves nothing: what decides is the bytes at the mark
// itself, in the replay that verifies it, or, of a publisher without replays, when
// its numbers reach the mark. One that skips the mark on the way leaves a gap.
type inheritedMark struct {
	mark  fingerprint // zero: none
	early uint64      // connections up to this one may have been made before the mark was taken
	open  bool        // the connection is one of them, and nothing beyond the mark came on it
	last  fingerprint // the last live batch on it, at or below the mark
}

// maxBacklog is how many batches may wait for a stream that does not read: 100,000 in
// the publisher's socket, the rest in ours and in the queue.
const maxBacklog = 1 << 17

// resumeMachine makes a machine that has seen nothing go on behind a mark. The blocks up to it
// were copied from a peer, so there is nothing to replay for them; what the copy lacks, the
// peer has said. The mark's own fingerprint is all that is known of the batches up to it, and
// the first connection verifies it.
func (at Mark) resumeMachine(m *machine, early uint64) {
	m.consumed.resumeBehindMark(at)
	if m.cfg.rank != NoRanks {
		m.ranks = at.Ranks
	}
	m.completeness = completeness{lost: at.Missing}
	m.evidence.seenElsewhere = true
	// The peer may have had all of it from a replay alone. What it knew to be foreign is asked again by a live batch only.
	m.evidence.toldByReplayOnly = m.cfg.canReplay && at.Missing != ReasonForeign
	m.evidence.foreign = m.cfg.canReplay && at.Missing == ReasonForeign
	m.peerMark = inheritedMark{mark: m.consumed.last, early: early}
}

// beginConnectionAt begins a connection, the nth; last is the batch consumed last. Behind a
// batch beyond the mark the mark is history like any other. Only connections that may have
// been made before the mark was taken can bring batches from below it: a later one subscribes
// when they are long published.
func (h *inheritedMark) beginConnectionAt(n uint64, last fingerprint) {
	h.open, h.last = h.mark != fingerprint{} && n <= h.early && last == h.mark, fingerprint{}
}

// coversBatch reports whether a live batch that is not remembered was applied by the peer that
// left the mark. At the mark itself the bytes decide. Below it nothing is remembered, so
// ascending numbers have to do, and a number that does not ascend must be the batch seen last,
// or the connection has changed its publisher.
func (h *inheritedMark) coversBatch(it queuedBatch) bool {
	if !h.open || it.seq > h.mark.sequence() || h.mark.sequence()-it.seq >= maxBacklog {
		return false
	}
	v := newFingerprint(it.seq, it.payload)
	switch {
	case it.seq == h.mark.sequence():
		h.last = h.mark
		return v == h.mark
	case h.last == fingerprint{} || it.seq > h.last.sequence():
		h.last = v
		return true
	}
	return v == h.last
}

// meetBatch notes a live batch that is the one consumed at its number. It reports whether the batch is at or below the mark,
// on a connection that may have been made before the mark was taken.
func (h *inheritedMark) meetBatch(seq uint64) bool {
	switch {
	case !h.open:
		return false
	case seq > h.mark.sequence():
		h.open = false
		return false
	}
	h.last = h.mark
	return true
}

// passBatch notes a live batch that is beyond everything consumed, and reports whether the mark was skipped: if the
// connection brought batches from below the mark, the mark itself should have come before this one.
func (h *inheritedMark) passBatch(seq uint64) (skipped bool) {
	if !h.open {
		return false
	}
	h.open = false
	return h.last != (fingerprint{}) && h.last != h.mark && seq == h.mark.sequence()+1
}
