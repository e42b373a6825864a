package discovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// An engine that has answered is asked again although nothing is wrong, because ranks can come and go while it runs
// (/scale_elastic_ep of vLLM and SGLang), and nothing else says so. Ten thousand engines are asked some 270 times a second.
const (
	// minRefresh and maxRefresh bound the pause between two such questions. It is random, so that engines that were
	// registered together are not asked together.
	minRefresh = 30 * time.Second
	maxRefresh = 45 * time.Second
	// maxSilence is the longest pause for an engine that does not answer them: each costs up to askTimeout.
	maxSilence = 5 * time.Minute
	// manySilences are refreshes in a row that failed, from which on the error is shown: a busy engine may miss some.
	manySilences = 3
)

// planRefresh sets when an engine is asked again that has just answered, or was silent some times in a row.
func (e *engine) planRefresh(now time.Time) {
	pause := minRefresh + rand.N(maxRefresh-minRefresh)
	e.refresh = now.Add(min(pause<<min(e.silences, 8), maxSilence))
}

// isStale reports whether an engine is to be refreshed. One that is to be asked anyway is not.
func (e *engine) isStale(now time.Time) bool {
	return e.next.IsZero() && !now.Before(e.refresh) && e.missing.IsZero()
}

// startRefresh lets the stale engines of a target be asked in the background, if there are any. t.mu is held.
func (m *Manager) startRefresh(t *target, now time.Time) {
	if t.URL == "" {
		return // its publisher is all that it has
	}
	for _, e := range t.engines {
		if e.isStale(now) && t.refreshing.CompareAndSwap(false, true) {
			m.tasks.Go(func() {
				defer t.refreshing.Store(false)
				m.refreshTarget(t)
			})
		}
	}
}

// refreshTarget asks the stale engines of a target, until its turn is over: the others are asked after the next look.
func (m *Manager) refreshTarget(t *target) {
	select {
	case m.refreshers <- struct{}{}:
		defer func() { <-m.refreshers }()
	case <-t.ctx.Done():
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer m.recordKept(t)
	now := m.opts.Now()
	turn, end := context.WithTimeout(t.ctx, m.turn)
	defer end()
	for _, addr := range inTurn(t.engines) {
		e := t.engines[addr]
		if !e.isStale(now) {
			continue
		}
		err := m.askAndRegister(t, addr, e)
		m.countAnswer(err)
		if err != nil {
			e.silences++
			e.planRefresh(now)
			if e.silences >= manySilences {
				e.fault = nameEngine(t, e, fmt.Errorf("asked again: %w", err))
			}
		}
		if turn.Err() != nil {
			return
		}
	}
}
