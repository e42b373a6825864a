package router

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"slices"
	"sync"
	"time"
)

// SetHealthy says whether a worker may be chosen. At first all may. If none is healthy, all may be chosen
// again, because the checks could be wrong.
func (r *Router) SetHealthy(worker int, healthy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down == nil {
		r.down = make([]bool, len(r.Workers))
	}
	if r.down[worker] != healthy {
		return
	}
	r.down[worker] = !healthy
	if healthy {
		log.Printf("%s is healthy again", r.Workers[worker])
	} else {
		log.Printf("%s cannot be reached, other workers take its requests", r.Workers[worker])
	}
}

// mayChoose is healthy for callers that do not hold mu.
func (r *Router) mayChoose(worker int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.healthy(worker)
}

// healthy reports whether a worker may be chosen. The caller holds mu.
func (r *Router) healthy(worker int) bool {
	if r.down == nil || !r.down[worker] {
		return true
	}
	for _, down := range r.down {
		if !down {
			return false
		}
	}
	return true
}

// candidates returns the workers that have not failed a request, from the next turn on: the healthy ones, or all if none is
// healthy. The caller holds mu.
func (r *Router) candidates(tried []int) []int {
	var all, healthy []int
	for i := range r.Workers {
		at := (r.turn + i) % len(r.Workers)
		if slices.Contains(tried, at) {
			continue
		}
		if all = append(all, at); r.healthy(at) {
			healthy = append(healthy, at)
		}
	}
	if len(healthy) > 0 {
		return healthy
	}
	return all
}

// DefaultHealthTimeout is how long an engine may take to say that it is healthy; a busy one takes seconds.
const DefaultHealthTimeout = 10 * time.Second

// CheckHealth asks GET /health of each worker again and again, every so often, until ctx ends. Conductor does
// not do this: it knows what an engine has cached, not whether it answers.
func (r *Router) CheckHealth(ctx context.Context, every time.Duration) {
	var checks sync.WaitGroup
	for i, w := range r.Workers {
		checks.Go(func() {
			for ctx.Err() == nil {
				err := r.checkWorker(ctx, w)
				if ctx.Err() != nil {
					return
				}
				r.SetHealthy(i, err == nil)
				select {
				case <-time.After(every):
				case <-ctx.Done():
				}
			}
		})
	}
	checks.Wait()
}

// checkInBackground asks a worker that failed a request whether it is healthy, unless such a check is under way.
func (r *Router) checkInBackground(worker int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks[worker] {
		return
	}
	if r.checks == nil {
		r.checks = make(map[int]bool)
	}
	r.checks[worker] = true
	r.background.Go(func() {
		if r.checkWorker(context.Background(), r.Workers[worker]) != nil {
			r.SetHealthy(worker, false)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.checks, worker)
	})
}

// checkWorker returns why a worker is not healthy.
func (r *Router) checkWorker(ctx context.Context, w Worker) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.HealthTimeout, DefaultHealthTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL.JoinPath("/health").String(), nil)
	if err != nil {
		return err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}
