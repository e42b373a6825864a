package stream

import (
	"example.com/conductor/events/stream/streamtest"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestResumeVerifies(t *testing.T) {
	f := cases(t, replaying)
	f("have5 up", "?5 =replaying")
	f("have5 up r5 end", "?5 =synced")
	f("have5 up r5 r6 end 7", "?5 6r 7 =synced")
	f("have5 up r5 end 1s r5 r6 end", "?5 ?5 6r =synced") // the slow joiner's check
	// What waits at and below the mark is covered, before the replay and after it.
	f("have5 up 3 4 5 6 r5", "?5 6 =synced")
	f("have5 up 5 6 8 r5 r6 r7", "?5 6 7r 8 =synced")
	f("have5 up 3 r5 4 5 6", "?5 6 =synced")
	f("have5 up r5 r6 r7 end 4 5 6 7 8", "?5 6r 7r 8 =synced")
	// Another lifetime behind, at or beyond the mark.
	f("have5 up end r0x end", "?5 drop:last_batch_gone ?0 0r =synced")
	f("have5 up 0x 1x end r0x r1x end 2x", "?5 drop:last_batch_gone ?0 0r 1r 2 =synced")
	f("have5 up 0x 1x r5x r0x", "?5 drop:publisher_restarted ?0 0r =replaying")
	f("have5 up r9x end", "?5 drop:last_batch_gone ?0 =replaying")
	f("have5 up 3x 4x 5x", "?5 drop:publisher_restarted ?0 =replaying")
	f("have5 up 9x r5x r0x", "?5 drop:publisher_restarted ?0 0r =replaying")
	// Numbers that no single lifetime sends over one connection.
	f("have5 up 4 3", "?5 drop:publisher_restarted ?0 =replaying")
	f("have5 up 5 4", "?5 drop:publisher_restarted ?0 =replaying")
	f("have5 up 6 4", "?5 drop:publisher_restarted ?0 =replaying")
	f("have5 up 4 4x", "?5 drop:publisher_restarted ?0 =replaying")
	f("have5 up r5 r6 end 6 4", "?5 6r drop:publisher_restarted ?0 =replaying")
	f("have5 up 4 4 5 5 6 5 r5", "?5 6 =synced") // repeated as they were
	f("have200000 up 68929 r200000 end", "?200000 =synced")
	f("have200000 up 68928", "?200000 drop:publisher_restarted ?0 =replaying")
	// A later connection brings nothing from before the mark.
	f("have5 up 3 down up 4", "?5 ?5 drop:publisher_restarted ?0 =replaying")
	f("early2 have5 up 3 down up 2 r5 end", "?5 ?5 =synced")
	f("early2 have5 up 6 down up 3 4 5 6 r5 end", "?5 ?5 6 =synced")
	f("early2 have5 up r5 r6 down up 3", "?5 6r ?6 drop:publisher_restarted ?0 =replaying")
	// There is no answer.
	f("have5 up 4 5s", "?5 =partial:replay_timeout")
	f("have5 up 4 5s 6 10s r5 1h", "?5 6 ?5 =synced")
	f("have5 up 4 5s 6 10s r5x", "?5 6 ?5 drop:publisher_restarted ?0 =replaying")
	// What the peer did not have stays missing.
	f("have5?gap_unrecoverable up r5 r6 end", "?5 6r =partial:gap_unrecoverable")
	f("have5?gap_unrecoverable up r5 r6 end 7c 8", "?5 6r 7 8 =synced")
	f("have5?gap_unrecoverable up end r0x end", "?5 drop:last_batch_gone ?0 0r =synced")
	f("have5?gap_unrecoverable up r5 resync r0 end", "?5 drop:asked ?0 0r =synced")
	f("have0 up r0 r1 end", "?0 1r =synced")
}

func TestResumeWithoutReplay(t *testing.T) {
	f := cases(t, machineConfig{})
	f("have5 up", "=partial:history_unknown") // as after any reconnect
	f("have5 up 6 7", "6 7 =synced")
	f("have5 up 3 4", "=partial:history_unknown")
	f("have5 up 3 4 5", "=synced") // all that follows comes live
	f("have5 up 3 4 5 6", "6 =synced")
	f("have5 up 8", "8 =partial:gap_unrecoverable")
	f("have5 up 4 5 8 9c", "8 9 =synced")
	f("have5?replay_overrun up 5 6", "6 =partial:replay_overrun")
	// A restart shows at the mark at the latest.
	f("have5 up 0x 1x 2x 3x 4x", "=partial:history_unknown")
	f("have5 up 0x 1x 2x 3x 4x 5x", "drop:publisher_restarted 5 =partial:history_unknown")
	f("have5 up 3x 0y", "drop:publisher_restarted 0 =synced")
	f("early2 have5 up 3 down up 0x 4x 5x", "drop:publisher_restarted 5 =partial:history_unknown")
	f("early2 have5 up 3 6 down up 4x", "6 drop:publisher_restarted 4 =partial:history_unknown")
	f("early2 have5 up 3 down up 4 5 6", "6 =synced")
	f("have5 up 3 down up 4", "drop:publisher_restarted 4 =partial:history_unknown")
	// Or it is left in doubt.
	f("have5 up 3x 4x 6x", "6 =partial:gap_unrecoverable")
	f("have5 up 3x 4x 6c", "6 =synced")
	f("have5 up 4 6", "6 =partial:gap_unrecoverable")
	// A publisher that names its lifetime leaves no doubt.
	f("have5@a up 6@a", "6 =synced")
	f("have5@a up 6@b", "drop:publisher_restarted 6 =partial:history_unknown")
	f("have5@a up 3@a 4@a 6@a", "6 =synced")
	g := cases(t, machineConfig{drop: true})
	g("have5 up 4 6 7", "drop:gap_unrecoverable 6 7 =partial:gap_unrecoverable")
	g("have5 up 4 5 6 7", "6 7 =synced")
}

// A stream that waited connected while a peer was copied goes on behind the copy.
func TestResumeBehindMark(t *testing.T) {
	f := func(replay string, asked ...uint64) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.PublishToRing("0", "1", "2")
			s := Open(Config{Endpoint: "live", ReplayEndpoint: replay, Transport: p, Decode: decodeText})
			defer s.Close()
			synctest.Wait()
			for i := range 5 {
				p.Publish(fmt.Sprint(3 + i))
			}
			mark := markAt("6", "")
			s.ResumeBehind(mark)
			if st := s.Status(); st.State != Connecting || !st.HasSeq || st.LastSeq != 6 || st.History != "" || st.Epoch != 1 {
				t.Errorf("status is %+v", st)
			}
			p.Publish("8")
			follow := newFollower(0)
			follow.resume(mark)
			c := consumeAs(t, s, follow)
			wantSeqs(t, c, 7, 8)
			p.Publish("9")
			wantSeqs(t, c, 7, 8, 9)
			st := wantState(t, s, Synced, "")
			if st.Epoch != 1 || st.Restarts != 0 || st.Duplicates < 4 || st.LastSeq != 9 {
				t.Errorf("status is %+v", st)
			}
			if got := p.Requests(); !slices.Equal(got, asked) {
				t.Errorf("asked from %d, want %d", got, asked)
			}
			// From here on it is a stream like any other.
			p.CutConnections()
			p.PublishToRing("10")
			time.Sleep(time.Second)
			p.Publish("11")
			if replay == "" {
				wantSeqs(t, c, 7, 8, 9, 11)
				wantState(t, s, Partial, ReasonGap)
				return
			}
			wantSeqs(t, c, 7, 8, 9, 10, 11)
			wantState(t, s, Synced, "")
		})
	}
	f("replay", 6)
	f("")
}

