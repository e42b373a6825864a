package log

import (
	"context"
	"time"
	"unsafe"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/store"
)

// tend renews and takes leases until the Log is closed.
func (l *Log) tend() {
	brief := time.NewTicker(Brief)
	defer brief.Stop()
	var last time.Time
	for {
		if now := time.Now(); now.Sub(last) >= Tick-Brief/2 {
			last = now
			l.round(l.ctx, (*Source).any)
		} else {
			l.round(l.ctx, (*Source).waits)
		}
		select {
		case <-brief.C:
		case <-l.kick:
			last = time.Time{}
			select { // others come at the same time
			case <-time.After(5 * time.Millisecond):
			case <-l.ctx.Done():
			}
		case <-l.ctx.Done():
		}
		if l.ctx.Err() != nil {
			return
		}
	}
}

// known returns the sources by bucket. Those that are gone, and have no lease, are forgotten.
func (l *Log) known() (all [store.Buckets][]*Source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.sources {
		if s.forgettable() {
			delete(l.sources, s)
			continue
		}
		i := store.Bucket(s.cfg.Key)
		all[i] = append(all[i], s)
	}
	return all
}

// forgettable reports whether the source is gone, and has no lease.
func (s *Source) forgettable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.Err() == nil {
		return false
	}
	if s.idle.IsZero() {
		s.idle = time.Now()
	}
	if s.token == "" && time.Since(s.idle) > forgotten {
		s.seen, s.since = time.Time{}, time.Time{}
		return true
	}
	return false
}

// round tends the leases of some sources once.
func (l *Log) round(ctx context.Context, which func(*Source) bool) {
	l.alive, l.hands = l.cfg.Replicas(), handedOver
	l.each(ctx, which, (*Source).wish)
}

func (s *Source) any() bool { return true }

// waits reports whether the stream waits for a subscription to a log. s.mu is held.
func (s *Source) waits() bool { return s.open == nil && s.token == "" && s.link.Err() == nil }

// leave gives all leases back.
func (l *Log) leave(ctx context.Context) {
	l.each(ctx, (*Source).any, func(s *Source, _ time.Time) string { return give })
}

// each sends the wishes of some sources, a script for each bucket that has some.
func (l *Log) each(ctx context.Context, which func(*Source) bool, wish func(*Source, time.Time) string) {
	now := time.Now()
	var asked [][]*Source
	var keys [][]string
	var args [][]any
	for _, sources := range l.known() {
		list, names := []any{l.cfg.ID, Lease.Milliseconds(), l.expiry().Milliseconds()}, []string(nil)
		chosen := sources[:0]
		for _, s := range sources {
			s.mu.Lock()
			if !which(s) {
				s.mu.Unlock()
				continue
			}
			chosen = append(chosen, s)
			live := "0"
			if _, tails := s.open.(*tailing); tails {
				live = "1"
			}
			list, names = append(list, wish(s, now), s.token, live), append(names, s.keys[0], s.keys[1])
			s.mu.Unlock()
		}
		if !l.usable() {
			for _, s := range chosen {
				s.unseen(now)
			}
			continue
		}
		if len(chosen) == 0 {
			continue
		}
		asked, keys, args = append(asked, chosen), append(keys, names), append(args, list)
	}
	if len(asked) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, l.cfg.Store.Timeout())
	defer cancel()
	for i, cmd := range run(limited, l.cfg.Store.Client(), tending, keys, args) {
		answer, err := cmd.Slice()
		var all []view
		if err == nil {
			all, err = views(answer, len(asked[i]))
		}
		for j, s := range asked[i] {
			if err != nil {
				s.unseen(now)
				continue
			}
			s.hear(all[j], args[i][3+3*j+1].(string), now)
		}
		if err != nil {
			l.n.failed.Add(1)
		}
	}
}

// wish is what the source wants to do with its lease. s.mu is held.
func (s *Source) wish(now time.Time) string {
	gone := s.link.Err() != nil
	switch {
	case s.token != "" && gone && now.Sub(s.idle) > forgotten && !s.idle.IsZero():
		return give
	case s.token != "" && !s.tries.IsZero() && now.Sub(s.tries) > unreached && len(s.log.alive) > 1:
		s.bar = now.Add(barred)
		return give
	case s.token != "" && s.view.heir != "" && s.win.pending == 0 && s.log.hands > 0:
		s.log.hands--
		return give
	case s.token != "":
		return hold
	case gone, s.seen.IsZero(), now.Before(s.bar):
		return look
	case s.free.IsZero():
		if s.alive() && now.Sub(s.first) > calm && s.caughtUp() && s.log.prefers(s.cfg.Key) {
			return want
		}
		return look
	}
	waited := now.Sub(s.free)
	if (s.caughtUp() || waited > patience) && (waited > courtesy || s.log.prefers(s.cfg.Key)) {
		return take
	}
	return look
}

