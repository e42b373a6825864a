package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
)

// errLearning is why an engine that has answered has no source yet.
var errLearning = errors.New("its block size is not known before its first events: wait for them, or register it with block_size")

// planQuestion lets an engine be asked if its sources have been without a connection for deadAfter, or if its publisher was
// restarted.
func (m *Manager) planQuestion(t *target, e *engine, now time.Time) {
	dead, restarts := false, uint64(0)
	e.alive = false
	e.keys = slices.DeleteFunc(e.keys, func(key registration.Key) bool {
		state, n, ok := m.opts.Registry.Health(key)
		if !ok {
			m.recordWithdrawn(t, key)
		}
		if t.isWithdrawn(key) {
			return true // the source that is registered there now belongs to a client
		}
		if state == stream.Connecting || state == stream.Stale || state == stream.Failed {
			dead = true
		} else {
			e.alive = true
		}
		restarts += n
		return false
	})
	before := e.restarts
	e.restarts = restarts // fewer if a source was replaced, because the new one has seen none
	switch {
	case restarts > before:
		e.next, e.relearn = now, true
	case !dead:
		e.dead = time.Time{}
	case e.dead.IsZero():
		e.dead = now
	case now.Sub(e.dead) >= deadAfter && e.next.IsZero():
		e.next, e.relearn = now, true
	}
}

// askAndRegister asks an engine, registers the sources that it names, and unregisters those that it does not name any more.
// A rank that it names with a fault keeps the source that it has; so do all, if it cannot be told which rank that is.
func (m *Manager) askAndRegister(t *target, addr netip.Addr, e *engine) error {
	place := e.place
	e.place = nil
	defer place.Release() // it changes nothing if a source has taken the place
	found, err := m.askEngine(t.ctx, &t.Target, addr, e)
	if err != nil {
		return err
	}
	found.Ranks = slices.DeleteFunc(found.Ranks, func(r Rank) bool {
		return t.isWithdrawn(registration.Key{Instance: e.instance, Tenant: t.Tenant, Rank: r.Rank})
	})
	old, refreshed := e.keys, e.next.IsZero()
	r := t.Registration
	r.Type, r.Model = cmp.Or(r.Type, found.Type), cmp.Or(r.Model, found.Model)
	var learned []string
	var learnErr error
	if t.Model == "" {
		learned = append(learned, fmt.Sprintf("model %q", r.Model))
	}
	if found.Model != "" {
		e.names, e.adapters = append([]string{found.Model}, found.Aliases...), found.Adapters
	}
	if len(t.Aliases) == 0 && slices.Contains(e.names, r.Model) {
		r.Aliases = slices.DeleteFunc(slices.Clone(e.names), func(name string) bool { return name == r.Model })
		if len(r.Aliases) > 0 {
			learned = append(learned, "aliases "+strings.Join(quoteAll(r.Aliases), ", "))
		}
	}
	if len(t.Adapters) == 0 && slices.Contains(e.names, r.Model) && len(e.adapters) > 0 {
		r.Adapters = e.adapters
		learned = append(learned, "adapters "+strings.Join(quoteAll(r.Adapters), ", "))
	}
	if t.URL != "" {
		r.Address = cmp.Or(r.Address, addressOf(t, addr))
	}
	if r.BlockSize == 0 {
		switch r.BlockSize = cmp.Or(found.BlockSize, e.blockSize); {
		case found.BlockSize != 0 || len(found.Ranks) == 0: // its events have nothing to tell, and its source may need the place
			e.learning.end()
			e.learning, e.relearn = nil, false
		case r.BlockSize == 0:
			return m.awaitBlockSize(t, addr, e, found.Ranks[0])
		case e.relearn: // it may have another one by now
			if err := m.awaitBlockSize(t, addr, e, found.Ranks[0]); !errors.Is(err, errLearning) {
				learnErr = err
			}
		}
		learned = append(learned, fmt.Sprintf("block size %d", r.BlockSize))
	}
	learned = append(learned, e.learnDrafter(found.drafter, &r)...)
	e.keys = nil
	for _, f := range found.Faulty {
		err = cmp.Or(err, f.err)
		key := registration.Key{Instance: e.instance, Tenant: t.Tenant, Rank: f.rank}
		if slices.Contains(old, key) {
			e.keys = append(e.keys, key)
		}
	}
	for _, rank := range found.Ranks {
		r := r
		r.Instance, r.Rank = e.instance, rank.Rank
		r.Endpoint, r.ReplayEndpoint = rank.Endpoint, rank.Replay
		if r.Copies != registration.CopiesSet {
			r.SnapshotEndpoint = rank.Snapshot
		}
		key := r.Key()
		by := registration.Registrar{Kind: registration.ByDiscovery, Name: cmp.Or(t.URL, "the engine's first events")}
		opts := ingest.RegisterOptions{Static: t.Static, FromEngine: !rank.isExempt(&t.Target, addr), By: by,
			GivesWay: t.givesWay.Load(), Replace: slices.Contains(old, key), Place: place}
		if regErr := m.opts.Registry.Register(r, opts); regErr != nil {
			err = fmt.Errorf("rank %d: %w", rank.Rank, regErr)
			if slices.Contains(old, key) {
				e.keys = append(e.keys, key)
			}
			continue
		}
		if t.isWithdrawn(key) { // since the engine was asked
			m.opts.Registry.Unregister(key)
			continue
		}
		e.keys = append(e.keys, key)
		m.opts.Registry.ReportLearned(key, describeLearned(t.URL, learned, found))
	}
	for _, key := range old {
		switch {
		case slices.Contains(e.keys, key) || t.isWithdrawn(key):
		case slices.ContainsFunc(found.Faulty, func(f faultyRank) bool { return f.rank == unknownRank }):
			e.keys = append(e.keys, key)
		default:
			m.opts.Registry.Unregister(key) // it may be gone
		}
	}
	if err = cmp.Or(err, learnErr); err != nil {
		return err
	}
	e.next, e.pause, e.dead, e.fault, e.silences = time.Time{}, 0, time.Time{}, nil, 0
	e.planRefresh(m.opts.Now())
	if !refreshed || !slices.Equal(old, e.keys) {
		m.opts.Log.Info().Str("url", t.URL).Str("instance_id", e.instance).Int("ranks", len(e.keys)).Msg("engine discovered")
	}
	return nil
}

