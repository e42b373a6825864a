// Package router is a cache-aware router in front of inference engines, made to be copied.
//
// For each prompt it asks Conductor which worker caches how much of it, and chooses the worker with
// the least work: the tokens it would compute for the prompt, those it would load from its host or
// disk at a part of that cost, and the tokens it still has to compute for others. If Conductor does
// not answer in time, the load alone decides.
//
// It tells Conductor where each prompt goes. Answers then count what a worker is expected to have
// soon, so that of a burst of equal prompts one is computed and the others wait for it, whichever
// of the routers that share a Conductor they come through.
//
//	r := &router.Router{Conductor: c, Query: client.Query{Model: "m", BlockSize: 16}, Workers: workers}
//	worker, end := r.Choose(ctx, tokens)
//	// send the prompt to r.Workers[worker]; call end(true) with its first token, end(false) if there will be none
package router

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/client"
)

// Worker is one data-parallel rank of an engine.
type Worker struct {
	Instance string // as it is registered with Conductor
	Rank     int
	URL      *url.URL // base URL of the engine
}

// String returns the worker's instance and rank, such as engine-1/0.
func (w Worker) String() string { return fmt.Sprintf("%s/%d", w.Instance, w.Rank) }

// Conductor is what a router asks and tells; a *client.Client is one.
type Conductor interface {
	Candidates(context.Context, client.Query) (client.Candidates, error)
	Routed(context.Context, client.Routed) error
	TakeBack(ctx context.Context, tenant, requestID string) error
}

// Router chooses workers. Its exported fields stay as they are once it is in use.
type Router struct {
	// Conductor tells what workers cache; nil leaves the choice to the load.
	Conductor Conductor
	// Query is asked with the tokens of each prompt: model, tenant, adapter and salt. Its block size may be 0 if all engines of the
	// model have the same one.
	Query client.Query
	// Patience bounds how long a choice waits for Conductor, DefaultPatience if it is 0. At most a
	// tenth of it is spent on waiting for the choice before.
	Patience time.Duration
	// Workers are all workers. Conductor does not know which engines are alive: see SetHealthy.
	Workers []Worker
	// EventsOnly goes by what engines have announced, and tells Conductor nothing.
	EventsOnly bool
	// TTL is how long Conductor expects the blocks of a prompt. 0 leaves that to Conductor, which
	// learns how long each engine takes.
	TTL time.Duration

	// HealthTimeout bounds how long a worker may take to say that it is healthy, DefaultHealthTimeout if it is 0.
	HealthTimeout time.Duration
	// BodyTimeout bounds how long a client may take to send its body, DefaultBodyTimeout if it is 0.
	BodyTimeout time.Duration

	background sync.WaitGroup // reports on their way to Conductor, and checks of workers that failed a request
	bodies     atomic.Int64   // bytes of the requests that are read or under way

	mu     sync.Mutex    // guards the rest
	queued []float64     // work that each worker has not done yet, in tokens to compute
	down   []bool        // workers that are not healthy; nil if all are
	turn   int           // where the next choice begins, so that equal workers take turns
	checks map[int]bool  // workers that are checked because they failed a request
	alone  int           // choices without an answer
	last   chan struct{} // closed when Conductor knows of the last choice; nil before the first
}

// DefaultPatience is how long a choice waits for Conductor.
const DefaultPatience = 50 * time.Millisecond

// Cost of a cached token, as a part of computing it. A token on the device costs nothing.
const (
	hostCost = 0.25
	diskCost = 0.75
)

// underWay is the part of the expected tokens that counts as computed. Without it, waiting for a
// prefix would cost a prompt as much as computing it on an idle worker, and the prompt would go
// there: its first token would come as soon, but the fleet would compute the prefix twice.
const underWay = 0.1

// Choose returns the worker for a prompt, by its place in Workers. The caller calls end with true
// when the worker has computed the prompt, or with false if it never will: it refused, or the
// client has gone away. Only the first call counts.
func (r *Router) Choose(ctx context.Context, tokens []uint32) (worker int, end func(computed bool)) {
	return r.chooseNext(ctx, tokens, nil)
}

// chooseNext is Choose for a request that some workers have failed.
func (r *Router) chooseNext(ctx context.Context, tokens []uint32, tried []int) (worker int, end func(computed bool)) {
	asking, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	known := r.await(asking)
	answer, cached, ok := r.cached(asking, tokens)
	worker, charged := r.choose(tokens, cached, ok, tried)
	takeBack := r.report(context.WithoutCancel(ctx), worker, tokens, &answer, known)
	var once sync.Once
	return worker, func(computed bool) {
		once.Do(func() {
			r.mu.Lock()
			r.queued[worker] -= charged
			r.mu.Unlock()
			if !computed {
				takeBack()
			}
		})
	}
}

// choose returns the worker that costs least, and the work that it is charged for.
func (r *Router) choose(tokens []uint32, cached []client.Rank, ok bool, tried []int) (worker int, charged float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued == nil {
		r.queued = make([]float64, len(r.Workers))
	}
	if !ok && r.Conductor != nil {
		r.alone++
	}
	least := math.Inf(1)
	for _, at := range r.candidates(tried) {
		if cost := work(len(tokens), cached[at]) + wait(r.queued[at], cached[at]); cost < least {
			worker, least = at, cost
		}
	}
	r.turn = worker + 1
	charged = work(len(tokens), cached[worker])
	r.queued[worker] += charged
	return worker, charged
}

