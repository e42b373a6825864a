package log

import (
	"strconv"

	"kvconductor/events/stream"
)

// Observe implements stream.Observer: what the stream hands out goes into the log, if this
// replica is the tail.
func (s *Source) Observe(step *stream.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if step.Epoch != s.epoch {
		s.restart(step.Epoch)
	}
	if step.Kind != stream.Apply {
		return
	}
	e := entry{seq: step.Seq, print: step.Print, id: step.ID, aside: step.Aside, payload: append(make([]byte, 0, len(step.Payload)), step.Payload...)}
	before := s.win.pending
	if !s.win.add(e) {
		s.restart(step.Epoch)
		before = 0
		s.win.add(e)
	}
	s.has = true
	if s.token == "" {
		s.win.ack(e.seq)
		s.win.trim(keptBytes)
		if !s.free.IsZero() && s.view.last == strconv.FormatUint(e.seq, 10) {
			s.log.look()
		}
		return
	}
	s.charge(before)
	for s.log.buffered.Load() > s.log.cfg.Buffer && s.win.sent < len(s.win.items)-1 {
		s.overflow()
	}
	s.bucket.write(s)
}

// overflow drops the oldest pending entry. s.mu is held.
func (s *Source) overflow() {
	for s.win.sent > 0 {
		s.win.shift()
	}
	before := s.win.pending
	s.win.shift()
	s.charge(before)
	s.log.n.dropped.Add(1)
}

// charge counts what pending has become. s.mu is held.
func (s *Source) charge(before int) { s.log.buffered.Add(int64(s.win.pending - before)) }

// restart forgets another lifetime. s.mu is held.
func (s *Source) restart(epoch uint64) {
	before := s.win.pending
	s.win = window{}
	s.charge(before)
	s.epoch, s.at, s.has = epoch, position{}, false
}

// Resumed implements stream.Observer: the mark may be where the log ends.
func (s *Source) Resumed(m stream.Mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.win.add(entry{seq: m.Seq, print: m.Print, id: m.ID})
	s.win.ack(m.Seq)
	s.has = true
}

// Changed implements stream.Observer: a log may begin before the first batch.
func (s *Source) Changed(state stream.State, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.has = state == stream.Synced, has
	if s.gap.lacks = state == stream.Partial; s.synced {
		s.gap.open, s.gap.pause = false, 0
	}
	if s.token != "" {
		s.bucket.write(s)
	}
}
