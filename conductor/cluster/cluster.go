// Package cluster spreads the shards of a group over its replicas, and sends queries to the
// replica that serves them.
//
//	beats, registry --Step--> owners wanted --decidePhase--> phase of each shard here
//	                                                           |-> bring blocks, follow sources, let go
//	query --Serves--> here, or an *UnservedError --Forwarder--> a replica that serves
//
// A shard is all deployments of a tenant's model. Each replica computes the owners of all shards
// from what the store tells all of them. Owners only say where shards should be: queries go to
// replicas that say that they serve. So replicas may disagree about owners for a while, and no
// answer is wrong.
//
// Invariants:
//
//  1. A replica answers for a shard from when its sources have settled until it has let go of it.
//     While no replica answers, sources without a connection count as settled after a while.
//  2. A replica lets go of a shard only while others serve it: see decidePhase.
//  3. Without the store nothing moves. Replicas that do not answer are skipped.
//
// Concurrency: one goroutine calls Step, or Run. All other methods are safe for concurrent use.
// Queries read one atomic pointer and take no lock.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/cluster/placement"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// factName is the name of a replica's facts about shards.
const factName = "shards"

// Registry is what all replicas know of the sources of the group.
type Registry interface {
	// Sources returns the sources that are registered at any replica, but those that this one
	// refuses. It returns false before the registry was read.
	Sources() ([]registration.Registration, bool)
	// Again looks again which of them this replica wants.
	Again()
}

