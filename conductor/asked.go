package conductor

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/stage"
)

// QueryCounts are the queries of one kind, and their tokens.
type QueryCounts struct {
	Queries uint64
	Asked   uint64 // tokens in complete blocks
	Matched uint64 // tokens that the best instance held
}

func (n *QueryCounts) add(m QueryCounts) {
	n.Queries += m.Queries
	n.Asked += m.Asked
	n.Matched += m.Matched
}

// askedCounts are QueryCounts while they grow, by kind of prompt.
type askedCounts [len(promptKinds)]struct {
	queries, asked, matched atomic.Uint64
	_                       [5]uint64 // a cache line each: routers ask in one way
}

// load returns the counts.
func (n *askedCounts) load() (all [len(promptKinds)]QueryCounts) {
	for i := range n {
		all[i] = QueryCounts{n[i].queries.Load(), n[i].asked.Load(), n[i].matched.Load()}
	}
	return all
}

// take adds the counts of a deployment that is gone. A query under way may be lost.
func (n *askedCounts) take(gone *askedCounts) {
	for i, m := range gone.load() {
		n[i].queries.Add(m.Queries)
		n[i].asked.Add(m.Asked)
		n[i].matched.Add(m.Matched)
	}
}

// countQuery counts an answered query. The best instance held best of its blocks.
func (c *Conductor) countQuery(d *deployment, q *Query, best int, took time.Duration) {
	by := byTokens
	switch {
	case q.ByHash:
		by = byHashes
	case q.ByClientHash:
		by = byClientHashes
	}
	counts := &c.registry.elsewhere
	if d != nil {
		counts = &d.asked
	}
	n := &counts[by]
	n.queries.Add(1)
	n.asked.Add(uint64(q.blocks() * q.BlockSize))
	n.matched.Add(uint64(best * q.BlockSize))
	if q.Clock != nil && q.Clock.Trace != "" {
		c.queries.by[by].(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(),
			prometheus.Labels{stage.TraceLabel: q.Clock.Trace})
	} else {
		c.queries.by[by].Observe(took.Seconds())
	}
}

// queryCounts returns the counts of all queries since the start, by kind of prompt.
func (c *registry) queryCounts() [len(promptKinds)]QueryCounts {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := c.elsewhere.load()
	for _, d := range c.deployments {
		for i, n := range d.asked.load() {
			all[i].add(n)
		}
	}
	return all
}
