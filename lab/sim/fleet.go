// Package sim is a fleet of inference engines without the models: real
// publishers on loopback sockets, driven by a workload, that ask a Conductor
// before each request and compare every answer with what they really hold.
//
//	workload --prompt--> driver --POST /query--> server under test
//	                       |  ^                      ^      ^
//	                       |  +--- answer -----------+      | ZMQ: live and replay
//	                       |  +--- truth --+                |
//	                       v               |                |
//	                    engine --writes--> truth            |
//	                    |  +-- events --> publisher --------+
//	                    +-- blocks --> master of a pool ----+
//
// Some engines have a drafter, so they hash a block with the tokens behind it, its
// look-ahead. The truth has a tree for each look-ahead. vLLM has no look-ahead with a
// connector, and the pool serves instances without a look-ahead alone.
//
// The server is a black box behind HTTP and ZMQ; nothing here uses its
// packages, and the truth is computed from the published definitions alone.
//
// An answer about an instance is settled when, for each of its ranks and for the
// pool, the watermark the server attached to it is the newest batch published,
// and when it was made after the batches, of whatever rank, that name the pool's
// blocks. The server reads watermarks before it matches, so a settled answer
// describes exactly the present state, and any difference is an error. An
// answer with an older watermark may differ; it is behind, and counted apart.
//
// Invariants
//  1. Under Fleet.mu, the truth is the state after the newest published batch.
//  2. While a client waits for the server to catch up, no rank publishes.
//
// Lock order: driver.publishing, Fleet.mu. The tally and the router lock last
// and alone.
//
// Cost: a query costs one rendering of its tokens and one walk of the truth,
// some microseconds per thousand tokens.
package sim

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
	"example.com/conductor/lab/sim/workload"
)

// Config describes a simulation. A zero value is a default only where its comment says so.
type Config struct {
	Server string // base URL of the server under test
	// Servers, if set, are several servers that share a store. They take the place of Server.
	Servers *Servers
	// Wrap adds certificates and tokens to a transport; nil adds none.
	Wrap   func(*http.Transport) (http.RoundTripper, error)
	Tenant string
	Model  string
	Name   string // what names of instances begin with, "" for inst
	// Address returns the base URL that an instance, by its index, is registered with; nil registers none. Nothing listens there.
	Address func(instance int) string

	Instances int
	Ranks     int      // data-parallel ranks per instance
	Families  []string // dealt over the instances in turn; see Families

	BlockSize          int  // tokens per block
	Device, Host, Disk int  // capacity of one rank's tiers, in blocks
	Chunk              int  // prompt tokens one step computes
	Pool               bool // engines without a look-ahead share a Mooncake Store
	PoolHost, PoolDisk int  // capacity of its tiers, in blocks
	Running            int  // requests that share the steps of a rank
	ClearEvery         int  // requests of a rank between two cache resets, 0 for never

	Source   workload.Source
	Requests int           // 0 for all the source has
	Duration time.Duration // 0 for no limit
	QPS      float64       // 0 for as fast as answers come
	Clients  int           // queries in flight
	Warm     int           // requests before registration, which only a replay tells
	Seed     uint64

	SettleEvery   int           // one query in SettleEvery waits until the server caught up, 0 for none
	SettleTimeout time.Duration // how long it waits
	Audit         int           // earlier prompts asked again at the end

	Ring  int // batches a publisher can replay
	Queue int // batches a publisher keeps for slow readers, 0 for no limit

	// Faults loses batches, cuts and holds connections, restarts engines and spoils
	// replays, while the fleet works.
	Faults bool

	// Ways puts proxies in front of the publishers, for Stage.Ways. Faults does as well.
	Ways bool

	// Restarts of the server while the fleet works.
	Restarts Restarts

	// Stage lets a script stop the fleet, together with others; nil for none.
	Stage *Stage

	Keep     bool      // leave the registrations
	Samples  bool      // show a few requests with their answers at the end
	Progress *Progress // nil for none
}