// Config is what a Cluster is made of.
type Config struct {
	Conductor *conductor.Conductor
	Group     *membership.Group
	Registry  Registry
	// Bring takes over the blocks of a deployment from one of some replicas, from the shelf, or from
	// nowhere. Its sources are registered afterwards. nil brings nothing.
	Bring func(ctx context.Context, d scope.Deployment, from []string) error
	// Owners is how many replicas serve each shard.
	Owners int
	Log    zerolog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// bringing is how many shards are brought at once.
const bringing = 2

// Cluster is the part of one replica in a group that shares its shards. It is a conductor.Serving.
type Cluster struct {
	cfg    Config
	beats  uint64          // of the group, at the last Step; owned by Step
	due    uint64          // of them, those that were due; owned by Step
	rates  rates           // owned by Step
	differ map[string]bool // replicas with other settings, by id; owned by Step
	slots  chan struct{}   // of shards that are brought
	work   sync.WaitGroup  // shards that are brought

	chart     atomic.Pointer[chart]
	facts     atomic.Pointer[json.RawMessage]
	moves     atomic.Uint64 // changes of phase
	differing atomic.Int64  // replicas with other settings

	mu   sync.Mutex
	held map[scope.Shard]*heldShard // guarded by mu
}

// heldShard is a shard that this replica has a part in.
type heldShard struct {
	holding // written by Step, guarded by Cluster.mu
	brought bool
	since   time.Time          // of brought
	worse   time.Time          // since when a replica that serves has more, zero if none has
	pause   time.Duration      // from then until it is brought again, if it misses something
	stop    context.CancelFunc // ends the bringing
}

// chart is what queries look at. It never changes once published.
type chart struct {
	rows  map[scope.Shard]*Row
	urls  map[string]string  // of replicas, by id
	names registration.Names // aliases of all registrations
	known bool               // the registry was read
}

// Row is what this replica knows of a shard.
type Row struct {
	scope.Shard
	Sources int
	Load    float64 // queries a second, of all replicas
	Owners  []string
	Phase   Phase           // here
	Told    map[string]Fact // of the replicas that have a part in it, by id

	away    *conductor.UnservedError   // nil if this replica answers
	others  []conductor.ReplicaAddress // that answer too, if this one does
	sources []*registration.Registration
}

// New returns a Cluster, which adds its facts to the beats of the group. It does nothing else before Step.
func New(cfg Config) *Cluster {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Cluster{cfg: cfg, slots: make(chan struct{}, bringing), held: make(map[scope.Shard]*heldShard)}
	c.chart.Store(&chart{})
	c.prepareBeat(nil)
	cfg.Group.AddFacts(factName, func() json.RawMessage { return *c.facts.Load() })
	cfg.Group.AddFacts(ownersName, c.ownersFact)
	return c
}

// Key returns the text of a shard. No two have the same.
func Key(s scope.Shard) string { return url.PathEscape(s.Tenant) + "/" + s.Model }

// shardOf returns the shard of a text.
func shardOf(key string) (scope.Shard, bool) {
	tenant, model, found := strings.Cut(key, "/")
	tenant, err := url.PathUnescape(tenant)
	return scope.Shard{Tenant: tenant, Model: model}, found && err == nil
}

// Serves returns nil for a shard that this replica answers for, or that the group does not know.
func (c *Cluster) Serves(s scope.Shard) *conductor.UnservedError {
	now := c.chart.Load()
	if !now.known {
		return &conductor.UnservedError{Shard: s}
	}
	row := now.rows[s]
	if row == nil {
		return nil
	}
	if row.Unserved() {
		c.cfg.Group.BeatSoon() // another replica may have begun to answer
	}
	return row.away
}

// ServesInstance returns nil if this replica answers for a shard that an engine of a tenant has blocks
// of, or if the group does not know the engine.
func (c *Cluster) ServesInstance(tenant, instance string) (away *conductor.UnservedError) {
	now := c.chart.Load()
	if !now.known {
		return &conductor.UnservedError{Shard: scope.Shard{Tenant: tenant}}
	}
	for _, row := range now.rows {
		if !slices.ContainsFunc(row.sources, func(r *registration.Registration) bool {
			return r.Instance == instance && cmp.Or(r.Tenant, scope.DefaultTenant) == tenant && !r.IsPool()
		}) {
			continue
		}
		if row.away == nil {
			return nil
		}
		if away == nil || len(away.Serving) == 0 {
			away = row.away
		}
	}
	return away
}

// Others returns the other replicas that answer for a shard that this one answers for. They are not to be changed.
func (c *Cluster) Others(s scope.Shard) []conductor.ReplicaAddress {
	if row := c.chart.Load().rows[s]; row != nil {
		return row.others
	}
	return nil
}

// Away returns the errors of all shards that this replica does not answer for, one without a shard
// before it knows them.
func (c *Cluster) Away() (all []*conductor.UnservedError) {
	now := c.chart.Load()
	if !now.known {
		return []*conductor.UnservedError{{}}
	}
	for _, row := range now.rows {
		if row.away != nil {
			all = append(all, row.away)
		}
	}
	return all
}

// Names returns the aliases of all registrations of the group.
func (c *Cluster) Names() registration.Names { return c.chart.Load().names }

// Models returns the models of a tenant that are registered in the group, for engines or pools.
func (c *Cluster) Models(tenant string) (all []string) {
	for s := range c.chart.Load().rows {
		if s.Tenant == tenant {
			all = append(all, s.Model)
		}
	}
	return all
}

// Wanted reports whether this replica follows a source. A pool holds objects of any model, so all
// replicas follow it. An engine that is asked for its model tells that later.
func (c *Cluster) Wanted(r registration.Registration) bool {
	if r.IsPool() || r.Model == "" {
		return true
	}
	now, shards := c.chart.Load(), r.Shards()
	if !now.known { // what this replica has from its configuration and its disk stays
		return c.cfg.Conductor.Sources().Follows(r.Key())
	}
	c.mu.Lock()
	held := slices.ContainsFunc(shards, func(s scope.Shard) bool {
		// A shard that was let go is answered until the next chart says so.
		return c.held[s] != nil && c.held[s].brought || now.rows[s] != nil && now.rows[s].Phase.answers()
	})
	c.mu.Unlock()
	if !held && !slices.ContainsFunc(shards, func(s scope.Shard) bool { return now.rows[s] != nil }) {
		c.cfg.Group.BeatSoon() // a new model: the next Step decides, until then who registered it answers
		return c.cfg.Conductor.Sources().Follows(r.Key())
	}
	return held
}

// Keeps reports whether this replica serves a shard, so that its blocks are worth a snapshot.
func (c *Cluster) Keeps(s scope.Shard) bool {
	row := c.chart.Load().rows[s]
	return row != nil && row.Phase == Serving
}

// State is what a replica knows of the shards of the group.
type State struct {
	Me     string
	Owners int               // that each shard is to have
	Known  bool              // the registry was read
	Moves  uint64            // changes of phase here
	Rows   []*Row            // sorted by tenant and model; not to be changed
	URLs   map[string]string // of replicas, by id; not to be changed
}

// State returns what this replica knows.
func (c *Cluster) State() State {
	now := c.chart.Load()
	rows := slices.SortedFunc(maps.Values(now.rows), func(a, b *Row) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Model, b.Model))
	})
	return State{c.cfg.Group.ID(), c.cfg.Owners, now.known, c.moves.Load(), rows, now.urls}
}

