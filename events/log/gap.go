package log

import (
	"context"
	"errors"
	"strconv"
	"time"

	"kvconductor/events/stream"
)

// A follower whose watermark is before the beginning of the log asks for a snapshot:
//
//	replay from n, log begins at m > n --> SourceConfig.Heal --> Done(true): another Source begins behind the snapshot
//	       ^ refused meanwhile                                   Done(false): the link ends, and the next replay is the
//	                                                             engine's, or has what the log has; asked again later
//
// Meanwhile the stream is partial: it goes on with live batches. A follower that is partial for another
// reason asks too. Example: it was adrift, and missed what the engine sent before it was connected.

const (
	// maxGapPause bounds the pauses of a follower that found no snapshot.
	maxGapPause = 10 * time.Minute
	// A replica may hand on batches shortly before they are in the log.
	appendTime = 2 * time.Second
)

var (
	errGap        = errors.New("the log begins too late: a snapshot is looked for")
	errNoSnapshot = errors.New("the log begins too late, and no snapshot reaches it")
)

// Gap is a part of the log that is gone, and that a follower needs.
type Gap struct{ source *Source }

// Tail returns the replica that follows the engine, "" if none does.
func (g *Gap) Tail() string {
	_, tail := g.source.Follows()
	return tail
}

// Fits reports whether the follower, if it still needs that, can go on behind a mark: the log has
// the batch of the mark, byte for byte.
func (g *Gap) Fits(ctx context.Context, m stream.Mark) bool {
	s := g.source
	until := time.Now().Add(appendTime)
	for {
		s.mu.Lock()
		f, follows := s.open.(*following)
		needs := follows && s.misses()
		s.mu.Unlock()
		if !needs {
			return false
		}
		fits, early := f.has(ctx, m)
		if fits || !early || time.Now().After(until) {
			return fits
		}
		select {
		case <-time.After(appendTime / 40):
		case <-ctx.Done():
			return false
		}
	}
}

// has reports whether the log has the batch of a mark; early says that the log is not there yet.
func (f *following) has(ctx context.Context, m stream.Mark) (fits, early bool) {
	s := f.source
	ctx, cancel := context.WithTimeout(ctx, s.log.cfg.Store.Timeout())
	defer cancel()
	client := s.log.cfg.Store.Client()
	id := f.gen + "-" + strconv.FormatUint(m.Seq, 10)
	found, err := client.XRangeN(ctx, s.keys[2], id, id, 1).Result()
	switch {
	case err != nil:
		return false, false
	case len(found) > 0:
		by := text(found[0].Values["i"])
		return stream.PrintOf([]byte(text(found[0].Values["p"]))) == m.Print && (by == "" || by == string(m.ID[:])), false
	}
	end, err := client.HMGet(ctx, s.keys[1], "gen", "last").Result()
	if err != nil || text(end[0]) != f.gen {
		return false, false
	}
	last, err := strconv.ParseUint(text(end[1]), 10, 64)
	return false, err == nil && last < m.Seq
}

// Done ends the search. If a snapshot was found, another Source is in the place of this one.
func (g *Gap) Done(found bool) {
	s := g.source
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gap.asked = false
	if found {
		s.log.n.healed.Add(1)
		return
	}
	s.gap.pause = min(max(2*s.gap.pause, s.log.cfg.Again), maxGapPause)
	s.gap.again = time.Now().Add(s.gap.pause)
	if _, follows := s.open.(*following); follows && s.gap.waits {
		s.endOpen(errNoSnapshot)
	}
	s.gap.waits = false
}

// gap is how far a follower has come with what the log does not have any more.
type gap struct {
	open  bool          // a replay met it, and the stream was not synced since
	lacks bool          // the stream is partial
	asked bool          // for a snapshot
	waits bool          // replays wait for the first answer
	again time.Time     // not asked again before
	pause time.Duration // before that
}

// refuse notes that the log begins too late for a replay. It reports whether that is to wait for a
// snapshot.
func (s *Source) refuse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gap.open {
		s.gap.open = true
		s.askSnapshot(time.Now())
		s.gap.waits = s.gap.asked
	}
	return s.gap.waits
}

// misses reports whether a snapshot could bring something. s.mu is held.
func (s *Source) misses() bool { return !s.synced && (s.gap.open || s.gap.lacks) }

// askSnapshot asks for a snapshot if something is missing, and none is asked for. s.mu is held.
func (s *Source) askSnapshot(now time.Time) {
	if s.cfg.Heal == nil || !s.misses() || s.gap.asked || now.Before(s.gap.again) {
		return
	}
	s.gap.asked = true
	s.log.n.gaps.Add(1)
	s.cfg.Heal(&Gap{s})
}
