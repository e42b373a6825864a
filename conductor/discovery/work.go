package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Run looks at all targets every few seconds, until ctx ends. It returns once nothing is under way.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.Close()
			return
		case <-tick.C:
			m.lookAtTargets()
		}
	}
}

// Settle waits until each target has been asked once, but not longer than a time.
func (m *Manager) Settle(ctx context.Context, most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := false
		m.mu.Lock()
		for _, t := range m.targets {
			waiting = waiting || !t.seen.Load()
		}
		m.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			return
		case <-tick.C:
		}
	}
}

// lookAtTargets starts work on each target for which none is under way.
func (m *Manager) lookAtTargets() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return
	}
	for _, t := range m.targets {
		if !t.queued.CompareAndSwap(false, true) {
			continue
		}
		m.tasks.Go(func() {
			defer t.queued.Store(false)
			for m.updateTarget(t) {
			}
		})
	}
}

// updateTarget waits for the turn of a target and brings its sources up to date. It returns at once if that is under way. It asks the
// engines that are due until the turn is over, because those that are slow to answer would hold up all other targets. It reports
// whether some are left for the next turn.
func (m *Manager) updateTarget(t *target) (left bool) {
	if t.after != nil {
		select {
		case <-t.after:
		case <-t.ctx.Done():
			return false
		}
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-t.ctx.Done():
		return false
	}
	if !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return false
	}
	now := m.opts.Now()
	err := m.updateEngines(t, now)
	turn, end := context.WithTimeout(t.ctx, m.turn)
	defer end()
	var asked error
	over := false
	for _, addr := range inTurn(t.engines) {
		e := t.engines[addr]
		m.planQuestion(t, e, now)
		switch {
		case e.next.IsZero() || now.Before(e.next) || !e.missing.IsZero():
		case over:
			left = true
		default:
			e.fault = m.askAndRegister(t, addr, e)
			m.countAnswer(e.fault)
			if e.fault != nil {
				e.pause = min(max(2*e.pause, minPause), maxPause)
				e.next = now.Add(e.pause)
				e.fault = nameEngine(t, e, e.fault)
			}
			over = turn.Err() != nil
		}
		asked = chooseFault(asked, e.fault)
	}
	if !left {
		t.seen.Store(true)
	}
	err = cmp.Or(err, asked)
	m.startRefresh(t, now)
	m.recordKept(t)
	if t.showState(err) {
		m.opts.Log.Warn().Str("url", t.URL).Str("instance_id", t.Instance).Err(err).Msg("engine not discovered")
	}
	return left
}

// nameEngine returns the fault of an engine with the name of the engine in front, unless that is the name of the whole target.
func nameEngine(t *target, e *engine, fault error) error {
	if e.instance == t.Instance {
		return fault
	}
	return fmt.Errorf("%s: %w", e.instance, fault)
}

// inTurn returns the addresses of engines in the order in which they are asked: those that failed most often come last, and of two
// alike the one that has waited longer comes first. So one that never answers holds up no other, and each is asked at some time.
func inTurn(engines map[netip.Addr]*engine) []netip.Addr {
	return slices.SortedFunc(maps.Keys(engines), func(x, y netip.Addr) int {
		a, b := engines[x], engines[y]
		return cmp.Or(cmp.Compare(a.pause, b.pause), cmp.Compare(a.silences, b.silences),
			a.next.Compare(b.next), a.refresh.Compare(b.refresh))
	})
}

// chooseFault returns the one of two faults of engines that is shown: the same one at each look, and one that something can be done
// about before one of an engine that is only waited for.
func chooseFault(a, b error) error {
	switch {
	case a == nil || b == nil:
		return cmp.Or(a, b)
	case errors.Is(a, errLearning) != errors.Is(b, errLearning):
		if errors.Is(a, errLearning) {
			return b
		}
		return a
	case b.Error() < a.Error():
		return b
	}
	return a
}

// countAnswer counts a question by its result.
func (m *Manager) countAnswer(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[result]++
}

// showState updates what List returns of the target. It reports whether err is another error than before.
func (t *target) showState(err error) (news bool) {
	t.shown.Lock()
	defer t.shown.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	news, t.err, t.learns = text != "" && text != t.err, text, errors.Is(err, errLearning)
	t.counts.addresses, t.counts.sources = len(t.engines), 0
	for _, e := range t.engines {
		t.counts.sources += len(e.keys)
	}
	t.found = t.found || t.counts.sources > 0
	return news
}
