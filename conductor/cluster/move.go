package cluster

import (
	"context"
	"slices"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
)

// decidePhases decides the next phase of every shard. It reports whether this replica wants other sources
// than before. due says that the last beat was one of those that come in each membership.Pause.
func (c *Cluster) decidePhases(ctx context.Context, rows map[scope.Shard]*Row, urls map[string]string, due bool) (moved bool) {
	me, now := c.cfg.Group.ID(), c.cfg.Now()
	c.rates.addCounts(c.cfg.Conductor.ShardQueries(), now)
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, h := range c.held {
		if rows[s] == nil { // its last source is unregistered
			c.letGo(s, h)
			moved = true
		}
	}
	for s, row := range rows {
		h := c.held[s]
		var own holding
		whole, connecting, changing := row.countSources(c.cfg.Conductor)
		if h != nil {
			h.whole, h.settled = whole, h.brought && connecting+changing == 0
			h.waited = h.brought && changing == 0 && now.Sub(h.since) >= reaching
			h.updateBehind(row.Told, me, now)
			if due {
				h.beats++
			}
			own = h.holding
		}
		next := decidePhase(me, row.Owners, row.Told, own)
		delete(row.Told, me) // it is as old as the beat
		if next != own.phase {
			moved = true
			c.moves.Add(1)
			c.cfg.Log.Info().Str("tenant", s.Tenant).Str("model", s.Model).Stringer("from", own.phase).Stringer("to", next).Strs(
				"owners", row.Owners).Msg("a shard moves")
			switch {
			case next == Absent:
				c.letGo(s, h)
				h = nil
			case h == nil:
				h = c.beginTakeover(ctx, row, urls, whole)
				c.held[s] = h
			default:
				h.phase, h.beats = next, 0
			}
		}
		if next == Bringing && own.phase == Bringing && own.settled && now.Sub(h.since) >= h.pause {
			c.takeOverAgain(ctx, row, urls, h)
			moved = true
		}
		if row.Phase = next; h != nil {
			row.Told[me] = Fact{Phase: next, Whole: h.whole, Queries: c.rates.roundedRate(s)}
		}
	}
	return moved
}

// catching is how long a replica that serves may have fewer sources that miss nothing than another one
// before it takes the shard over from that one. A source that has lost its connection, or is behind after a
// restart of its engine, needs seconds.
const catching = 30 * time.Second

// updateBehind sets behind if another serving replica has had more sources that miss nothing than this one for at least the
// time of catching. told is what replicas say of the shard, by replica.
func (h *heldShard) updateBehind(told map[string]Fact, me string, now time.Time) {
	best := 0
	for id, f := range told {
		if id != me && f.Phase == Serving {
			best = max(best, f.Whole)
		}
	}
	switch {
	case h.whole >= best:
		h.worse = time.Time{}
	case h.worse.IsZero():
		h.worse = now
	}
	h.behind = !h.worse.IsZero() && now.Sub(h.worse) >= catching
}

// letGo ends the part of this replica in a shard. Blocks that were brought for sources which it has not followed yet go
// with it. c.mu is held.
func (c *Cluster) letGo(s scope.Shard, h *heldShard) {
	h.stop()
	c.cfg.Conductor.Sources().Snapshots().DropUnregistered(s)
	delete(c.held, s)
}

// beginTakeover begins to take over a shard. If this replica follows its sources already, from its
// configuration or its disk or because they were registered here, and misses no more than those that
// serve, there is nothing to bring. Sources of a shard that it has left may be followed for a moment.
// c.mu is held.
func (c *Cluster) beginTakeover(ctx context.Context, row *Row, urls map[string]string, whole int) *heldShard {
	ctx, stop := context.WithCancel(ctx)
	h := &heldShard{holding: holding{phase: Bringing}, stop: stop, pause: minAgain}
	from, best := row.replicasServing(urls)
	followed := slices.ContainsFunc(row.sources, func(r *registration.Registration) bool {
		return c.cfg.Conductor.Sources().Follows(r.Key()) &&
			!r.IsPool()
	})
	if followed && whole >= best && c.chart.Load().rows[row.Shard] == nil {
		h.brought, h.since = true, c.cfg.Now()
		return h
	}
	c.work.Go(func() { c.bringShard(ctx, row, from, h) })
	return h
}

