package log

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
)

// asked are the gaps of a scene.
type asked struct {
	mu  sync.Mutex
	all []*Gap
}

func (a *asked) add(g *Gap) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, g)
}

// wait returns the nth gap.
func (a *asked) wait(t *testing.T, n int) (g *Gap) {
	t.Helper()
	eventually(t, "no snapshot is asked for", func() (string, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.all) > n {
			g = a.all[n]
		}
		return fmt.Sprint(len(a.all)), g != nil
	})
	return g
}

// gapScene pauses the follower until the log is trimmed beyond its watermark, and returns the gap.
func gapScene(t *testing.T, sc *scene) (tail, other *watcher, a *asked, g *Gap) {
	a = new(asked)
	sc.bytes, sc.heal = 16<<10, a.add
	sc.begin(t)
	sc.engine.Lock()
	sc.engine.ID = events.PublisherID{1}
	sc.engine.Unlock()
	sc.publish(20)
	sc.same("begun", stream.Synced)
	tail, other = sc.tail()
	if other.log.Stats().Gaps != 0 {
		t.Error("a log that is whole has a gap")
	}
	other.stream.Pause()
	for range 20 {
		sc.publish(100)
		eventually(t, "all is appended", func() (string, bool) {
			return "", tail.stream.Status().LastSeq == sc.engine.Next()-1 && tail.log.Stats().Buffered == 0
		})
	}
	other.stream.Unpause()
	g = a.wait(t, 0)
	return tail, other, a, g
}

// markOf is the mark behind a batch that the tail has handed out.
func markOf(t *testing.T, w *watcher, seq uint64) stream.Mark {
	t.Helper()
	body := ""
	eventually(t, "the batch does not come", func() (string, bool) {
		_, body, _ = strings.Cut(w.held()[seq], " ")
		return "", body != ""
	})
	return stream.Mark{Seq: seq, Print: stream.PrintOf([]byte(body)), ID: events.PublisherID{1}}
}

// TestGapFits judges marks by what the log has.
func TestGapFits(t *testing.T) {
	t.Parallel()
	sc := &scene{}
	tail, other, a, g := gapScene(t, sc)
	if got := g.Tail(); got != tail.log.cfg.ID {
		t.Errorf("the tail is %q", got)
	}
	last := sc.engine.Next() - 1
	f := func(name string, m stream.Mark, want bool) {
		t.Helper()
		if got := g.Fits(t.Context(), m); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	f("the last batch", markOf(t, tail, last), true)
	f("one before", markOf(t, tail, last-1), true)
	f("one that is gone", markOf(t, tail, 3), false)
	changed := markOf(t, tail, last)
	changed.Print++
	f("other bytes", changed, false)
	changed = markOf(t, tail, last)
	changed.ID = events.PublisherID{2}
	f("another lifetime", changed, false)
	changed.Seq = last + 9
	f("one that never comes", changed, false)
	sc.publish(1)
	f("one that has just come", markOf(t, tail, last+1), true)

	// No snapshot: without a replay endpoint the follower goes on with what the log has, and asks again.
	g.Done(false)
	again := a.wait(t, 1)
	sc.all = []*watcher{other}
	sc.same("no snapshot", stream.Partial)
	sc.publish(1)
	sc.same("no snapshot, more batches", stream.Partial)
	g = again
	f("while it is partial", markOf(t, tail, last+2), true)
	sc.engine.Publish(streamtest.Batch(1, nil, map[string]any{"type": "AllBlocksCleared"}))
	sc.same("cleared", stream.Synced)
	eventually(t, "the gap stays", func() (string, bool) { return "", !g.Fits(t.Context(), markOf(t, tail, last)) })
	g.Done(false)
	if st := other.log.Stats(); st.Gaps != 2 || st.Asked != 0 || st.Healed != 0 {
		t.Errorf("%+v", st)
	}
}

// TestPartialFollowerAsks holds that a follower which is partial asks for a snapshot though the log has
// all that follows its watermark: it missed batches while the store was away.
func TestPartialFollowerAsks(t *testing.T) {
	t.Parallel()
	a := new(asked)
	sc := &scene{heal: a.add}
	sc.begin(t)
	sc.publish(20)
	sc.same("begun", stream.Synced)
	tail, other := sc.tail()
	mark := markOf(t, tail, sc.engine.Next()-1)
	mark.ID = events.PublisherID{}
	other.source.Changed(stream.Partial, true)
	g := a.wait(t, 0)
	if !g.Fits(t.Context(), mark) {
		t.Error("the last batch of the log does not fit")
	}
	other.source.Changed(stream.Synced, true)
	if g.Fits(t.Context(), mark) {
		t.Error("a follower that is whole needs a snapshot")
	}
	g.Done(false)
	if n := tail.log.Stats().Gaps; n != 0 {
		t.Errorf("the tail asked %d times", n)
	}
}

// TestGapAsksEngineLast refuses replays until the search for a snapshot has ended. Then the engine's
// replay makes the follower whole.
func TestGapAsksEngineLast(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true}
	_, other, _, g := gapScene(t, sc)
	if n := other.log.Stats().Asked; n != 0 {
		t.Errorf("the engine was asked %d times", n)
	}
	eventually(t, "the follower does not become partial", func() (string, bool) {
		st := other.stream.Status()
		return fmt.Sprintf("%+v", st), st.State == stream.Partial && st.Reason == stream.ReasonTimeout
	})
	sc.publish(5)
	eventually(t, "live batches wait", func() (string, bool) {
		st := other.stream.Status()
		return fmt.Sprintf("%+v", st), st.LastSeq == sc.engine.Next()-1
	})
	g.Done(false)
	sc.publish(5)
	sc.same("replayed by the engine", stream.Synced)
	if st := other.log.Stats(); st.Asked == 0 {
		t.Errorf("%+v", st)
	}
}