// describeLearned says what a source has from the engine at a URL, and what that engine may need besides; "" if that is nothing.
func describeLearned(at string, learned []string, found Engine) string {
	var all []string
	if len(learned) > 0 {
		all = append(all, fmt.Sprintf("%s told %s", cmp.Or(at, "the engine's first events"), strings.Join(learned, " and ")))
	}
	if found.Guessed {
		all = append(all, fmt.Sprintf("%s has neither /kv_event_sources nor /server_info, so its events are expected where "+
			"releases of vLLM without these publish by default, at port %d plus dp_rank: register an endpoint if they are elsewhere",
			baseOf(at), vllmPort))
	}
	if found.drafter == dropsMaybe {
		all = append(all, fmt.Sprintf("%s drafts tokens and does not say how: if its drafter is EAGLE or MTP and its events have no "+
			"lookahead_token_ids, register it with drafter: %s", baseOf(at), registration.DrafterDrops))
	}
	return strings.Join(all, "; ")
}

// quoteAll returns names, each in quotes.
func quoteAll(names []string) (all []string) {
	for _, name := range names {
		all = append(all, strconv.Quote(name))
	}
	return all
}

// learning waits for the first events of a rank.
type learning struct {
	rank  Rank
	stop  context.CancelFunc
	place *ingest.Place // its connection takes that of a source
}

// end ends the wait, if there is one, and gives its place back.
func (l *learning) end() {
	if l != nil {
		l.stop()
		l.place.Release()
	}
}

// awaitBlockSize waits in the background for the first events of a rank, which tell the block size, and lets the engine be asked
// again if it is another one than before. If the engine names another endpoint than before, it starts again there. It returns
// errLearning while it waits, else why it cannot.
func (m *Manager) awaitBlockSize(t *target, address netip.Addr, e *engine, r Rank) error {
	exempt := r.isExempt(&t.Target, address)
	if !exempt && m.opts.Reaches != nil {
		for _, endpoint := range []string{r.Endpoint, r.Replay} {
			if err := m.opts.Reaches(endpoint); err != nil {
				return fmt.Errorf("rank %d: %w", r.Rank, err)
			}
		}
	}
	if m.opts.Learn == nil || e.learning != nil && e.learning.rank == r {
		return errLearning
	}
	e.learning.end()
	e.learning = nil
	ctx, stop := context.WithCancel(t.ctx)
	place, err := m.opts.Registry.HoldPlace(ingest.Holder{Tenant: t.Tenant, Static: t.Static, GivesWay: t.givesWay.Load, GiveWay: stop})
	if err != nil {
		stop()
		e.next = m.opts.Now() // a refresh does not show the error, the next question does
		return fmt.Errorf("its block size cannot be learned from its events: %w", err)
	}
	l := &learning{rank: r, stop: stop, place: place}
	e.learning = l
	m.tasks.Go(func() {
		size, err := m.opts.Learn(ctx, &t.Target, r, exempt)
		if m.endLearning(t, e, l, ctx.Err() == nil && err == nil, size) {
			m.updateTarget(t)
		}
	})
	return errLearning
}

// endLearning records a block size, if one was learned. It reports whether the engine is to be asked because of that; then it keeps
// the place for its source. If the wait has given way to a registration, the engine is asked at the next look: then it listens again,
// or its target shows why it cannot.
func (m *Manager) endLearning(t *target, e *engine, l *learning, learned bool, size int) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	news = learned && e.learning == l && size != e.blockSize
	if news {
		e.blockSize, e.next, e.pause, e.place = size, m.opts.Now(), 0, l.place
	} else {
		l.place.Release()
	}
	if e.learning == l {
		e.learning = nil
		if e.relearn = e.relearn && !learned; !learned && e.next.IsZero() {
			e.next = m.opts.Now()
		}
	}
	l.stop()
	return news
}