// The publisher is restarted between the mark and the connection, and its numbers
// pass the mark again.
func TestResumeOfAnotherLifetime(t *testing.T) {
	f := func(replay string, before, queued, later int, want []uint64, state State, reason string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			n := 0
			next := func() string { n++; return fmt.Sprintf("%dx", n-1) }
			for range before {
				p.PublishToRing(next())
			}
			s := Open(Config{Endpoint: "live", ReplayEndpoint: replay, Transport: p, Decode: decodeText})
			defer s.Close()
			synctest.Wait()
			for range queued {
				p.Publish(next())
			}
			mark := markAt("6", "")
			s.ResumeBehind(mark)
			follow := newFollower(0)
			follow.resume(mark)
			c := consumeAs(t, s, follow)
			synctest.Wait()
			for range later {
				p.Publish(next())
			}
			wantSeqs(t, c, want...)
			if st := wantState(t, s, state, reason); st.Epoch != 2 {
				t.Errorf("status is %+v", st)
			}
		})
	}
	upTo := func(n uint64) (all []uint64) {
		for i := range n {
			all = append(all, i)
		}
		return all
	}
	f("replay", 0, 0, 1, upTo(1), Synced, "")
	f("replay", 2, 0, 0, upTo(2), Synced, "")
	f("replay", 2, 3, 0, upTo(5), Synced, "")
	f("replay", 2, 3, 5, upTo(10), Synced, "")
	f("replay", 7, 0, 1, upTo(8), Synced, "")
	f("replay", 4, 4, 1, upTo(9), Synced, "")
	f("replay", 20, 2, 1, upTo(23), Synced, "")
	f("", 2, 3, 2, []uint64{6}, Partial, ReasonUnknown)
	f("", 4, 4, 1, []uint64{6, 7, 8}, Partial, ReasonUnknown)
}

func TestResumeTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s, _ := open(t, p, nil)
		late := func(when string) {
			t.Helper()
			defer func() {
				if recover() == nil {
					t.Errorf("a stream resumes %s", when)
				}
			}()
			s.ResumeBehind(Mark{Seq: 1})
		}
		synctest.Wait()
		late("while Next blocks")
		s.Close()
		synctest.Wait()
		late("after Next")
	})
}

func TestResumeAtNoNumber(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0")
		s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText})
		defer s.Close()
		s.ResumeBehind(Mark{Seq: endSeq})
		wantSeqs(t, consume(t, s, 0), 0)
		wantState(t, s, Synced, "")
	})
}

// What a resumed stream tells the next one is its own last batch, or the mark.
func TestResumeInARow(t *testing.T) {
	r := newRig(replaying)
	var last Mark
	r.seen = func(s Step) { last = Mark{Seq: s.Seq, Print: s.Print, Missing: historyReasonOf(r.m)} }
	r.script("have5 up r5 r6 end 7")
	next := newRig(replaying)
	last.resumeMachine(next.m, 1)
	if got, want := next.script("up 6 7 8 r7"), "?7 8 =synced"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
