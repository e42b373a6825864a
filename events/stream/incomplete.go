package stream

// MarkIncomplete says why what the caller was given is not all there, for what only the caller
// can see: a publisher that numbers its events, and left numbers out of batches that
// are without a gap. The stream is Partial with that reason, and History tells it of
// the step in hand, until MarkIncomplete("") or a new epoch; a clear in a batch does not end it,
// for it may be of less than the doubt is about.
//
// It is for the goroutine that calls Next, while it has a step in hand. State follows
// with the next call of Next.
func (s *Stream) MarkIncomplete(reason string) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.machine.completeness.doubt = reason
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inHand.kind != 0 {
		s.inHand.history = historyReasonOf(s.machine)
		return
	}
	s.status.st.History = historyReasonOf(s.machine)
}