// await waits until Conductor knows of the choice before this one: of equal prompts that come at
// once, each should find the ones before it expected. Choices thus take turns, about a millisecond
// each. If prompts come faster than that, a choice waits a tenth of its patience and then asks all the
// same, because an answer that lacks the latest choices is better than none. The caller closes known
// when Conductor knows of its own choice.
func (r *Router) await(ctx context.Context) (known chan struct{}) {
	known = make(chan struct{})
	if r.Conductor == nil || r.EventsOnly {
		return known
	}
	r.mu.Lock()
	before := r.last
	r.last = known
	r.mu.Unlock()
	if before != nil {
		ctx, cancel := context.WithTimeout(ctx, r.patience()/10)
		defer cancel()
		select {
		case <-before:
		case <-ctx.Done():
		}
	}
	return known
}

// report tells Conductor, in the background, where a prompt goes, and closes known. It names the answer in place of the prompt, unless
// Conductor has forgotten it. What it returns takes the report back.
func (r *Router) report(ctx context.Context, worker int, tokens []uint32, answer *client.Candidates,
	known chan struct{}) (takeBack func()) {
	if r.Conductor == nil || r.EventsOnly {
		return func() {}
	}
	to := r.Workers[worker]
	routed := client.Routed{Query: r.Query, AnswerID: answer.ID, Target: to.Instance, Rank: to.Rank, TTL: r.TTL, RequestID: rand.Text()}
	routed.BlockSize = cmp.Or(routed.BlockSize, answer.BlockSize)
	routed.Tokens = slices.Clone(tokens) // the caller may use them for other things
	// A report that fails costs the prefix once more, no more than that.
	r.background.Go(func() {
		defer close(known)
		ctx, cancel := context.WithTimeout(ctx, r.patience())
		defer cancel()
		err := r.Conductor.Routed(ctx, routed)
		var refused *client.Error
		if errors.As(err, &refused) && refused.Reason == "unknown_answer" {
			routed.AnswerID = ""
			_ = r.Conductor.Routed(ctx, routed)
		}
	})
	return func() {
		r.background.Go(func() {
			<-known
			ctx, cancel := context.WithTimeout(ctx, r.patience())
			defer cancel()
			_ = r.Conductor.TakeBack(ctx, routed.Tenant, routed.RequestID)
		})
	}
}

// Wait waits for reports that are on their way to Conductor, and for checks of workers that failed a request. It must not be
// called at the same time as Choose or ServeHTTP.
func (r *Router) Wait() { r.background.Wait() }

// Alone returns how many choices were made without an answer of Conductor.
func (r *Router) Alone() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alone
}

// work returns what a prompt costs a worker, in tokens to compute. Expected tokens cost nothing: they
// are computed for another prompt.
func work(tokens int, c client.Rank) float64 {
	return float64(tokens-c.Expected) + hostCost*float64(c.CPU-c.GPU) + diskCost*float64(c.Disk-c.CPU)
}

// wait returns how long a prompt waits for others of its worker, in tokens to compute: for those
// that are queued, and at least for the expected tokens, which another router may have sent.
func wait(queued float64, c client.Rank) float64 {
	expected := float64(c.Expected - c.Disk)
	return max(queued, expected) - underWay*expected
}

func (r *Router) patience() time.Duration { return cmp.Or(r.Patience, DefaultPatience) }

// cached asks Conductor for what each worker caches. It returns nothing cached and false unless the
// answer has all healthy workers: a choice with the cache of some is unfair to the others.
func (r *Router) cached(ctx context.Context, tokens []uint32) (answer client.Candidates, cached []client.Rank, ok bool) {
	none := make([]client.Rank, len(r.Workers))
	if r.Conductor == nil {
		return answer, none, false
	}
	q := r.Query
	q.Tokens = tokens
	answer, err := r.Conductor.Candidates(ctx, q)
	if err != nil {
		return answer, none, false
	}
	by := make(map[Worker]client.Rank)
	for _, row := range answer.Rows {
		for _, rank := range row.Ranks {
			if r.EventsOnly {
				rank.Expected = rank.Disk
			}
			if row.Approximate { // its engine announces nothing, so it may have computed them long ago
				rank.GPU, rank.CPU, rank.Disk = rank.Expected, rank.Expected, rank.Expected
			}
			by[Worker{Instance: row.Instance, Rank: rank.Rank}] = rank
		}
	}
	cached = make([]client.Rank, len(r.Workers))
	for i, w := range r.Workers {
		rank, known := by[Worker{Instance: w.Instance, Rank: w.Rank}]
		if !known && !r.mayChoose(i) {
			continue
		}
		if !known || !plausible(rank, len(tokens)) {
			return answer, none, false
		}
		cached[i] = rank
	}
	return answer, cached, true
}

// plausible reports whether a rank's numbers are in order: each counts those before.
func plausible(c client.Rank, tokens int) bool {
	return 0 <= c.GPU && c.GPU <= c.CPU && c.CPU <= c.Disk && c.Disk <= c.Expected && c.Expected <= tokens
}
