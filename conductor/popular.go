package conductor

import (
	"cmp"
	"slices"
	"time"

	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
)

// sample keeps the keys of prefixes of 1, 2, 4, … blocks, of the first n blocks of a prompt, if the
// query is one that is looked at.
func (sc *scratch) sample(c index.Chain, n int) {
	if !sc.sampled {
		return
	}
	for depth := 1; depth <= min(n, c.Len()); depth *= 2 {
		sc.keys = append(sc.keys, c.At(depth-1))
	}
}

// observePrefixes lets the deployment count what a query asked for and what there was of it.
func (sc *scratch) observePrefixes(d *deployment, id *names.Identity, q *Query, roster *Roster, best int, now time.Time) {
	o := &sc.asked
	o.Adapter, o.Salted, o.Context = id.Lora, id.Salt != "", id.Constant
	o.Blocks, o.Longest, o.Keys = q.blocks(), best, sc.keys
	o.Holders, o.Media = o.Holders[:0], o.Media[:0]
	for i := range sc.hits {
		h := &sc.hits[i]
		o.Holders = append(o.Holders, prefixes.Holder{Instance: roster.rows[h.At].name, Blocks: h.Longest})
		if h.Longest == best && len(o.Media) == 0 {
			for _, m := range h.Media {
				o.Media = append(o.Media, prefixes.Medium{Name: m.Name, Blocks: uint64(m.Blocks)})
			}
		}
	}
	d.summary.Observe(o, now)
}

// blocks returns how many complete blocks a query asks for.
func (q *Query) blocks() int {
	switch {
	case q.ByHash:
		return len(q.Hashes)
	case q.ByClientHash:
		return len(q.ClientHashes)
	case q.BlockSize > 0:
		return len(q.Tokens) / q.BlockSize
	}
	return 0
}

// tokens returns how many tokens the query asks for.
func (q *Query) tokens() int {
	if q.ByHash || q.ByClientHash {
		return q.blocks() * q.BlockSize
	}
	return len(q.Tokens)
}

// BeginsWith returns how many blocks the prefix with a key has, of those that Popular names, if the prompt of kept
// begins with it and kept asks the same deployment and adapter as q. Otherwise it returns 0.
func (v Inspection) BeginsWith(kept, q *Query, key uint64) int {
	at := func(q *Query) scope.Deployment {
		return scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant), Model: v.conductor.modelOf(q.Tenant, q.Model),
			BlockSize: q.BlockSize}
	}
	d := v.conductor.registry.deployment(at(q))
	if d == nil || at(kept) != at(q) || kept.Lora != q.Lora {
		return 0
	}
	c := (&explaining{conductor: v.conductor, query: kept}).chainsOf(d, kept.BlockSize)[0] // the one that sample looks at
	for depth := 1; depth <= c.Len(); depth *= 2 {
		if c.At(depth-1) == key {
			return depth
		}
	}
	return 0
}

// Popular is what queries ask of a deployment.
type Popular struct {
	scope.Deployment
	prefixes.Report
}

// Popular returns what queries ask of each deployment that the client may see, with at most top
// prefixes of each, most asked for first.
func (v Inspection) Popular(top int) (all []Popular) {
	c := v.conductor
	c.registry.mu.RLock()
	for key, d := range c.registry.deployments {
		if v.reader.Tenants.Has(key.Tenant) {
			all = append(all, Popular{Deployment: key, Report: d.summary.Report(top)})
		}
	}
	c.registry.mu.RUnlock()
	all = slices.DeleteFunc(all, func(p Popular) bool { return p.Queries == 0 })
	slices.SortFunc(all, func(a, b Popular) int { return cmp.Or(cmp.Compare(b.Queries, a.Queries), a.Compare(b.Deployment)) })
	return all
}
