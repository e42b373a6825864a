package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// ErrBusy says that a query got no place in time.
var ErrBusy = errors.New("too many queries at once")

// An Admission bounds how many queries run at once. The others wait, first come, first
// served:
//
//	Enter --a place is free--> inside --Leave--> the place goes to the longest wait
//	  |                          ^
//	  +--> waiting --a place-----+
//	          |
//	          +--wait is over, or the client went away--> ErrBusy
//
// Handlers call Do, after the body has arrived and before they send the answer.
//
// A nil Admission admits every query. A free place costs one lock each way. An Admission
// is a prometheus.Collector of its counters.
type Admission struct {
	places  *semaphore.Weighted
	wait    time.Duration
	tooFew  error // ErrBusy, with the bound
	inside  atomic.Int64
	waiting atomic.Int64
	refused atomic.Uint64
}

// NewAdmission returns an Admission of most queries at once. Each other query waits at
// most wait, which may be 0.
func NewAdmission(most int, wait time.Duration) *Admission {
	return &Admission{
		places: semaphore.NewWeighted(int64(most)), wait: wait,
		tooFew: fmt.Errorf("%w: limits.max_queries lets %d in, and none of them ended within %s", ErrBusy, most, wait),
	}
}

// Do runs the work of a query within a place and returns the error of work. It returns
// ErrBusy, and sets Retry-After in the header of the answer, if Enter refuses.
func (a *Admission) Do(w http.ResponseWriter, r *http.Request, work func() error) error {
	if err := a.Enter(r.Context()); err != nil {
		w.Header().Set("Retry-After", "1") // seconds; the smallest value but 0
		return err
	}
	defer a.Leave()
	return work()
}

// Enter takes a place. Leave gives it back. Enter returns ErrBusy if no place comes free
// within the wait, or before ctx ends.
func (a *Admission) Enter(ctx context.Context) error {
	if a == nil {
		return nil
	}
	if !a.places.TryAcquire(1) {
		if err := a.queue(ctx); err != nil {
			return err
		}
	}
	a.inside.Add(1)
	return nil
}

// queue waits for a place.
func (a *Admission) queue(ctx context.Context) error {
	if a.wait > 0 {
		a.waiting.Add(1)
		defer a.waiting.Add(-1)
		limited, cancel := context.WithTimeout(ctx, a.wait)
		defer cancel()
		if a.places.Acquire(limited, 1) == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: the client did not wait: %w", ErrBusy, err)
		}
	}
	a.refused.Add(1)
	return a.tooFew
}

// Leave gives a place to the query that waits longest, or back.
func (a *Admission) Leave() {
	if a != nil {
		a.inside.Add(-1)
		a.places.Release(1)
	}
}

// AdmissionStats are the counters of an Admission.
type AdmissionStats struct {
	Inside, Waiting int
	Refused         uint64 // queries since the start that got no place within the wait
}

// Stats returns the counters of a.
func (a *Admission) Stats() AdmissionStats {
	return AdmissionStats{Inside: int(a.inside.Load()), Waiting: int(a.waiting.Load()), Refused: a.refused.Load()}
}

var (
	descInside  = prometheus.NewDesc("conductor_queries_in_flight", "Queries that are worked on: their body is there, their answer is not made.", nil, nil)
	descWaiting = prometheus.NewDesc("conductor_queries_waiting", "Queries that wait for one in flight to end (limits.max_queries).", nil, nil)
	descRefused = prometheus.NewDesc("conductor_queries_refused_total", "Queries refused because they had waited for limits.query_wait.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *Admission) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Admission) Collect(ch chan<- prometheus.Metric) {
	st := a.Stats()
	ch <- prometheus.MustNewConstMetric(descInside, prometheus.GaugeValue, float64(st.Inside))
	ch <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(st.Waiting))
	ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(st.Refused))
}
