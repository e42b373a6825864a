package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/stage"
)

// ErrBusy says that a query got no slot in time.
var ErrBusy = errors.New("too many queries at once")

// An Admission bounds how many queries run at once. The others wait for a slot (bounds.Slots), for a while.
// Queries belong to flows: a tenant, a client or an address (FlowOf), with their weights.
//
// Handlers call Do, after the body has arrived and before they send the answer.
//
// A nil Admission admits every query. An Admission is a prometheus.Collector of its counters.
type Admission struct {
	slots   *bounds.Slots
	each    int // slots of one flow, 0 for no bound
	refused atomic.Uint64
	bound   atomic.Pointer[admissionBound]
}

// admissionBound is how long queries wait, and the error for those that would wait longer.
type admissionBound struct {
	wait   time.Duration
	tooFew error // ErrBusy, with the bound
}

// NewAdmission returns an Admission of most queries at once. Each other query waits at
// most wait, which may be 0.
func NewAdmission(most int, wait time.Duration) *Admission { return NewSharedAdmission(most, 0, wait) }

// NewSharedAdmission is NewAdmission for flows that have at most each slots, if each is above 0.
func NewSharedAdmission(most, each int, wait time.Duration) *Admission {
	a := &Admission{slots: bounds.NewSlots(most, each), each: each}
	a.SetBound(most, wait)
	return a
}

// SetBound replaces the bound and the wait of queries that come from now on.
func (a *Admission) SetBound(most int, wait time.Duration) {
	a.slots.SetMost(most, a.each)
	a.bound.Store(&admissionBound{wait, fmt.Errorf("%w: %d are let in, and none of them ended within %s", ErrBusy, most,
		wait)})
}

// Do runs the work of a query within a slot and returns the error of work. It returns
// ErrBusy, and sets Retry-After in the header of the answer, if Enter refuses.
//
// Do enters the stages of the request's clock: Admit, Parse, and Send when work has ended.
func (a *Admission) Do(g *gin.Context, work func() error) error {
	clock := ClockOf(g)
	defer clock.Enter(stage.Send)
	if a == nil {
		clock.Enter(stage.Parse)
		return work()
	}
	clock.Enter(stage.Admit)
	flow := FlowOf(g)
	if err := a.Enter(g.Request.Context(), flow); err != nil {
		g.Writer.Header().Set("Retry-After", "1") // seconds; the smallest value but 0
		return err
	}
	defer a.Leave(flow)
	clock.Enter(stage.Parse)
	return work()
}

// ClockKey is where a middleware leaves the *stage.Clock of a request.
const ClockKey = "conductor.clock"

// ClockOf returns the clock of a request, nil if no middleware has left one.
func ClockOf(g *gin.Context) *stage.Clock {
	if v, ok := g.Get(ClockKey); ok {
		return v.(*stage.Clock)
	}
	return nil
}

// Enter takes a slot for a flow. Leave gives it back. Enter returns ErrBusy if no slot comes
// free within the wait, or before ctx ends.
func (a *Admission) Enter(ctx context.Context, flow bounds.Flow) error {
	if a == nil || a.slots.TryEnter(flow) == nil {
		return nil
	}
	bound := a.bound.Load()
	if bound.wait > 0 {
		limited, cancel := context.WithTimeout(ctx, bound.wait)
		defer cancel()
		if a.slots.Enter(limited, flow) == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: the client did not wait: %w", ErrBusy, err)
		}
	}
	a.refused.Add(1)
	return bound.tooFew
}

// Leave gives the slot of a flow back. The next query that waits gets it.
func (a *Admission) Leave(flow bounds.Flow) {
	if a != nil {
		a.slots.Leave(flow)
	}
}

// FlowKey is where a middleware leaves a value that names the flow whose share a request takes.
const FlowKey = "conductor.client"

// FlowOf returns the flow whose share a request takes. It is the flow "" if no middleware has set one.
func FlowOf(g *gin.Context) bounds.Flow {
	if v, ok := g.Get(FlowKey); ok {
		return v.(interface{ Flow() bounds.Flow }).Flow()
	}
	return bounds.Flow{}
}

// AdmissionStats are the counters of an Admission.
type AdmissionStats struct {
	Inside, Waiting int
	Refused         uint64 // queries since the start that got no slot within the wait
}

// Stats returns the counters of a.
func (a *Admission) Stats() AdmissionStats {
	inside, waiting := a.slots.Count()
	return AdmissionStats{Inside: inside, Waiting: waiting, Refused: a.refused.Load()}
}

var (
	descInside = prometheus.NewDesc("conductor_queries_in_flight",
		"Queries that are being worked on: their body has arrived, and their answer is not ready.", nil, nil)
	descWaiting = prometheus.NewDesc("conductor_queries_waiting", "Queries that wait for a slot: four per CPU are let in.", nil, nil)
	descRefused = prometheus.NewDesc("conductor_queries_refused_total", "Queries refused because they had waited for limits.query_wait.",
		nil, nil)
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