// takeOverAgain takes over a shard once more because others have more of it: they may have been busy before, or
// the engine out of reach. c.mu is held.
func (c *Cluster) takeOverAgain(ctx context.Context, row *Row, urls map[string]string, h *heldShard) {
	h.stop()
	ctx, h.stop = context.WithCancel(ctx)
	h.brought, h.settled, h.pause = false, false, min(2*h.pause, maxAgain)
	from, _ := row.replicasServing(urls)
	c.work.Go(func() { c.bringShard(ctx, row, from, h) })
}

// Pauses before a shard is taken over again.
const (
	minAgain = 10 * time.Second
	maxAgain = 5 * time.Minute
)

// replicasServing returns the URLs of the replicas that answer for the shard, and the largest Fact.Whole among them.
func (r *Row) replicasServing(urls map[string]string) (from []string, best int) {
	for _, phase := range []Phase{Serving, Leaving} {
		for id, f := range r.Told {
			if f.Phase == phase && urls[id] != "" {
				from, best = append(from, urls[id]), max(best, f.Whole)
			}
		}
	}
	return from, best
}

// bringShard takes over the blocks of a shard from one of some replicas. After that its sources are followed.
func (c *Cluster) bringShard(ctx context.Context, row *Row, from []string, h *heldShard) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return
	}
	start := time.Now()
	for _, d := range row.deployments() {
		if c.cfg.Bring == nil || !c.waitUntilLeft(ctx, row) {
			break
		}
		if err := c.cfg.Bring(ctx, d, from); err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn().Str("tenant", d.Tenant).Str("model", d.Model).Int("block_size", d.BlockSize).Err(err).Msg(
				"the blocks of a shard cannot be taken over: its engines replay what they have")
		}
	}
	c.mu.Lock()
	h.brought, h.since = ctx.Err() == nil, c.cfg.Now()
	c.mu.Unlock()
	c.cfg.Log.Info().Str("tenant", row.Tenant).Str("model", row.Model).Dur("took", time.Since(start)).Msg(
		"the blocks of a shard are taken over, its sources are followed")
	c.cfg.Registry.Again()
}

// anySettled reports whether a shard that is brought has settled since the last Step, so that a beat is worth hastening.
func (c *Cluster) anySettled() bool {
	rows := c.chart.Load().rows
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, h := range c.held {
		if h.phase != Bringing || !h.brought || h.settled || rows[s] == nil {
			continue
		}
		if _, connecting, changing := rows[s].countSources(c.cfg.Conductor); connecting+changing == 0 {
			return true
		}
	}
	return false
}

// waitUntilLeft waits until no source of a shard is followed any more, so that a takeover finds room for its
// blocks. It returns false if ctx ends.
func (c *Cluster) waitUntilLeft(ctx context.Context, row *Row) bool {
	tick := time.NewTicker(looking)
	defer tick.Stop()
	for slices.ContainsFunc(row.sources, func(r *registration.Registration) bool {
		return c.cfg.Conductor.Sources().Follows(r.Key()) && !r.IsPool() && !c.Wanted(*r)
	}) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return ctx.Err() == nil
}

// reaching is how long a shard that no replica answers for waits for connections to its engines. One
// that is up takes a second at most, unless its first packets are lost.
const reaching = 5 * time.Second

// looking is the pause between two looks at sources that are about to be left, or to settle.
const looking = 50 * time.Millisecond

// deployments returns the deployments of the shard.
func (r *Row) deployments() (all []scope.Deployment) {
	for _, source := range r.sources {
		d := scope.Deployment{Tenant: r.Tenant, Model: r.Model, BlockSize: source.BlockSize}
		if d.BlockSize > 0 && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// countSources returns how many sources of the shard miss nothing, how many have no connection, and how
// many are about to change: not followed yet, or without their history until now. All others were
// given up. Pools do not count: nothing brings what they announced before.
func (r *Row) countSources(c *conductor.Conductor) (whole, connecting, changing int) {
	for _, source := range r.sources {
		if source.IsPool() {
			continue
		}
		switch state, _, followed := c.Sources().Health(source.Key()); {
		case !followed || state == stream.Replaying:
			changing++
		case state == stream.Connecting:
			connecting++
		case state.Ready():
			whole++
		}
	}
	return whole, connecting, changing
}