// Check returns all errors of the configuration as one.
func (c *Config) Check() error {
	var bad []string
	atLeast := func(name string, v, least int) {
		if v < least {
			bad = append(bad, fmt.Sprintf("%s %d is less than %d", name, v, least))
		}
	}
	atLeast("instances", c.Instances, 1)
	atLeast("ranks", c.Ranks, 1)
	atLeast("block size", c.BlockSize, 1)
	if c.BlockSize > digest.Longest {
		bad = append(bad, fmt.Sprintf("block size %d is more than %d", c.BlockSize, digest.Longest))
	}
	atLeast("device blocks", c.Device, 1)
	atLeast("host blocks", c.Host, 0)
	atLeast("disk blocks", c.Disk, 0)
	atLeast("chunk", c.Chunk, c.BlockSize)
	if c.Pool {
		atLeast("pool host blocks", c.PoolHost, 1)
		atLeast("pool disk blocks", c.PoolDisk, 0)
		if c.Faults {
			bad = append(bad, "a pool cannot be simulated with faults: what names its blocks would be lost for good")
		}
	}
	atLeast("running", c.Running, 1)
	atLeast("clear-every", c.ClearEvery, 0)
	atLeast("requests", c.Requests, 0)
	atLeast("clients", c.Clients, 1)
	atLeast("warm", c.Warm, 0)
	atLeast("settle-every", c.SettleEvery, 0)
	atLeast("audit", c.Audit, 0)
	atLeast("ring", c.Ring, 1)
	atLeast("queue", c.Queue, 0)
	if c.QPS < 0 {
		bad = append(bad, fmt.Sprintf("qps %g is negative", c.QPS))
	}
	if len(c.Families) == 0 {
		bad = append(bad, "families is empty")
	}
	for _, name := range c.Families {
		if _, ok := habitsOf[name]; !ok {
			bad = append(bad, fmt.Sprintf("family %q is none of %s", name, strings.Join(Families, ", ")))
		}
	}
	if c.Pool && len(bad) == 0 && len(c.algorithms()) == 0 {
		bad = append(bad, "a pool serves no engine with a look-ahead, and all have one")
	}
	if len(bad) > 0 {
		return fmt.Errorf("cannot simulate: %s", strings.Join(bad, "; "))
	}
	return nil
}

// Fleet is the engines with their publishers and the truth about them.
type Fleet struct {
	Config
	instances []*instance
	ranks     []*rank // all, instance by instance; the index is the truth's column

	mu    sync.Mutex    // guards the engines, the trees, the pool and the order of publishing
	trees []*truth.Tree // one per look-ahead
	pool  *pool         // nil for none
}

type instance struct {
	id     string
	family string
	first  int // index of its rank 0 in Fleet.ranks
	tree   *truth.Tree
	ranks  []*rank

	restarts atomic.Int64 // restarts of its ranks that have ended
}

type rank struct {
	habit
	instance *instance
	n        int    // data-parallel rank
	key      string // the server's of its registration
	engine   *engine.Engine
	pub      *publisher.Publisher
	options  publisher.Options
	disturbed

	// Guarded by Fleet.mu.
	requests int // submitted since the last reset
	events   int
	batches  int
}

// newFleet opens the sockets of all publishers.
func newFleet(c Config) (*Fleet, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	f := &Fleet{Config: c}
	if err := f.openPool(); err != nil {
		return nil, err
	}
	for i := range c.Instances {
		in := &instance{
			id:     c.instanceID(i),
			family: c.Families[i%len(c.Families)],
			first:  len(f.ranks),
		}
		in.tree = f.treeOf(in)
		f.instances = append(f.instances, in)
		for n := range c.Ranks {
			r, err := f.newRank(in, n)
			if err != nil {
				f.close()
				return nil, err
			}
			in.ranks = append(in.ranks, r)
			f.ranks = append(f.ranks, r)
		}
	}
	return f, nil
}

// treeOf returns the tree of the instance's look-ahead. It makes that tree for the first
// such instance.
func (f *Fleet) treeOf(in *instance) *truth.Tree {
	ahead := habitsOf[in.family][0].ahead
	for _, t := range f.trees {
		if t.Ahead() == ahead {
			return t
		}
	}
	t := truth.New(f.BlockSize, ahead, f.Instances*f.Ranks, 0)
	f.trees = append(f.trees, t)
	return t
}

