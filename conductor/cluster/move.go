package cluster

import (
	"context"
	"slices"
	"time"

	"kvconductor/conductor"
	"kvconductor/conductor/scope"
	"kvconductor/events/stream"
)

// move decides the next phase of every shard. It reports whether this replica wants other sources
// than before.
func (c *Cluster) move(ctx context.Context, rows map[conductor.Shard]*Row, urls map[string]string, sources []conductor.Registration) (moved bool) {
	c.rates.step(c.cfg.Conductor.ShardQueries(), c.cfg.Now())
	me, states := c.cfg.Fleet.ID(), States(c.cfg.Conductor)
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
		if h != nil {
			h.whole, h.settled = whole(s, sources, states)
			h.settled = h.settled && h.brought
			h.beats++
			own = h.holding
		}
		next := decide(me, row.Owners, row.Told, own)
		delete(row.Told, me)
		if next != own.phase {
			c.moves.Add(1)
			c.cfg.Log.Info().Str("tenant", s.Tenant).Str("model", s.Model).Stringer("from", own.phase).Stringer("to", next).Strs("owners", row.Owners).Msg("a shard moves")
			switch {
			case next == Absent:
				c.letGo(s, h)
				h, moved = nil, true
			case h == nil:
				h = c.bring(ctx, row, urls, sources)
				c.held[s] = h
			default:
				h.phase, h.beats = next, 0
			}
		}
		if row.Phase = next; h != nil {
			row.Beats = h.beats
		}
	}
	return moved
}

// letGo ends the part of this replica in a shard. c.mu is held.
func (c *Cluster) letGo(s conductor.Shard, h *heldShard) {
	h.stop()
	delete(c.held, s)
}

// bring takes over the blocks of a shard, then lets its sources be followed. c.mu is held.
func (c *Cluster) bring(ctx context.Context, row *Row, urls map[string]string, sources []conductor.Registration) *heldShard {
	ctx, stop := context.WithCancel(ctx)
	h := &heldShard{holding: holding{phase: Bringing}, stop: stop}
	var from []string
	for _, phase := range []Phase{Serving, Leaving} {
		for id, f := range row.Told {
			if f.Phase == phase && urls[id] != "" {
				from = append(from, urls[id])
			}
		}
	}
	all := deploymentsOf(row.Shard, sources)
	c.work.Go(func() {
		select {
		case c.places <- struct{}{}:
			defer func() { <-c.places }()
		case <-ctx.Done():
			return
		}
		start := time.Now()
		for _, d := range all {
			if c.cfg.Bring == nil {
				break
			}
			if err := c.cfg.Bring(ctx, d, from); err != nil && ctx.Err() == nil {
				c.cfg.Log.Warn().Str("tenant", d.Tenant).Str("model", d.Model).Int("block_size", d.BlockSize).Err(err).Msg("the blocks of a shard cannot be taken over: its engines replay what they have")
			}
		}
		c.cfg.Log.Info().Str("tenant", row.Tenant).Str("model", row.Model).Dur("took", time.Since(start)).Msg("the sources of a shard are followed")
		c.mu.Lock()
		h.brought = ctx.Err() == nil
		c.mu.Unlock()
		c.cfg.Registry.Again()
	})
	return h
}

// deploymentsOf returns the deployments of a shard.
func deploymentsOf(s conductor.Shard, sources []conductor.Registration) (all []scope.Deployment) {
	for i := range sources {
		r := &sources[i]
		if r.BlockSize <= 0 || !slices.Contains(r.Shards(), s) {
			continue
		}
		if d := (scope.Deployment{Tenant: s.Tenant, Model: s.Model, BlockSize: r.BlockSize}); !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// whole returns how many sources of a shard miss nothing, and whether no source is about to change
// that: each one is followed, and has its history or was given up.
func whole(s conductor.Shard, sources []conductor.Registration, states map[conductor.Key]stream.State) (n int, settled bool) {
	settled = true
	for i := range sources {
		r := &sources[i]
		if r.Model == "" || !slices.Contains(r.Shards(), s) {
			continue
		}
		switch state, followed := states[r.Key()]; {
		case !followed || state == stream.Connecting || state == stream.Replaying:
			settled = false
		case state == stream.Synced:
			n++
		}
	}
	return n, settled
}
