package stream

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
)

func TestExplainFrames(t *testing.T) {
	f := func(want string, frames ...string) {
		t.Helper()
		var all [][]byte
		for _, frame := range frames {
			all = append(all, []byte(frame))
		}
		if got := explainFrames(all); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", frames, got, want)
		}
	}
	const (
		want  = "where 3 are expected (topic, sequence number, batch)"
		batch = "\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90\x00"
	)
	seq := string(streamtest.EncodeSequence(1))
	f("1 frame "+want+"; it begins with 0x93, a msgpack array of 3, which looks like a batch: the publisher sends no sequence number",
		batch)
	f("2 frames "+want+"; the second begins with 0x93, a msgpack array of 3, which looks like a batch: the publisher sends no "+
		"sequence number", "kv", batch)
	f("2 frames "+want+"; the second begins with 0x93, a msgpack array of 3, which looks like a batch: the publisher sends no topic, or "+
		"no sequence number", seq, batch)
	f("2 frames "+want+`; the second begins with 0x7b, JSON text`, "kv", `{"type":"BlockStored"}`)
	f("1 frame "+want+"; it begins with 0x48, HTTP", "HTTP/1.1 400 Bad Request")
	f("1 frame "+want+"; it begins with 0x82, a msgpack map of 2", "\x82\xa1a\x01\xa1b\x02")
	f("1 frame "+want+"; it begins with 0x1f, gzip data", "\x1f\x8b\x08\x00")
	f("1 frame "+want+"; it begins with nothing, it is empty", "")
	f("4 frames "+want+"; the last begins with 0x93, a msgpack array of 3", "", "kv", seq, batch)
	f("a sequence number of 4 bytes where 8 are expected; the frame behind it begins with 0x93, a msgpack array of 3", "kv", seq[4:], batch)
	f("the sequence number that ends a replay", "kv", string(streamtest.EncodeSequence(endSeq)), batch)
	f("no frames " + want)
}

// A source most of whose last messages have no frames of ours is not synced, until most have.
func TestUnusableFrames(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		var states []string
		s, c := open(t, p, func(c *Config) {
			c.ReplayEndpoint = ""
			c.OnState = func(state State, reason string) {
				states = append(states, strings.TrimSpace(fmt.Sprint(state, " ", reason)))
			}
		})
		synctest.Wait()
		p.Publish("0c")
		for range fewUnusable {
			p.SendFrames("kv", "1")
		}
		synctest.Wait()
		wantState(t, s, Synced, "")
		p.SendFrames("kv", "1")
		synctest.Wait()
		st := wantState(t, s, Partial, ReasonUnusable)
		if want := "2 frames where 3 are expected (topic, sequence number, batch); the second begins with 0x31, a msgpack " +
			"unsigned int"; st.Unusable != want || st.LastError != "cannot use a message: "+want || st.Dropped[events.BadFrames] != 4 {
			t.Errorf("status is %+v", st)
		}
		for i := range 4 { // as many as could not be used
			wantState(t, s, Partial, ReasonUnusable)
			p.Publish(fmt.Sprint(i + 1))
			synctest.Wait()
		}
		if st = wantState(t, s, Synced, ""); st.Unusable != "" {
			t.Errorf("status is %+v", st)
		}
		for range 100_000 { // they take no room
			p.SendFrames("1")
		}
		synctest.Wait()
		wantState(t, s, Partial, ReasonUnusable)
		for i := range judgedMessages/2 + 1 {
			p.Publish(fmt.Sprint(i + 5))
		}
		synctest.Wait()
		wantState(t, s, Synced, "")
		// Behind another connection may be another process.
		for range judgedMessages {
			p.SendFrames("1")
		}
		synctest.Wait()
		wantState(t, s, Partial, ReasonUnusable)
		p.CutConnections()
		wantSeqs(t, c, slices.Collect(func(yield func(uint64) bool) {
			for i := range uint64(judgedMessages/2 + 6) {
				if !yield(i) {
					return
				}
			}
		})...)
		if st := s.Status(); st.Unusable != "" {
			t.Errorf("status is %+v", st)
		}
		const want = "partial history_unknown, synced, partial unusable, synced, partial unusable, synced, partial unusable, connecting"
		// The connection may be up before the stream tells its first state.
		if got := strings.TrimPrefix(strings.Join(states, ", "), "connecting, "); got != want {
			t.Errorf("states were %s, want %s", got, want)
		}
	})
}

// decodeWords is a Decode whose payloads say what becomes of their events: bad, unknown, foreign
// or none, or an event that is there.
func decodeWords(p []byte) (events.Batch, error) {
	b := events.Batch{Rank: -1}
	switch word := strings.TrimRight(string(p), "0123456789"); word {
	case "!":
		return b, errors.New("not a batch")
	case "bad":
		b.CountDropped(events.BadEvent, 2)
		b.Note = "an empty array"
	case "unknown":
		b.CountDropped(events.UnknownType, 1)
		b.Unknown = []string{"BlockMoved"}
	case "token":
		b.CountDropped(events.BadToken, 3)
	case "foreign":
		b.CountDropped(events.Foreign, 1)
	case "mixed":
		b.CountDropped(events.BadEvent, 5)
		fallthrough
	case "good":
		b.Events = []events.Event{{Kind: events.Stored, Hashes: []uint64{1}}}
	}
	return b, nil
}

// A batch whose events are all dropped is a message that cannot be used; one without events, or about
// blocks elsewhere, says nothing.
func TestUnusableBatches(t *testing.T) {
	f := func(want, why string, words ...string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			s, _ := open(t, p, func(c *Config) { c.Decode = decodeWords })
			synctest.Wait()
			for i, word := range words {
				p.Publish(word + strconv.Itoa(i))
			}
			synctest.Wait()
			if st := s.Status(); string(st.State)+" "+st.Reason != want || st.Unusable != why {
				t.Errorf("%v: %s %s %q, want %s %q", words, st.State, st.Reason, st.Unusable, want, why)
			}
		})
	}
	const most = "partial unusable"
	f("synced ", "", "bad", "bad", "bad")
	f(most, "no event of a batch can be read: bad_event 2, such as an empty array", "bad", "bad", "bad", "bad")
	f(most, `no event of a batch can be read: unknown_type 1, such as the type "BlockMoved"`, "good", "bad", "bad", "bad", "unknown")
	f(most, "no event of a batch can be read: bad_token 3", "", "token", "", "token", "", "token", "", "", "token", "")
	f("synced ", "", "good", "bad", "good", "bad", "good", "bad", "good", "bad", "good", "bad")
	f("synced ", "", "mixed", "mixed", "mixed", "mixed", "mixed")
	f("synced ", "", "foreign", "foreign", "foreign", "foreign", "foreign")
	f(most, "not a batch; it begins with 0x21, text", "good", "!", "!", "!", "!", "!")
	f("partial undecodable", "", "good", "!", "!", "!", "!", "!", "good", "good", "good", "good", "good")
}