// pooled reports whether the pool serves the instance: one without a look-ahead.
func (f *Fleet) pooled(in *instance) bool { return f.pool != nil && in.tree.Ahead() == 0 }

func (f *Fleet) newRank(in *instance, n int) (*rank, error) {
	h := habitsOf[in.family][n%2]
	r := &rank{habit: h, instance: in, n: n, key: keyOf(in.id, f.Tenant, n)}
	seed := in.id // without a pool engines of a fleet need not name blocks alike
	var shared engine.Pool
	if f.pooled(in) {
		seed, shared = poolSeed, f.pool.share(r, len(f.ranks))
	}
	host, disk := f.Host, f.Disk
	if h.deviceOnly {
		host, disk = 0, 0
	}
	r.engine = engine.New(engine.Config{
		Tree:   in.tree,
		Index:  len(f.ranks),
		Chain:  digest.New(h.algorithm, seed),
		Device: f.Device, Host: host, Disk: disk,
		Chunk:   f.Chunk / f.BlockSize,
		Running: f.Running,
		Pool:    shared,
		Traits:  h.traits,
	})
	r.options = publisher.Options{
		Host:          "127.0.0.1",
		Rank:          n,
		BlockSize:     f.BlockSize,
		Wire:          h.wire,
		Topic:         h.topic,
		TopicInReplay: h.topicInReplay,
		Ring:          f.Ring,
		Queue:         f.Queue,
	}
	if f.Faults && len(f.ranks) == f.Instances*f.Ranks-1 {
		r.options.Ring = min(r.options.Ring, shortRing)
	}
	var err error
	if r.pub, err = publisher.Listen(r.options); err == nil && (f.Faults || f.Ways) {
		err = r.reroute()
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("instance %q rank %d: %w", in.id, n, err)
	}
	// Staggered, so that the ranks do not all reset at the same request.
	if f.ClearEvery > 0 {
		r.requests = len(f.ranks) * f.ClearEvery / (f.Instances * f.Ranks) / 2
	}
	return r, nil
}

func (f *Fleet) close() {
	for _, r := range f.ranks {
		r.close()
	}
	if f.pool != nil {
		f.pool.pub.Close()
	}
}

// close closes the rank's sockets, as far as it has any.
func (r *rank) close() {
	if r.live != nil {
		r.live.Close()
	}
	if r.replay != nil {
		r.replay.Close()
	}
	if r.pub != nil {
		r.pub.Close()
	}
}

// start publishes the events of an engine before its first request.
func (f *Fleet) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.ranks {
		if r.clearsAtStart {
			if err := f.publish(r, r.engine.Clear()); err != nil {
				return err
			}
		}
	}
	return nil
}

// submit gives a request to a rank and lets the rank work until only the
// requests that share its next steps are left.
func (f *Fleet) submit(r *rank, tokens []uint32, prompt int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	tree := r.instance.tree
	r.engine.Submit(engine.Request{
		Path:         tree.Intern(tokens, make([]truth.ID, 0, len(tokens)/f.BlockSize)),
		Prompt:       max(prompt-tree.Ahead(), 0) / f.BlockSize,
		PromptTokens: prompt,
		Save:         f.pool.saves(),
	})
	if err := f.work(r, f.Running-1); err != nil {
		return err
	}
	if r.requests++; f.ClearEvery > 0 && r.requests >= f.ClearEvery {
		r.requests = 0
		if err := f.work(r, 0); err != nil {
			return err
		}
		return f.publish(r, r.engine.Clear())
	}
	return nil
}

// drain lets every rank and the pool finish.
func (f *Fleet) drain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.ranks {
		if err := f.work(r, 0); err != nil {
			return err
		}
	}
	return f.pool.flush()
}

// work steps a rank until at most busy requests are left. f.mu is held.
func (f *Fleet) work(r *rank, busy int) error {
	for r.engine.Busy() > busy {
		if events := r.engine.Step(); len(events) > 0 {
			if err := f.publish(r, events); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Fleet) publish(r *rank, events []engine.Event) error {
	if _, err := r.pub.Publish(events); err != nil {
		return fmt.Errorf("instance %q rank %d: %w", r.instance.id, r.n, err)
	}
	r.batches++
	r.events += len(events)
	return f.pool.exchange()
}
