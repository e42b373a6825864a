package server

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
)

// ErrBusy says that a query got no place in time.
var ErrBusy = errors.New("too many queries at once")

// An Admission bounds how many queries run at once. The others wait:
//
//	Enter --a place is free--> inside --Leave--> the place goes on, by shares
//	  |                          ^
//	  +--> waiting --a place-----+
//	          |
//	          +--wait is over, or the client went away--> ErrBusy
//
// Queries belong to flows: a tenant, a client or an address (FlowOf). A free place goes to the
// waiting flow with the fewest queries inside, of equal ones to the query that waits longest. So
// a flow that asks without pause has all places while it is alone, and its share once others ask.
//
// Handlers call Do, after the body has arrived and before they send the answer.
//
// A nil Admission admits every query. An Admission is a prometheus.Collector of its counters.
type Admission struct {
	// Each, if above 0, bounds the places of one flow. Set it before use.
	Each int

	mu      sync.Mutex
	most    int              // guarded by mu
	wait    time.Duration    // guarded by mu
	tooFew  error            // ErrBusy, with the bound; guarded by mu
	inside  int              // guarded by mu
	refused uint64           // guarded by mu
	flows   map[string]*flow // with a query inside or waiting; guarded by mu
	spare   []*flow          // to be used again; guarded by mu
	queue   list.List        // of *waiter, oldest first; guarded by mu
}

// flow counts the queries of one client.
type flow struct{ inside, waiting int }

// waiter is a query that waits.
type waiter struct {
	name    string
	flow    *flow
	entered chan struct{} // closed when it has a place
	at      *list.Element
}

// NewAdmission returns an Admission of most queries at once. Each other query waits at
// most wait, which may be 0.
func NewAdmission(most int, wait time.Duration) *Admission {
	a := &Admission{flows: make(map[string]*flow)}
	a.SetBound(most, wait)
	return a
}

// SetBound replaces the bound and the wait of queries that come from now on.
func (a *Admission) SetBound(most int, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.most, a.wait = most, wait
	a.tooFew = fmt.Errorf("%w: limits.max_queries lets %d in, and none of them ended within %s", ErrBusy, most, wait)
}

// Do runs the work of a query within a place and returns the error of work. It returns
// ErrBusy, and sets Retry-After in the header of the answer, if Enter refuses.
func (a *Admission) Do(g *gin.Context, work func() error) error {
	if a == nil {
		return work()
	}
	name := FlowOf(g)
	if err := a.Enter(g.Request.Context(), name); err != nil {
		g.Writer.Header().Set("Retry-After", "1") // seconds; the smallest value but 0
		return err
	}
	defer a.Leave(name)
	return work()
}

// Enter takes a place for a flow. Leave gives it back. Enter returns ErrBusy if no place comes
// free within the wait, or before ctx ends.
func (a *Admission) Enter(ctx context.Context, name string) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	f := a.flows[name]
	if f == nil {
		f = a.fresh()
		a.flows[name] = f
	}
	if a.inside < a.most && a.mayEnter(f) {
		a.inside++
		f.inside++
		a.mu.Unlock()
		return nil
	}
	wait, why := a.wait, a.tooFew
	if wait <= 0 {
		a.forget(name, f)
		a.refused++
		a.mu.Unlock()
		return why
	}
	w := &waiter{name: name, flow: f, entered: make(chan struct{})}
	w.at = a.queue.PushBack(w)
	f.waiting++
	a.mu.Unlock()
	return a.await(ctx, w, wait, why)
}

// await waits until a query has a place, or until it leaves the queue. It returns tooLong after
// wait.
func (a *Admission) await(ctx context.Context, w *waiter, wait time.Duration, tooLong error) error {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	var why error
	select {
	case <-w.entered:
		return nil
	case <-limit.C:
		why = tooLong
	case <-ctx.Done():
		why = fmt.Errorf("%w: the client did not wait: %w", ErrBusy, ctx.Err())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.entered:
		return nil // at the last moment
	default:
	}
	a.queue.Remove(w.at)
	w.flow.waiting--
	a.forget(w.name, w.flow)
	if ctx.Err() == nil {
		a.refused++
	}
	return why
}

// Leave gives the place of a flow to the next query, or back.
func (a *Admission) Leave(name string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.flows[name]
	f.inside--
	a.inside--
	for a.inside < a.most {
		w := a.next()
		if w == nil {
			break
		}
		a.queue.Remove(w.at)
		w.flow.waiting--
		w.flow.inside++
		a.inside++
		close(w.entered)
	}
	a.forget(name, f)
}

// next returns the query that the next place belongs to, nil if none waits. a.mu is held. It
// looks at the queue once: the queue is as long as clients wait for limits.query_wait.
func (a *Admission) next() (best *waiter) {
	for at := a.queue.Front(); at != nil; at = at.Next() {
		w := at.Value.(*waiter)
		if a.mayEnter(w.flow) && (best == nil || w.flow.inside < best.flow.inside) {
			best = w
		}
		if best != nil && best.flow.inside == 0 {
			break
		}
	}
	return best
}

// mayEnter reports whether a flow may take one more place. a.mu is held.
func (a *Admission) mayEnter(f *flow) bool { return a.Each == 0 || f.inside < a.Each }

// fresh returns an empty flow. a.mu is held.
func (a *Admission) fresh() (f *flow) {
	last := len(a.spare) - 1
	if last < 0 {
		return new(flow)
	}
	f, a.spare = a.spare[last], a.spare[:last]
	return f
}

// forget drops a flow without queries. a.mu is held.
func (a *Admission) forget(name string, f *flow) {
	if *f == (flow{}) {
		delete(a.flows, name)
		if len(a.spare) < 64 {
			a.spare = append(a.spare, f)
		}
	}
}

// FlowKey is where a middleware leaves a value that names whose share a request takes.
const FlowKey = "conductor.client"

// FlowOf returns whose share a request takes, "" if no middleware said so.
func FlowOf(g *gin.Context) string {
	if v, ok := g.Get(FlowKey); ok {
		return v.(interface{ Flow() string }).Flow()
	}
	return ""
}

// AdmissionStats are the counters of an Admission.
type AdmissionStats struct {
	Inside, Waiting int
	Refused         uint64 // queries since the start that got no place within the wait
}

// Stats returns the counters of a.
func (a *Admission) Stats() AdmissionStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return AdmissionStats{Inside: a.inside, Waiting: a.queue.Len(), Refused: a.refused}
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
