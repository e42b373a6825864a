package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/master"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

const (
	// poolID is the instance the pool is registered as.
	poolID = "pool-0"
	// poolSeed is the PYTHONHASHSEED of engines that share a pool.
	poolSeed = "0"
	// saveOne is the average number of requests for one that saves its blocks.
	saveOne = 4
	// exchangeEvery is how many batches of the engines there are, on average, for
	// one of the master.
	exchangeEvery = 16
)

// pool is a Mooncake Store that all engines without a look-ahead share, with its
// master. Fleet.mu guards it.
type pool struct {
	*master.Master
	pub      *publisher.Master
	key      string // the server's of its registration
	families []master.Family
	dice     *rand.Rand
	batches  int
	events   int
}

// algorithms returns the ways to hash of the ranks that use a pool, each once.
func (c *Config) algorithms() (list []digest.Algorithm) {
	for i := range c.Instances {
		for n := range c.Ranks {
			if h := habitsOf[c.Families[i%len(c.Families)]][n%2]; h.ahead == 0 && !slices.Contains(list, h.algorithm) {
				list = append(list, h.algorithm)
			}
		}
	}
	return list
}

// openPool makes the pool with its tree, if there is to be one.
func (f *Fleet) openPool() (err error) {
	engines := f.Instances * f.Ranks
	if !f.Config.Pool {
		return nil
	}
	p := &pool{key: keyOf(poolID, f.Tenant, 0), dice: rand.New(rand.NewPCG(f.Seed, 0x706f6f6c))}
	for _, a := range f.algorithms() {
		p.families = append(p.families, master.Family{Algorithm: a, Model: f.Model})
	}
	tree := truth.New(f.BlockSize, 0, engines, len(p.families))
	f.trees = append(f.trees, tree)
	p.Master = master.New(master.Config{
		Tree: tree, First: engines, Families: p.families,
		Host: f.PoolHost, Disk: f.PoolDisk,
	})
	if p.pub, err = publisher.ListenMaster("127.0.0.1", f.Tenant, poolID); err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	f.pool = p
	return nil
}

// share is a rank's use of the pool.
type share struct {
	*pool
	rank   *rank
	column int // of the rank
	family int
}

// share returns the rank's use of the pool.
func (p *pool) share(r *rank, column int) share {
	return share{p, r, column, slices.IndexFunc(p.families, func(f master.Family) bool { return f.Algorithm == r.algorithm })}
}

// Get implements engine.Pool.
func (s share) Get(d digest.Digest) bool { return s.Master.Get(s.family, d) }

// Put implements engine.Pool.
func (s share) Put(id truth.ID, d digest.Digest) {
	s.Master.Put(master.Write{ID: id, Digest: d, Family: s.family, Source: s.column, Seq: s.rank.pub.LastSeq() + 1})
}

// saves decides whether a request offers its blocks to the pool.
func (p *pool) saves() bool { return p != nil && p.dice.IntN(saveOne) == 0 }

// exchange lets the pool write some waiting objects, now and then. The first batch comes
// soon: until then no server can know that no batch came before it. Fleet.mu is held.
func (p *pool) exchange() error {
	if p == nil || p.batches > 0 && p.dice.IntN(exchangeEvery) > 0 {
		return nil
	}
	return p.write(p.dice.IntN(p.Waiting()*master.Shards + 2))
}

// write lets the pool write up to n objects and publishes the events.
func (p *pool) write(n int) error {
	events := p.Step(n)
	batches, err := p.pub.Publish(events)
	p.batches += batches
	p.events += len(events)
	if err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	return nil
}

// flush lets the pool write all that waits.
func (p *pool) flush() error {
	for p != nil && p.Waiting() > 0 {
		if err := p.write(master.Shards * p.Waiting()); err != nil {
			return err
		}
	}
	return nil
}

// followed waits until the server has subscribed to the pool: the master has no
// replay, so its first event must not be missed.
func (d *driver) followed(ctx context.Context) error {
	for end := time.Now().Add(max(d.fleet.SettleTimeout, time.Second)); !d.fleet.pool.pub.Followed(); {
		if time.Now().After(end) {
			return fmt.Errorf("the server has not subscribed to %s at %s", d.fleet.pool.key, d.fleet.pool.pub.Endpoint())
		}
		if !harness.Wait(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// poolRegistration names the instances that the pool serves, unless it serves all.
func (f *Fleet) poolRegistration() registration {
	var serves []string
	for _, in := range f.instances {
		if f.pooled(in) {
			serves = append(serves, in.id)
		}
	}
	if len(serves) == len(f.instances) {
		serves = nil
	}
	return registration{
		Serves:    serves,
		Endpoint:  f.pool.pub.Endpoint(),
		Type:      "Mooncake",
		Model:     f.Model,
		Instance:  poolID,
		Tenant:    f.Tenant,
		BlockSize: f.BlockSize,
		Replace:   true,
	}
}

// announced reports whether an answer was made after the server had applied
// every batch that the names of the pool's blocks are from. A block of the pool
// counts for each instance it serves, whichever rank announced it. Fleet.mu is held.
func (f *Fleet) announced(rows map[string]*row) bool {
	for column, r := range f.ranks {
		seq := f.pool.Announced(column)
		if seq < 0 {
			continue
		}
		got := rows[r.instance.id]
		if got == nil {
			return false
		}
		d := got.Detail[fmt.Sprint(r.n)]
		if seqOf(d.Watermark) < seq {
			return false
		}
	}
	return true
}

// settled reports whether a row describes the state after the newest batch of
// the master, and whether the pool's history is incomplete. Fleet.mu is held.
func (p *pool) settled(got *row) (settled, incomplete bool, note string) {
	d, newest := got.Pools[p.key], p.pub.LastSeq()
	at := seqOf(d.Watermark)
	note = fmt.Sprintf("pool %s at %d of %d%s", cmp.Or(d.State, "without detail"), at, newest, because(d.Reason))
	return d.State != "" && at == newest, d.State == "partial", note
}
