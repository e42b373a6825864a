package statelog

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// lines returns the lines of a log in words.
func lines(t *testing.T, text string) (all []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		var l struct {
			Level, From, To, Reason string
			LastedMs                float64 `json:"lasted_ms"`
			LeftOut                 int     `json:"left_out"`
		}
		must.Succeed(t, json.Unmarshal([]byte(line), &l))
		words := fmt.Sprintf("%s: %s to %s after %v", l.Level, l.From, l.To, time.Duration(l.LastedMs)*time.Millisecond)
		if l.Reason != "" {
			words += ", " + l.Reason
		}
		if l.LeftOut > 0 {
			words += fmt.Sprintf(", %d left out", l.LeftOut)
		}
		all = append(all, words)
	}
	return all
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("the log is\n%s\nwant\n%s", g, w)
	}
}

// TestHistory keeps what happened to a source: without the replay that begins each connection, the newest events, and
// each reason once.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var st atomic.Pointer[stream.Status]
		st.Store(&stream.Status{State: stream.Connecting})
		l := New(zerolog.Nop(), func() stream.Status { return *st.Load() }, 30*time.Second)
		defer l.Stop()
		tell := func() (all []string) {
			events, older := l.History()
			for _, e := range events {
				all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %d", e.Kind, e.From, e.To, e.Reason, e.Count)))
			}
			return append(all, fmt.Sprint(older))
		}
		l.Change(stream.Replaying, "")
		l.Change(stream.Synced, "")
		st.Store(&stream.Status{State: stream.Replaying, Gaps: 1})
		l.Change(stream.Replaying, "")
		l.Lost(3)
		l.Change(stream.Partial, stream.ReasonGap)
		l.Dropped("publisher_restarted", 2)
		equal(t, tell(), "state replaying synced  0", "gap    1", "state synced replaying  0", "lost    3",
			"state replaying partial gap_unrecoverable 0", "dropped   publisher_restarted 2", "0")
		for i := range 2 * MaxEvents {
			l.Lost(uint64(i))
		}
		if events, older := l.History(); len(events) != MaxEvents || older != MaxEvents+6 || events[0].Count != MaxEvents ||
			events[MaxEvents-1].Count != 2*MaxEvents-1 {
			t.Errorf("%d events from %d, %d older", len(events), events[0].Count, older)
		}
		if l.Bytes() == 0 || (*Log)(nil).Bytes() != 0 {
			t.Error("the bytes are wrong")
		}
		var none *Log
		none.Lost(1)
		if events, older := none.History(); events != nil || older != 0 {
			t.Error("a nil Log has a history")
		}
	})
}

// TestLines is the life of a source: it starts, loses an event, loses its engine and gets another.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		var st atomic.Pointer[stream.Status]
		st.Store(&stream.Status{State: stream.Connecting})
		l := New(zerolog.New(&out), func() stream.Status { return *st.Load() }, 30*time.Second)
		defer l.Stop()
		l.Change(stream.Connecting, "")
		time.Sleep(time.Second)
		l.Change(stream.Replaying, "")
		time.Sleep(time.Second)
		l.Change(stream.Synced, "")
		time.Sleep(time.Minute)
		l.Change(stream.Replaying, "")
		time.Sleep(5 * time.Second)
		l.Change(stream.Partial, stream.ReasonGap)
		time.Sleep(time.Second)
		l.Change(stream.Partial, stream.ReasonUndecodable)
		time.Sleep(time.Minute)
		lost := stream.Status{State: stream.Connecting, LastLifeAt: time.Now(), LastError: "EOF"}
		st.Store(&lost)
		l.Change(stream.Connecting, "")
		time.AfterFunc(30*time.Second-time.Millisecond, func() {
			stale := lost
			stale.State = stream.Stale
			st.Store(&stale)
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		st.Store(&stream.Status{State: stream.Synced})
		l.Change(stream.Replaying, "")
		l.Change(stream.Synced, "")
		equal(t, lines(t, out.String()),
			"debug: connecting to replaying after 1s",
			"info: replaying to synced after 1s",
			"info: synced to replaying after 1m0s",
			"warn: replaying to partial after 5s, gap_unrecoverable",
			"warn: partial to partial after 1s, undecodable",
			"warn: partial to connecting after 1m0s, EOF",
			"warn: connecting to stale after 30s, EOF",
			"debug: stale to replaying after 30s",
			"info: replaying to synced after 0s")
	})
}

// TestSilentConnection: a connection that was silent until it was given up leaves a stale source.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		st := stream.Status{State: stream.Synced}
		l := New(zerolog.New(&out), func() stream.Status { return st }, 30*time.Second)
		defer l.Stop()
		l.Change(stream.Synced, "")
		time.Sleep(time.Minute)
		st = stream.Status{State: stream.Stale, LastLifeAt: time.Now().Add(-31 * time.Second), LastError: "silent"}
		l.Change(stream.Connecting, "")
		time.Sleep(time.Hour)
		equal(t, lines(t, out.String()), "info: connecting to synced after 0s", "warn: synced to stale after 1m0s, silent")
	})
}

// TestFlapping: a source that changes each second has a few lines a minute, which say how many were
// left out, and the last of all its changes is among them.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(zerolog.New(&out), func() stream.Status { return stream.Status{State: stream.Connecting} }, 0)
		defer l.Stop()
		const changes = 100
		for i := range changes {
			l.Change([]stream.State{stream.Synced, stream.Connecting}[i%2], "")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		got := lines(t, out.String())
		told := len(got)
		for _, line := range got {
			if _, rest, some := strings.Cut(line, "after 1s, "); some {
				n := 0
				fmt.Sscanf(rest, "%d left out", &n)
				told += n
			}
		}
		if len(got) > 2*maxLines+1 || told != changes {
			t.Errorf("%d lines tell of %d changes, want all %d", len(got), told, changes)
		}
		if last := got[len(got)-1]; !strings.HasPrefix(last, "warn: synced to connecting") {
			t.Errorf("the last line is %q", last)
		}
	})
}

// TestStopped writes nothing any more.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(zerolog.New(&out), func() stream.Status { return stream.Status{State: stream.Stale} }, time.Second)
		l.Change(stream.Synced, "")
		l.Stop()
		l.Change(stream.Connecting, "")
		time.Sleep(time.Hour)
		equal(t, lines(t, out.String()), "info: connecting to synced after 0s")
	})
}
