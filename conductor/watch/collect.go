package watch

import (
	"bytes"
	"cmp"
	"math"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/tiers"
)

// collection is the state of the server at one moment.
type collection struct {
	at      time.Time
	rows    []row              // sorted by key
	rowsToo bool               // rows have texts
	changed []int              // positions of rows that the collection before did not have so
	gone    []registration.Key // those that it had alone
	tenants map[string]*sums
	models  map[scope.Shard]*sums // sources and queries alone
	bytes   int64
	limit   int64
	ready   status.Readiness
	queries catalog.QueryCounts
	asked   float64 // queries a second
	times   match.QueryTimes
	refused uint64 // requests since the start
	point   *point // of the history, if it gets one
	process *Process
	cpu     float64 // CPUs that the process had in use since the collection before
	// lists are there with the texts of rows; were are those of the collection before.
	lists, were lists
}

// row is one source.
type row struct {
	key    registration.Key
	text   []byte // its pairs as JSON but for the age, without the last brace
	age    int64  // ms since the last batch, -1 before the first
	events uint64
	rate   float64         // events a second
	worst  doctor.Severity // of its state and its findings
}

// sums are the numbers of one tenant, or of several.
type sums struct {
	sources, ranks, instances int // ranks are the sources of instances, so pools are left out
	findings                  findingsRow
	blocks, memberships       int
	synced, waiting, givenUp  int
	states                    map[stream.State]int
	media                     map[tiers.Medium]int
	events                    uint64  // since the collection before
	rate                      float64 // events a second
	queries                   catalog.QueryCounts
	asked                     float64 // queries a second
}

func newSums() *sums {
	return &sums{states: make(map[stream.State]int), media: make(map[tiers.Medium]int)}
}

// blocksInTier returns how many blocks there are on the media of a tier. A block of several instances counts for each.
func (s *sums) blocksInTier(t tiers.Tier) (n int) {
	for m, blocks := range s.media {
		if m.Tier == t {
			n += blocks
		}
	}
	return n
}

// addSums adds the numbers of another tenant.
func (s *sums) addSums(o *sums) {
	s.sources += o.sources
	s.instances += o.instances
	s.ranks += o.ranks
	s.findings.addAll(o.findings)
	s.blocks += o.blocks
	s.memberships += o.memberships
	s.synced += o.synced
	s.waiting += o.waiting
	s.givenUp += o.givenUp
	for state, n := range o.states {
		s.states[state] += n
	}
	for m, n := range o.media {
		s.media[m] += n
	}
	s.rate += o.rate
	s.asked += o.asked
	s.queries.Queries += o.queries.Queries
	s.queries.Asked += o.queries.Asked
	s.queries.Matched += o.queries.Matched
}