// Run takes a step after each beat, until ctx ends. A shard that is ready to be served does not wait
// for the next beat that is due.
func (c *Cluster) Run(ctx context.Context) {
	defer c.endTakeovers()
	look := time.NewTicker(looking)
	defer look.Stop()
	for ctx.Err() == nil {
		changed := c.cfg.Group.Changed()
		c.Step(ctx)
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				waits = false
			case <-look.C:
				if c.anySettled() {
					c.cfg.Group.BeatSoon()
				}
			}
		}
	}
}

// endTakeovers ends the bringing of shards.
func (c *Cluster) endTakeovers() {
	c.mu.Lock()
	for _, h := range c.held {
		h.stop()
	}
	c.mu.Unlock()
	c.work.Wait()
}

// Step looks at the last beat and moves shards. Without a new beat it does nothing.
func (c *Cluster) Step(ctx context.Context) {
	st := c.cfg.Group.Status()
	sources, known := c.cfg.Registry.Sources()
	if !st.Up || st.Beats == c.beats || !known {
		return
	}
	due := st.Due > c.due
	c.beats, c.due = st.Beats, st.Due
	c.compareSettings(st.Replicas)
	told := toldOf(st.Replicas)
	rows := c.rowsOf(sources, told)
	c.placeShards(rows, st.Replicas, told)
	urls := make(map[string]string, len(st.Replicas))
	for _, r := range st.Replicas {
		urls[r.ID] = r.URL
	}
	moved := c.decidePhases(ctx, rows, urls, due)
	for _, row := range rows {
		row.setRoutes(c.cfg.Group.ID(), urls)
	}
	c.prepareBeat(rows)
	before := c.chart.Swap(&chart{rows: rows, urls: urls, names: registration.NamesOf(slices.Values(sources)), known: true}).rows
	fresh := false // sources of new shards are followed where they were registered, see Wanted
	for s := range rows {
		fresh = fresh || before[s] == nil
	}
	if moved || fresh {
		c.cfg.Registry.Again()
	}
	if moved {
		c.cfg.Group.BeatSoon() // others send queries where shards have moved to
	}
}

// toldOf reads what replicas tell of their shards. A replica that tells nothing shares none.
func toldOf(all []membership.Replica) map[string]map[scope.Shard]Fact {
	told := make(map[string]map[scope.Shard]Fact, len(all))
	for _, r := range all {
		var facts map[string]Fact
		if text, has := r.Facts[factName]; !has || json.Unmarshal(text, &facts) != nil {
			continue
		}
		told[r.ID] = make(map[scope.Shard]Fact, len(facts))
		for key, f := range facts {
			if s, ok := shardOf(key); ok {
				told[r.ID][s] = f
			}
		}
	}
	return told
}

