package conductor

import (
	"cmp"
	"net"
	"slices"
	"strings"

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

// workerAddress returns the URL by which routers know an instance: the name of the instance if that
// is a URL, and the URL of a name that is a host and a port. Else it returns "".
func workerAddress(instance string) string {
	if strings.Contains(instance, "://") {
		return instance
	}
	if host, port, err := net.SplitHostPort(instance); err == nil && host != "" && port != "" {
		return "http://" + instance
	}
	return ""
}

// Workers returns the workers of a model that hold the first of some hashes, longest prefix first,
// of equal ones the first by address. Hashes are digests of SGLang, of a prompt without adapter and
// salt. Without a model Workers looks at all. Pools do not count. See rule SGLANG-1 in
// docs/semantics.md.
func (v View) Workers(model string, hashes []uint64) (all []Worker) {
	c := v.conductor
	q := Query{Model: model, Hashes: hashes, ByHash: true, HashKind: SGLangHashes, Clock: v.clock}
	start := c.now()
	q.Clock.Enter(stage.Match)
	var from *deployment // of the longest prefix
	best := 0
	if !c.hidesUnsalted(nil, &q) {
		sc := scratches.Get().(*scratch)
		for _, d := range v.deploymentsOf(model) {
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
		q.BlockSize, q.Model, tenant = from.key.BlockSize, from.key.Model, from.key.Tenant
	}
	note(&c.registry.askedAt, start)
	c.countQuery(from, &q, best, c.now().Sub(start))
	q.Clock.Answered(tenant, q.Model, q.tokens())
	q.Clock.Enter(stage.Encode)
	return all
}

// deploymentsOf returns the deployments of a model, or of all, that the client may see.
func (v View) deploymentsOf(model string) (all []*deployment) {
	c := v.conductor
	c.registry.mu.RLock()
	for key, d := range c.registry.deployments {
		if v.reader.Tenants.Has(key.Tenant) {
			all = append(all, d)
		}
	}
	c.registry.mu.RUnlock()
	if model != "" {
		all = slices.DeleteFunc(all, func(d *deployment) bool { return d.key.Model != c.modelOf(d.key.Tenant, model) })
	}
	return all
}

// workers appends the workers of a deployment.
func (sc *scratch) workers(d *deployment, q *Query, c *Conductor, all []Worker) []Worker {
	sc.match.Reset()
	sc.lookups = sc.lookups[:0]
	sc.lookupNames(d, d.names.Base(), q)
	owners := d.table()
	if sc.match.Blocks == 0 {
		return all
	}
	d.noteAsked(c.now())
	reach := reachOf(sc, owners)
	for _, r := range d.rows(&c.registry).rows {
		if blocks := reach[r.id]; blocks > 0 && r.address != "" {
			all = append(all, Worker{Address: r.address, Instance: r.name, Blocks: blocks})
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
			ranks[at] = max(ranks[at], to)
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