// collect makes a collection of stats. Rates are means since the collection before. If that is too recent to say much, its
// rates are kept.
func collect(st *status.Stats, old *collection, now time.Time, rows bool) *collection {
	c := &collection{
		at: now, rows: make([]row, len(st.Sources)), rowsToo: rows, tenants: make(map[string]*sums),
		models: make(map[scope.Shard]*sums), bytes: st.Bytes, limit: st.Limit, ready: st.Ready, queries: st.Queries, times: st.Times,
	}
	if old == nil {
		old = &collection{at: now}
	}
	passed := now.Sub(old.at)
	c.asked = rateOf(st.Queries.Queries, old.queries.Queries, old.asked, passed)

	var e body.Encoder
	if rows {
		e.Out = make([]byte, 0, len(st.Sources)*512)
	}
	before := old.rows
	for i := range st.Sources {
		s := &st.Sources[i]
		r := &c.rows[i]
		r.key, r.events, r.age = s.Key(), s.Events, -1
		r.worst = worstOf(s)
		if s.Age >= 0 {
			r.age = s.Age.Milliseconds()
		}
		for len(before) > 0 && byInstance(before[0].key, r.key) < 0 {
			c.gone, before = append(c.gone, before[0].key), before[1:]
		}
		var was *row
		if len(before) > 0 && before[0].key == r.key {
			was, before = &before[0], before[1:]
			r.rate = rateOf(r.events, was.events, was.rate, passed)
		}
		if rows {
			from := len(e.Out)
			appendRow(&e, s, r)
			r.text = e.Out[from:len(e.Out):len(e.Out)]
			if was == nil || !bytes.Equal(was.text, r.text) {
				c.changed = append(c.changed, i)
			}
		}
		t := sumsOf(c.tenants, r.key.Tenant)
		t.addSource(s, r, was)
		sumsOf(c.models, scope.Shard{Tenant: s.Tenant, Model: s.Model}).addSource(s, r, was)
		if !s.IsPool() && (i == 0 || c.rows[i-1].key.Instance != r.key.Instance || c.rows[i-1].key.Tenant != r.key.Tenant) {
			t.instances++
		}
	}
	for i := range before {
		c.gone = append(c.gone, before[i].key)
	}
	for name, in := range st.Tenants {
		t := sumsOf(c.tenants, name)
		t.blocks, t.memberships, t.queries = in.Blocks, in.Memberships, in.Queries
		if was := old.tenants[name]; was != nil {
			t.asked = rateOf(in.Queries.Queries, was.queries.Queries, was.asked, passed)
		}
	}
	for model, n := range st.Models {
		sumsOf(c.models, model).queries = n
	}
	for _, s := range st.Ready.Waiting {
		sumsOf(c.tenants, s.Key.Tenant).waiting++
	}
	for _, s := range st.Ready.GivenUp {
		sumsOf(c.tenants, s.Key.Tenant).givenUp++
	}
	return c
}

// rateOf returns by how much a count grows in a second, to one digit behind the point. If the count is less than before, it has
// started again at 0, and its rate is 0.
func rateOf(n, was uint64, before float64, passed time.Duration) float64 {
	switch {
	case passed < minPace:
		return before
	case n < was:
		return 0
	}
	return math.Round(10*float64(n-was)/passed.Seconds()) / 10
}

// byInstance is the order of conductor.Services.
func byInstance(a, b registration.Key) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Rank, b.Rank))
}

// sumsOf returns the numbers of a tenant or a model, which it makes if need be.
func sumsOf[K comparable](all map[K]*sums, of K) *sums {
	t := all[of]
	if t == nil {
		t = newSums()
		all[of] = t
	}
	return t
}

// totalOf returns the numbers of some tenants, added up.
func (c *collection) totalOf(tenants scope.Tenants) *sums {
	all := newSums()
	for name, t := range c.tenants {
		if tenants.Has(name) {
			all.addSums(t)
		}
	}
	if tenants.All() {
		all.queries, all.asked = c.queries, c.asked // those about no registered model too
	}
	return all
}

// addSource adds a source. was is its row before, nil if there was none.
func (t *sums) addSource(s *status.Source, r, was *row) {
	t.sources++
	for i := range s.Findings {
		t.findings.add(s.Findings[i].Severity(), 1)
	}
	if !s.IsPool() {
		t.ranks++
	}
	t.states[s.State]++
	if s.State.Ready() {
		t.synced++
	}
	for _, m := range s.Media {
		t.media[m.Medium] += m.Blocks
	}
	t.rate += r.rate
	if was != nil && r.events >= was.events {
		t.events += r.events - was.events
	}
}

// worstOf returns how much the state of a source and its findings matter, that of the worst. A finding that is for
// information leaves a source as well as its state is.
func worstOf(s *status.Source) doctor.Severity {
	worst := doctor.SeverityOf(string(s.State))
	for i := range s.Findings {
		if of := s.Findings[i].Severity(); of != doctor.Info && of.Compare(worst) < 0 {
			worst = of
		}
	}
	return worst
}

