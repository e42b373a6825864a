// Package router is a cache-aware router in front of inference engines, made to be copied.
//
// For each prompt it asks Conductor which worker caches how much of it, and chooses the worker with
// the least work: the tokens it would compute for the prompt, those it would load from its host or
// disk at a part of that cost, and the tokens it still has to compute for others. If Conductor does
// not answer in time, the load alone decides.
//
//	r := &router.Router{Conductor: c, Query: client.Query{Model: "m", BlockSize: 16}, Workers: workers}
//	worker, computed := r.Choose(ctx, tokens)
//	// send the prompt to r.Workers[worker]; call computed with its first token
package router

import (
	"context"
	"net/url"
	"sync"
	"time"

	"kvconductor/client"
)

// Worker is one data-parallel rank of an engine.
type Worker struct {
	Instance string // as it is registered with Conductor
	Rank     int
	URL      *url.URL // base URL of the engine
}

// Router chooses workers. Its exported fields stay as they are once it is in use.
type Router struct {
	// Conductor tells what workers cache; nil leaves the choice to the load.
	Conductor *client.Client
	// Query is asked with the tokens of each prompt: model, block size, tenant, adapter and salt.
	Query client.Query
	// Patience bounds the wait for an answer, DefaultPatience if it is 0.
	Patience time.Duration
	// Workers are those that are healthy: Conductor does not know which engines are alive.
	Workers []Worker

	mu     sync.Mutex // guards the rest
	queued []float64  // work that each worker has not done yet, in tokens to compute
	turn   int        // where the next choice begins, so that equal workers take turns
	alone  int        // choices without an answer
}

// DefaultPatience is how long a choice waits for Conductor.
const DefaultPatience = 50 * time.Millisecond

// Cost of a cached token, as a part of computing it. A token on the device costs nothing.
const (
	hostCost = 0.25
	diskCost = 0.75
)

// Choose returns the worker for a prompt, by its place in Workers. The caller calls computed when
// the worker has computed the prompt, or failed to.
func (r *Router) Choose(ctx context.Context, tokens []uint32) (worker int, computed func()) {
	cached, ok := r.cached(ctx, tokens)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued == nil {
		r.queued = make([]float64, len(r.Workers))
	}
	if !ok && r.Conductor != nil {
		r.alone++
	}
	least := 0.0
	for i := range r.Workers {
		at := (r.turn + i) % len(r.Workers)
		if cost := work(len(tokens), cached[at]) + r.queued[at]; i == 0 || cost < least {
			worker, least = at, cost
		}
	}
	r.turn = worker + 1
	charged := work(len(tokens), cached[worker])
	r.queued[worker] += charged
	return worker, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queued[worker] -= charged
	})
}

// Alone returns how many choices were made without an answer of Conductor.
func (r *Router) Alone() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alone
}

// work returns what a prompt costs a worker, in tokens to compute.
func work(tokens int, c client.Rank) float64 {
	return float64(tokens-c.Disk) + hostCost*float64(c.CPU-c.GPU) + diskCost*float64(c.Disk-c.CPU)
}

// cached asks Conductor for what each worker caches. It returns nothing cached and false unless the
// answer has all workers: a choice with the cache of some is unfair to the others.
func (r *Router) cached(ctx context.Context, tokens []uint32) (cached []client.Rank, ok bool) {
	none := make([]client.Rank, len(r.Workers))
	if r.Conductor == nil {
		return none, false
	}
	patience := r.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q := r.Query
	q.Tokens = tokens
	rows, err := r.Conductor.Query(ctx, q)
	if err != nil {
		return none, false
	}
	by := make(map[Worker]client.Rank)
	for _, row := range rows {
		for _, rank := range row.Ranks {
			by[Worker{Instance: row.Instance, Rank: rank.Rank}] = rank
		}
	}
	cached = make([]client.Rank, len(r.Workers))
	for i, w := range r.Workers {
		rank, known := by[Worker{Instance: w.Instance, Rank: w.Rank}]
		if !known || !plausible(rank, len(tokens)) {
			return none, false
		}
		cached[i] = rank
	}
	return cached, true
}

// plausible reports whether a rank's numbers are in order: each tier counts those before.
func plausible(c client.Rank, tokens int) bool {
	return 0 <= c.GPU && c.GPU <= c.CPU && c.CPU <= c.Disk && c.Disk <= tokens
}
