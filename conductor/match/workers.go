package match

import (
	"cmp"
	"slices"
	"strings"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/tiers"
)

// Worker is an instance that holds the beginning of a prompt on its devices or in the memory of
// its host.
type Worker struct {
	Address  string // the URL by which routers know it
	Instance string
	Blocks   int // of the rank that holds the most
}

// Workers returns the workers of a model that hold the first of some hashes, longest prefix first,
// of equal ones the first by address. Hashes are digests of SGLang, of a prompt without adapter and
// salt. Without a model Workers looks at all of the tenants. Pools do not count. See rule SGLANG-1 in
// docs/semantics.md. clock measures the query, nil for none.
func (c *Matcher) Workers(tenants scope.Tenants, model string, hashes []uint64, clock *stage.Clock) (all []Worker) {
	q := Query{Model: model, Hashes: hashes, ByHash: true, HashKind: SGLangHashes, Clock: clock}
	start := c.now()
	q.Clock.Enter(stage.Match)
	var from *catalog.Deployment // of the longest prefix
	best := 0
	if !c.HidesUnsalted(nil, &q) {
		sc := scratches.Get().(*scratch)
		for _, d := range c.deploymentsOf(tenants, model) {
			before := len(all)
			all = sc.workers(d, &q, c, all)
			for _, w := range all[before:] {
				if w.Blocks > best {
					best, from = w.Blocks, d
				}
			}
		}
		sc.release()
	}
	slices.SortFunc(all, func(a, b Worker) int {
		return cmp.Or(b.Blocks-a.Blocks, strings.Compare(a.Address, b.Address), strings.Compare(a.Instance, b.Instance))
	})
	// Instances of several deployments may have one address.
	known := make(map[string]bool, len(all))
	all = slices.DeleteFunc(all, func(w Worker) bool {
		again := known[w.Address]
		known[w.Address] = true
		return again
	})
	tenant := ""
	if from != nil {
		q.BlockSize, q.Model, tenant = from.Key.BlockSize, from.Key.Model, from.Key.Tenant
	}
	c.catalog.NoteAsked(start)
	c.countQuery(from, &q, best, c.now().Sub(start))
	q.Clock.Answered(tenant, q.Model, q.tokens())
	q.Clock.Enter(stage.Encode)
	return all
}

// deploymentsOf returns the deployments of a model, or of all, of some tenants.
func (c *Matcher) deploymentsOf(tenants scope.Tenants, model string) (all []*catalog.Deployment) {
	for _, d := range c.catalog.Deployments() {
		if tenants.Has(d.Key.Tenant) {
			all = append(all, d)
		}
	}
	if model != "" {
		all = slices.DeleteFunc(all, func(d *catalog.Deployment) bool {
			return d.Key.Model != c.catalog.Models().Resolve(d.Key.Tenant, model).Model
		})
	}
	return all
}

// workers appends the workers of a deployment.
func (sc *scratch) workers(d *catalog.Deployment, q *Query, c *Matcher, all []Worker) []Worker {
	sc.resetMatch(d)
	sc.lookups = sc.lookups[:0]
	sc.lookupNames(d, d.Names.Base(), q)
	if len(sc.match.Prefixes)+len(sc.match.Later) == 0 {
		return all
	}
	owners := sc.findHits(d)
	d.NoteAsked(c.now())
	reach := reachOf(sc, owners)
	for _, r := range d.Instances().All {
		if blocks := reach[r.ID]; blocks > 0 && r.Worker != "" {
			all = append(all, Worker{Address: r.Worker, Instance: r.Name, Blocks: blocks})
		}
	}
	return all
}

// rankOf is a rank of an instance.
type rankOf struct{ instance, rank int32 }

// reachOf returns how many leading blocks of sc.match instances hold on devices or hosts, of each
// instance that of the best rank.
func reachOf(sc *scratch, owners []tiers.Owner) map[int32]int {
	ranks := make(map[rankOf]uint32)
	add := func(owner, from, to uint32) {
		if int(owner) >= len(owners) {
			return // it appeared later
		}
		o := &owners[owner]
		if o.Instance < 0 || o.Medium.Tier != tiers.Device && o.Medium.Tier != tiers.Host {
			return
		}
		if at := (rankOf{o.Instance, o.Rank}); from <= ranks[at] {
			ranks[at] = max(ranks[at], o.EndOfWhole(from, to))
		}
	}
	for _, p := range sc.match.Prefixes {
		add(p.Owner, 0, p.Blocks)
	}
	for _, s := range sc.match.Later { // ascending by From
		add(s.Owner, s.From, s.To)
	}
	best := make(map[int32]int, len(ranks))
	for at, blocks := range ranks {
		best[at.instance] = max(best[at.instance], int(blocks))
	}
	return best
}