// appendRow appends the pairs of a source but its age. It lists them itself, unlike the row of /services: it adds up tiers
// and reasons, has names and an order of its own, and is written for each source once a second. TestRowBytes holds its
// bytes, and the answers of /admin/stats are compared with FleetSource of openapi.yaml.
func appendRow(e *body.Encoder, s *status.Source, r *row) {
	e.Out = append(e.Out, '{')
	e.TextField("source", r.key.String())
	e.TextField("instance_id", s.Instance)
	e.TextField("tenant_id", s.Tenant)
	e.IntField("dp_rank", s.Rank)
	e.TextField("type", string(s.Type))
	e.TextField("model_name", s.Model)
	e.TextField("lora_name", s.Lora)
	e.IntField("block_size", s.BlockSize)
	e.TextField("state", string(s.State))
	e.TextField("reason", s.Reason)
	e.TextField("severity", string(r.worst))
	e.Name("epoch")
	e.Uint(s.Epoch)
	e.Name("last_seq")
	if s.LastSeq != nil {
		e.Uint(*s.LastSeq)
	} else {
		e.Null()
	}
	e.IntField("blocks", s.Blocks)
	var by [tiers.Other + 1]int
	for _, m := range s.Media {
		by[m.Tier] += m.Blocks
	}
	e.Name("tiers")
	e.Map(len(by))
	for t, n := range by {
		if t <= int(tiers.Disk) || n > 0 {
			e.Key(tiers.Tier(t).String())
			e.Int(n)
		}
	}
	e.EndMap()
	e.IntField("lag_ms", int(s.Waits.Milliseconds()))
	e.IntField("queued", s.Queued)
	e.Name("events_per_s")
	e.Float(r.rate)
	e.UintField("gaps", s.Gaps)
	e.UintField("restarts", s.Restarts)
	e.UintField("dropped", status.Sum(s.Dropped))
	e.TextField("history_from", s.HistoryFrom)
	if s.AsksSnapshots {
		e.Name("engine_snapshot")
		e.Map(5)
		e.TextField("state", s.SnapshotState)
		e.TextField("reason", s.SnapshotReason)
		e.IntField("blocks", s.SnapshotBlocks)
		e.Name("applied")
		e.Uint(s.Snapshots)
		e.Name("failed")
		e.Uint(status.Sum(s.SnapshotFailures))
		e.EndMap()
	}
	e.Name("findings")
	e.List(len(s.Findings))
	for _, f := range s.Findings {
		e.Map(3)
		e.TextField("code", f.Code)
		e.TextField("severity", string(f.Severity()))
		e.TextField("text", f.Message)
		e.EndMap()
	}
	e.EndList()
	e.TextField("last_error", s.LastError)
	if s.Expected != nil {
		appendExpected(e, s.Expected)
	}
}

// appendExpected appends how good the expectations of an instance were.
func appendExpected(e *body.Encoder, x *status.Expectations) {
	e.Name("expected")
	e.Map(13)
	e.UintField("prompts", x.Prompts)
	e.UintField("tokens", x.Expected)
	e.UintField("confirmed", x.Confirmed)
	e.UintField("expired", x.Expired)
	e.UintField("taken_back", x.TakenBack)
	e.UintField("dropped", x.Dropped)
	e.UintField("evicted", x.Evicted)
	e.UintField("pending", x.Pending)
	known := func(v float64, known bool) {
		if known {
			e.Float(v)
		} else {
			e.Null()
		}
	}
	share, ended := x.Share()
	e.Name("confirmed_share")
	known(share, ended)
	e.Name("delay_p50_s")
	known(x.Delay[0].Seconds(), x.Delay[0] > 0)
	e.Name("delay_p90_s")
	known(x.Delay[1].Seconds(), x.Delay[1] > 0)
	e.Name("delay_p99_s")
	known(x.Delay[2].Seconds(), x.Delay[2] > 0)
	e.Name("ttl_s")
	known(x.TTL.Seconds(), x.TTL > 0)
	e.EndMap()
}
