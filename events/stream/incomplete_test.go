package stream

import (
	"example.com/conductor/events/stream/streamtest"
	"slices"
	"testing"
	"testing/synctest"
)

// What the caller doubts shows with its step, outlasts clears, and ends when the
// caller says so or with the epoch. The gaps of the stream itself are reported first.
func TestDoubtOutlastsClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const why = "event_gap"
		p := streamtest.NewPublisher()
		var heard []reportedState
		s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText, OnState: func(state State, reason string) {
			heard = append(heard, reportedState{state: state, reason: reason})
		}})
		defer s.Close()
		synctest.Wait()
		step := func(payload string) {
			t.Helper()
			p.Publish(payload)
			synctest.Wait()
			if _, ok := s.Next(); !ok {
				t.Fatal("closed")
			}
		}
		want := func(state State, reason, history string) {
			t.Helper()
			st := s.Status()
			if st.State != state || st.Reason != reason || st.History != history {
				t.Errorf("state %s %q, history %q, want %s %q %q", st.State, st.Reason, st.History, state, reason, history)
			}
		}
		step("0")
		step("1")
		s.MarkIncomplete(why)
		want(Synced, "", "") // 1 is in hand
		step("2c")
		want(Partial, why, why)
		step("3")
		s.MarkIncomplete("")
		want(Partial, why, why)
		step("4")
		want(Synced, "", "")
		s.MarkApplied()
		s.MarkIncomplete(why)
		step("5")
		want(Partial, why, why)
		p.PublishToRing("6")
		step("7")
		want(Partial, ReasonGap, why)
		step("8c")
		want(Partial, why, ReasonGap) // 7 is applied, the clear is in hand
		step("9")
		want(Partial, why, why)
		s.Resync("asked")
		step("10")
		want(Partial, ReasonUnknown, why) // the reset is in hand
		s.MarkApplied()
		want(Partial, ReasonUnknown, ReasonUnknown)
		if want := []reportedState{
			{state: Synced}, {state: Partial, reason: why}, {state: Synced}, {state: Partial, reason: why},
			{state: Partial, reason: ReasonGap}, {state: Partial, reason: why}, {state: Partial, reason: ReasonUnknown},
		}; !slices.Equal(heard, want) {
			t.Errorf("told %v, want %v", heard, want)
		}
	})
}
