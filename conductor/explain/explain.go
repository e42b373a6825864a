package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// explaining is a call of Explain.
type explaining struct {
	Inspector
	query      *match.Query
	at         scope.Context
	deployment *catalog.Deployment // nil if there is none
	identity   *names.Identity     // nil without a deployment
	chains     []*hash.Chain       // one for each look-ahead of the deployment
	out        *inspect.Explanation
	held       map[holderKey]map[tiers.Medium][][2]int
	inPart     map[holderKey][]chunkInPart
	hits       map[holderKey][]cacheHit
}

// cacheHit is what a rank with several attention groups takes from a medium.
type cacheHit struct {
	tiers.CacheHit
	medium tiers.Medium
	cache  *tiers.Cache
}

// holderKey names a source as one rank.
type holderKey struct {
	source *ingest.Source
	rank   int32
}

// Explain explains a prompt given as tokens, of a model under its own name.
func (p Inspector) Explain(q *match.Query) *inspect.Explanation {
	tenant := cmp.Or(q.Tenant, scope.DefaultTenant)
	e := &explaining{
		Inspector: p, query: q,
		at: scope.Context{Deployment: scope.Deployment{Tenant: tenant, Model: q.Model, BlockSize: q.BlockSize},
			Variant: scope.Variant{Lora: q.Lora, Salt: q.Salt}},
		out: &inspect.Explanation{Tenant: tenant, Model: q.Model, Lora: q.Lora, BlockSize: q.BlockSize,
			Blocks: len(q.Tokens) / max(q.BlockSize, 1), Tokens: len(q.Tokens)},
		held: make(map[holderKey]map[tiers.Medium][][2]int), inPart: make(map[holderKey][]chunkInPart),
		hits: make(map[holderKey][]cacheHit),
	}
	if e.deployment = p.Catalog.Deployment(e.at.Deployment); e.deployment != nil {
		e.identity = e.deployment.Names.Look(e.at.Variant)
	}
	e.chains = e.chainsOf(e.deployment, q.BlockSize)
	e.searchElsewhere()
	if p.Matcher.HidesUnsalted(e.identity, q) {
		e.out.Causes = append(e.out.Causes,
			inspect.Cause{Reason: inspect.UnsaltedHidden, Certain: true,
				Text: "Queries without a salt find nothing: privacy.salted_only is set."})
	}
	var rows []match.Row
	var roster *catalog.Roster
	if e.deployment != nil {
		roster = e.deployment.Instances().Everyone()
		rows = e.match(roster)
	}
	for i := range rows {
		if q.Instance == nil || rows[i].Instance == *q.Instance {
			at, _ := rows[i].At()
			e.instance(&rows[i], &roster.Instances[at])
		}
	}
	e.pools()
	if len(e.out.Instances) == 0 {
		e.out.Causes = append(e.out.Causes, e.unregistered())
		e.out.Causes = append(e.out.Causes, e.heldElsewhere(nil, 0)...)
	}
	e.out.Verdict = e.out.Judge()
	return e.out
}

// chainsOf returns the prompt's blocks for each look-ahead of a deployment, which may be nil.
func (e *explaining) chainsOf(d *catalog.Deployment, size int) (all []*hash.Chain) {
	set := catalog.NoLookAhead
	if d != nil {
		set = d.LookAheads()
	}
	for ahead := range set.All {
		c := new(hash.Chain)
		c.Reset(e.Catalog.IndexOptions().Scheme, e.query.Tokens, size, ahead)
		all = append(all, c)
	}
	return all
}

// match looks the prompt up as Answer does, and notes what each source holds.
func (e *explaining) match(roster *catalog.Roster) []match.Row {
	d := e.deployment
	found := e.Matcher.Find(d, e.identity, &match.Query{Model: e.query.Model, Lora: e.query.Lora, Salt: e.query.Salt,
		BlockSize: e.query.BlockSize, Tokens: e.query.Tokens}, roster)
	who := e.owners(d)
	note := func(owner, from, to uint32) {
		o, known := who[owner]
		if !known || from == to || !e.Tenants.Has(o.source.Registration.Tenant) {
			return
		}
		if e.held[o.holderKey] == nil {
			e.held[o.holderKey] = make(map[tiers.Medium][][2]int)
		}
		whole := o.EndOfWhole(from, to)
		if whole < to {
			e.inPart[o.holderKey] = append(e.inPart[o.holderKey], chunkInPart{o.Medium, int(whole), int(to), int(o.Chunk)})
		}
		if from < whole {
			e.held[o.holderKey][o.Medium] = append(e.held[o.holderKey][o.Medium], [2]int{int(from), int(whole)})
		}
	}
	for _, p := range found.Match.Prefixes {
		note(p.Owner, 0, p.Blocks)
	}
	for _, s := range found.Match.Later {
		note(s.Owner, s.From, s.To)
	}
	for _, h := range found.Hits {
		if o, known := who[h.Owner]; known && e.Tenants.Has(o.source.Registration.Tenant) {
			e.hits[o.holderKey] = append(e.hits[o.holderKey], cacheHit{h, o.Medium, o.Cache})
		}
	}
	e.noteCounted(found.Counted, roster)
	return found.Rows
}