// hear takes what the store says; token is that of the wish.
func (s *Source) hear(v view, token string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.seen.IsZero()
	if s.view, s.seen = v, now; fresh {
		s.first = now
	}
	if s.alive() {
		s.lived = now
	}
	if s.token != token {
		return // it was lost meanwhile
	}
	mine := v.owner == s.log.cfg.ID && v.left > 0
	switch {
	case mine && v.token != s.token && (s.token != "" || v.left > 0):
		s.won(v.token, v.position)
		return
	case mine:
		return
	case s.token != "":
		if v.owner != "" {
			s.log.n.lost.Add(1)
		}
		s.lose(errLease)
	}
	if v.left > 0 {
		s.free = time.Time{}
	} else if s.free.IsZero() {
		s.free = now
		if fresh || v.heir == s.log.cfg.ID {
			s.log.look()
		}
	}
	if _, tails := s.open.(*tailing); tails {
		s.endOpen(errStore) // it was adrift
		return
	}
	if f, ok := s.open.(*following); ok {
		switch {
		case f.gen != v.gen:
			s.endOpen(errGeneration)
		case !s.mayFollow(now):
			s.endOpen(errNoTail)
		default:
			s.askSnapshot(now)
		}
		return
	}
	s.change()
}

// unseen notes that the store does not answer: after a while no follower knows whether the engine
// is followed.
func (s *Source) unseen(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.seen) < Lease/2 {
		return
	}
	s.free = time.Time{}
	if s.view.left = 0; s.token == "" {
		s.view.gen = "" // nothing is followed before the store answers
		if _, follows := s.open.(*following); follows || s.adrift(now) && s.open == nil {
			s.endOpen(errNoTail)
		}
	}
}

// Follows implements stream.Shared.
func (s *Source) Follows() (what, tail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.token != "":
		return stream.FollowsEngine, s.log.cfg.ID
	case s.view.left == 0:
		return stream.FollowsLog, ""
	}
	return stream.FollowsLog, s.view.owner
}

// behind is how many entries of the log were not received.
func (s *Source) behind() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.open.(*following); ok {
		return f.behind(s.view.position)
	}
	return 0
}

// Memory returns the bytes that the batches of all sources take: those that wait for the store, those
// kept behind them, and those that were read from logs.
func (l *Log) Memory() (bytes int64) {
	if l == nil {
		return 0
	}
	for _, sources := range l.known() {
		for _, s := range sources {
			s.mu.Lock()
			bytes += int64(s.win.bytes())
			if f, ok := s.open.(*following); ok {
				bytes += f.bytes.Load() + int64(cap(f.queue))*int64(unsafe.Sizeof(payload.Message{}))
			}
			s.mu.Unlock()
		}
	}
	return bytes
}

// Stats are the numbers of a Log.
type Stats struct {
	Held, Following             int    // sources
	Behind                      uint64 // entries, of all sources that follow the log
	Buffered                    int64  // bytes that wait for the store
	Taken, Lost                 uint64 // leases
	Appends, Entries, Bytes     uint64
	Failed, Moved, Dropped      uint64 // scripts without an answer; logs that were not as left; entries lost to the bound
	Generations, FromLog, Asked uint64 // generations begun; replays out of the log; replays that engines were asked for
	Gaps, Healed                uint64 // snapshots looked for because a follower misses something, and found
}

// Stats returns the numbers.
func (l *Log) Stats() Stats {
	n := &l.n
	st := Stats{
		Buffered: l.buffered.Load(), Taken: n.taken.Load(), Lost: n.lost.Load(),
		Appends: n.appends.Load(), Entries: n.entries.Load(), Bytes: n.bytes.Load(),
		Failed: n.failed.Load(), Moved: n.moved.Load(), Dropped: n.dropped.Load(),
		Generations: n.generations.Load(), FromLog: n.fromLog.Load(), Asked: n.asked.Load(),
		Gaps: n.gaps.Load(), Healed: n.healed.Load(),
	}
	for _, sources := range l.known() {
		for _, s := range sources {
			if what, _ := s.Follows(); what == stream.FollowsEngine {
				st.Held++
			} else {
				st.Following++
				st.Behind += s.behind()
			}
		}
	}
	return st
}