// Rows returns the shards of the group with what the replicas tell of them.
func (c *Cluster) rowsOf(sources []registration.Registration, told map[string]map[scope.Shard]Fact) map[scope.Shard]*Row {
	rows := make(map[scope.Shard]*Row)
	for i := range sources {
		if sources[i].Model == "" {
			continue
		}
		for _, s := range sources[i].Shards() {
			if rows[s] == nil {
				rows[s] = &Row{Shard: s, Told: make(map[string]Fact)}
			}
			rows[s].Sources++
			rows[s].sources = append(rows[s].sources, &sources[i])
		}
	}
	for id, facts := range told {
		for s, f := range facts {
			if row := rows[s]; row != nil {
				row.Told[id] = f
				if f.Queries > 0 && !math.IsInf(f.Queries, 0) {
					row.Load += f.Queries
				}
			}
		}
	}
	return rows
}

// placeShards computes the owners of all shards. Replicas that have a part in a shard are its placement
// until now, so that all replicas compute from the same.
func (c *Cluster) placeShards(rows map[scope.Shard]*Row, all []membership.Replica, told map[string]map[scope.Shard]Fact) {
	var replicas []placement.Replica
	for _, r := range all {
		if told[r.ID] != nil {
			replicas = append(replicas, placement.Replica{ID: r.ID, Weight: r.Weight})
		}
	}
	shards := make([]placement.Shard, 0, len(rows))
	before := make(map[string][]string, len(rows))
	for s, row := range rows {
		key := Key(s)
		shards = append(shards, placement.Shard{Key: key, Load: float64(row.Sources) * sourceLoad, Queries: roundCoarsely(row.Load)})
		for id, f := range row.Told {
			if f.Phase == Bringing || f.Phase == Serving {
				before[key] = append(before[key], id)
			}
		}
		slices.Sort(before[key])
	}
	owners := placement.Assign(shards, replicas, placement.Options{Owners: c.cfg.Owners, Previous: before})
	for s, row := range rows {
		row.Owners = owners[Key(s)]
	}
}

// Owned reports whether a replica is to serve the shard.
func (r *Row) Owned(by string) bool { return slices.Contains(r.Owners, by) }

// Moving reports whether the replicas that serve the shard are others than those that are to.
func (r *Row) Moving() bool {
	n := 0
	for id, f := range r.Told {
		if f.Phase == Absent {
			continue
		}
		if n++; f.Phase != Serving || !r.Owned(id) {
			return true
		}
	}
	return n != len(r.Owners)
}

// Unserved reports whether no replica answers for the shard.
func (r *Row) Unserved() bool { return r.away != nil && len(r.away.Serving) == 0 }

// setRoutes decides where queries for the shard go, and which replicas hear of its reports.
func (r *Row) setRoutes(me string, urls map[string]string) {
	if r.Phase.answers() {
		seen := []string{"", urls[me]}
		for _, id := range slices.Sorted(maps.Keys(r.Told)) {
			if url := urls[id]; r.Told[id].Phase.answers() && !slices.Contains(seen, url) {
				seen, r.others = append(seen, url), append(r.others, conductor.ReplicaAddress{ID: id, URL: url})
			}
		}
		return
	}
	r.away = &conductor.UnservedError{Shard: r.Shard}
	for _, phase := range []Phase{Serving, Leaving} { // those that leave answer too
		for _, id := range slices.Sorted(maps.Keys(r.Told)) {
			if r.Told[id].Phase == phase && urls[id] != "" {
				r.away.Serving = append(r.away.Serving, conductor.ReplicaAddress{ID: id, URL: urls[id]})
			}
		}
		if len(r.away.Serving) > 0 {
			return
		}
	}
}

// prepareBeat prepares what the next beat tells.
func (c *Cluster) prepareBeat(rows map[scope.Shard]*Row) {
	facts := make(map[string]Fact)
	c.mu.Lock()
	for s, h := range c.held {
		if rows[s] != nil {
			facts[Key(s)] = Fact{Phase: h.phase, Whole: h.whole, Queries: c.rates.roundedRate(s)}
		}
	}
	c.mu.Unlock()
	text, err := json.Marshal(facts)
	if err != nil {
		panic("BUG: facts cannot be encoded: " + err.Error())
	}
	raw := json.RawMessage(text)
	c.facts.Store(&raw)
}
