package catalog

import (
	"sync/atomic"
)

// QueryCounts are the queries of one kind, and their tokens.
type QueryCounts struct {
	Queries uint64
	Asked   uint64 // tokens in complete blocks
	Matched uint64 // tokens that the best instance held
	Fresh   uint64 // queries about blocks that no instance had; the one that computes such a prompt announces them
}

func (n *QueryCounts) Add(m QueryCounts) {
	n.Queries += m.Queries
	n.Asked += m.Asked
	n.Matched += m.Matched
	n.Fresh += m.Fresh
}

// askedCounts are QueryCounts while they grow, by kind of prompt.
type askedCounts [len(PromptKinds)]struct {
	queries, asked, matched atomic.Uint64
	fresh                   atomic.Uint64
	_                       [4]uint64 // a cache line each: routers ask in one way
}

// Load returns the counts.
func (n *askedCounts) Load() (all [len(PromptKinds)]QueryCounts) {
	for i := range n {
		all[i] = QueryCounts{n[i].queries.Load(), n[i].asked.Load(), n[i].matched.Load(), n[i].fresh.Load()}
	}
	return all
}

// countQuery counts a query by the kind of its prompt. asked and matched are tokens. fresh: see QueryCounts.
func (n *askedCounts) countQuery(by, asked, matched int, fresh bool) {
	n[by].queries.Add(1)
	n[by].asked.Add(uint64(asked))
	n[by].matched.Add(uint64(matched))
	if fresh {
		n[by].fresh.Add(1)
	}
}

// take adds the counts of a deployment that is gone. A query under way may be lost.
func (n *askedCounts) take(gone *askedCounts) {
	for i, m := range gone.Load() {
		n[i].queries.Add(m.Queries)
		n[i].asked.Add(m.Asked)
		n[i].matched.Add(m.Matched)
		n[i].fresh.Add(m.Fresh)
	}
}

// QueryCounts returns the counts of the queries about the deployment, by kind of prompt.
func (d *Deployment) QueryCounts() [len(PromptKinds)]QueryCounts { return d.asked.Load() }

// SumQueries returns the counts of all queries since the start, by kind of prompt.
func (c *Catalog) SumQueries() [len(PromptKinds)]QueryCounts {
	all := c.elsewhere.Load()
	for _, d := range c.Deployments() {
		for i, n := range d.asked.Load() {
			all[i].Add(n)
		}
	}
	return all
}

// PromptKinds are the ways a prompt is given in, as metrics call them.
var PromptKinds = [...]string{ByTokens: "tokens", ByHashes: "hashes", ByClientHashes: "locals"}

const (
	ByTokens = iota
	ByHashes
	ByClientHashes
)

// CountQuery counts a query about a deployment, nil if there is none for it. asked and matched are tokens.
func (c *Catalog) CountQuery(d *Deployment, by, asked, matched int, fresh bool) {
	if d != nil {
		d.asked.countQuery(by, asked, matched, fresh)
	} else {
		c.elsewhere.countQuery(by, asked, matched, false)
	}
}