// noteCounted notes expected blocks that count as held, by the sources without events that they are expected of.
func (e *explaining) noteCounted(all []tiers.Soon, roster *catalog.Roster) {
	device := tiers.ParseMedium(tiers.NameDevice)
	for _, b := range all {
		for i := range roster.Instances {
			for _, m := range roster.Instances[i].Members {
				s := e.Sources.SourceOf(m)
				if roster.Instances[i].ID != b.Instance || m.Registration.Rank != int(b.Rank) || s == nil {
					continue
				}
				key := holderKey{s, b.Rank}
				if e.held[key] == nil {
					e.held[key] = make(map[tiers.Medium][][2]int)
				}
				e.held[key][device] = append(e.held[key][device], [2]int{int(b.From), int(b.To)})
			}
		}
	}
}

// owned is whose blocks an owner of an index has.
type owned struct {
	holderKey
	tiers.Owner
}

// chunkInPart is blocks [from, to) of the prompt in a chunk of size blocks on a medium, which goes on with
// other tokens.
type chunkInPart struct {
	medium         tiers.Medium
	from, to, size int
}

// owners returns whose the owners of a deployment are.
func (e *explaining) owners(d *catalog.Deployment) map[uint32]owned {
	who, table := make(map[uint32]owned), d.Owners()
	for _, s := range e.Sources.All() {
		s.EachOwner(d, func(o index.Owner, rank int32) {
			if int(o) < len(table) {
				who[uint32(o)] = owned{holderKey{s, rank}, table[o]}
			}
		})
	}
	return who
}

// instance explains a row.
func (e *explaining) instance(r *match.Row, of *catalog.Instance) {
	in := inspect.ExplainedInstance{Name: r.Instance, Serves: of.Serves(e.query.Lora), Row: r.Row}
	in.Row.Media, in.Row.Ranks = slices.Clone(r.Media), slices.Clone(r.Row.Ranks)
	in.Ranks = e.holders(of.Members, func(s *ingest.Source) bool {
		return s.Registration.Instance == r.Instance && !s.Registration.IsPool()
	})
	e.out.Instances = append(e.out.Instances, in)
}

// pools explains the pools of the deployment that serve the instances asked for.
func (e *explaining) pools() {
	if e.deployment == nil {
		return
	}
	e.out.Pools = e.holders(e.deployment.Pools(), func(s *ingest.Source) bool {
		serves := s.Registration.Serves
		return s.Registration.IsPool() && (e.query.Instance == nil || len(serves) == 0 || slices.Contains(serves, *e.query.Instance))
	})
}

// holders explains each source of registered under its own rank, and every source and rank that holds blocks
// of the prompt, if meant says so.
func (e *explaining) holders(registered []*catalog.Member, meant func(*ingest.Source) bool) (all []inspect.ExplainedHolder) {
	keys := make(map[holderKey]bool)
	for _, m := range registered {
		if s := e.Sources.SourceOf(m); s != nil {
			keys[holderKey{s, int32(s.Registration.Rank)}] = true
		}
	}
	for k := range e.held {
		keys[k] = true
	}
	for k := range e.hits {
		keys[k] = true
	}
	for k := range keys {
		if meant(k.source) {
			all = append(all, e.holder(k))
		}
	}
	slices.SortFunc(all, func(a, b inspect.ExplainedHolder) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), a.Source.Compare(b.Source))
	})
	return all
}

// holder explains what a source holds as one rank.
func (e *explaining) holder(k holderKey) inspect.ExplainedHolder {
	st := k.source.Member.Status()
	h := inspect.ExplainedHolder{Rank: k.rank, Source: k.source.Registration.Key(), State: st.State, Reason: st.Reason,
		Findings: k.source.Findings(&st)}
	var all [][2]int
	for medium, runs := range e.held[k] {
		all = append(all, runs...)
		runs = joinRuns(runs)
		h.Media = append(h.Media, inspect.HeldRuns{Medium: medium, Blocks: leading(runs), Runs: runs})
	}
	slices.SortFunc(h.Media, func(a, b inspect.HeldRuns) int {
		return cmp.Or(cmp.Compare(a.Medium.Tier, b.Medium.Tier), cmp.Compare(a.Medium.Name, b.Medium.Name))
	})
	if h.Blocks = leading(joinRuns(all)); h.Blocks < e.out.Blocks {
		h.Causes = e.causes(k, h.Blocks, st)
	}
	return h
}

// joinRuns sorts runs, and joins those that touch.
func joinRuns(runs [][2]int) (joined [][2]int) {
	slices.SortFunc(runs, func(a, b [2]int) int { return a[0] - b[0] })
	for _, r := range runs {
		if n := len(joined); n > 0 && r[0] <= joined[n-1][1] {
			joined[n-1][1] = max(joined[n-1][1], r[1])
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// leading returns how many leading blocks joined runs have.
func leading(runs [][2]int) int {
	if len(runs) == 0 || runs[0][0] > 0 {
		return 0
	}
	return runs[0][1]
}

// unregistered says that no instance has a row.
func (e *explaining) unregistered() inspect.Cause {
	if e.query.Instance != nil {
		return inspect.Cause{Reason: inspect.NotRegistered, Certain: true,
			Text: fmt.Sprintf("No instance %q is registered for tenant %q, model %q and block size %d.", *e.query.Instance,
				e.at.Deployment.Tenant, e.query.Model, e.query.BlockSize)}
	}
	why := e.Catalog.Models().Unregistered(e.query.Tenant, e.query.Model, e.query.BlockSize)
	if why != "" {
		return inspect.Cause{Reason: inspect.NotRegistered, Certain: true, Text: strings.ToUpper(why[:1]) + why[1:] + "."}
	}
	return inspect.Cause{Reason: inspect.NotRegistered, Certain: true,
		Text: fmt.Sprintf("No instance is registered for tenant %q, model %q and block size %d.", e.at.Deployment.Tenant, e.query.Model,
			e.query.BlockSize)}
}
