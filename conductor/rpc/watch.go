package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/server"
)

// Bounds of the time between two answers of a watch.
const (
	usualInterval = 100 * time.Millisecond
	leastInterval = 20 * time.Millisecond
	mostInterval  = time.Minute
)

// errTooManyWatches says that a bound of Watches is reached.
var errTooManyWatches = errors.New("too many open calls of Watch and RoutedStream")

// Watches bounds the open calls of Watch and RoutedStream, over all servers. It is a
// prometheus.Collector.
type Watches struct {
	slots   *bounds.Slots
	most    atomic.Int64 // 0 is no bound
	answers atomic.Uint64
}

// NewWatches returns a Watches with a bound for all clients together, 0 for none.
func NewWatches(most int) *Watches {
	w := &Watches{slots: bounds.NewSlots(0, 0)}
	w.SetBound(most)
	return w
}

// SetBound replaces the bound. Open calls stay.
func (w *Watches) SetBound(most int) {
	w.most.Store(int64(most))
	if most > 0 {
		w.slots.SetMost(most, quarter(most))
	} else {
		w.slots.SetMost(math.MaxInt, 0)
	}
}

// quarter is how many calls one client may have open, a quarter of all, so that it takes
// several clients to leave none for the others.
func quarter(most int) int { return (most + 3) / 4 }

// countCall counts a call. It returns errTooManyWatches if the call is beyond a bound.
func (w *Watches) countCall(flow string) error {
	switch err, most := w.slots.TryEnter(bounds.Flow{Name: flow}), int(w.most.Load()); err {
	case nil:
		return nil
	case bounds.ErrShare:
		return fmt.Errorf("%w: one client has at most %d, a quarter of all", errTooManyWatches, quarter(most))
	default:
		return fmt.Errorf("%w: %d are open, which is the most", errTooManyWatches, most)
	}
}

func (w *Watches) endCall(flow string) { w.slots.Leave(bounds.Flow{Name: flow}) }

var (
	descWatches = prometheus.NewDesc("conductor_grpc_watches", "Open calls of Watch and RoutedStream over gRPC.", nil, nil)
	descAnswers = prometheus.NewDesc("conductor_grpc_watch_answers_total", "Answers that calls of Watch have sent.", nil, nil)
)

// Describe implements prometheus.Collector.
func (w *Watches) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(w, ch) }

// Collect implements prometheus.Collector.
func (w *Watches) Collect(ch chan<- prometheus.Metric) {
	open, _ := w.slots.Count()
	ch <- prometheus.MustNewConstMetric(descWatches, prometheus.GaugeValue, float64(open))
	ch <- prometheus.MustNewConstMetric(descAnswers, prometheus.CounterValue, float64(w.answers.Load()))
}

// Watch implements kvconductorv1.ConductorServer.
func (s *service) Watch(in *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.QueryResponse]) error {
	if in.Query == nil {
		return invalid.Field("query", "missing", "query is required")
	}
	q, err := s.readQuery(in.Query)
	if err != nil {
		return within("query.", err)
	}
	if q.Detail {
		return invalid.Field("query.detail", "invalid_value", "a watch has no detail: the age of a source changes all the time")
	}
	interval := time.Duration(in.IntervalMs) * time.Millisecond
	if interval == 0 {
		interval = usualInterval
	}
	if interval < leastInterval || interval > mostInterval {
		return invalid.Field("interval_ms", "out_of_range", "interval_ms must be 0 or in %d..%d, got %d", leastInterval.Milliseconds(),
			mostInterval.Milliseconds(), in.IntervalMs)
	}
	caller := access.CallerOf(stream.Context())
	flow := caller.Flow().Name
	if err := s.server.opts.Watches.countCall(flow); err != nil {
		return err
	}
	defer s.server.opts.Watches.endCall(flow)
	caller.Charge(proto.Size(in))
	w := watch{service: s, in: in, query: &q, caller: caller, stream: stream, interval: interval}
	return w.run(stream.Context())
}

// within adds the message that has a field to the name of the field.
func within(prefix string, err error) error {
	var field *invalid.FieldError
	if errors.As(err, &field) {
		inner := *field
		inner.Field = prefix + protoField(field.Field)
		return &inner
	}
	return err
}

// watch is a call of Watch. It has no queue: it asks once the client has taken the answer before.
type watch struct {
	service  *service
	in       *pb.WatchRequest
	query    *match.Query
	caller   *access.Caller
	stream   grpc.ServerStreamingServer[pb.QueryResponse]
	interval time.Duration
	sent     []byte // the last answer
}

// run asks and sends until ctx ends or the server leaves.
func (w *watch) run(ctx context.Context) error {
	pause := time.NewTimer(conductor.LookAgain)
	defer pause.Stop()
	for {
		select {
		case <-w.service.server.stopping: // another replica may have asked after others were told
			return errStopping
		default:
		}
		if err := w.caller.Recheck(); err != nil {
			return err
		}
		view := w.caller.View(w.service.server.opts.Conductor)
		changed := view.Changes(w.query) // before the answer
		begun := time.Now()
		again, err := w.answerOnce(ctx, view)
		if err != nil {
			return err
		}
		if !again {
			pause.Reset(conductor.LookAgain)
			if err := w.awaitChange(ctx, changed, pause.C); err != nil {
				return err
			}
		}
		pause.Reset(time.Until(begun.Add(w.interval)))
		if err := w.awaitChange(ctx, nil, pause.C); err != nil {
			return err
		}
	}
}

// awaitChange waits for a change or the time. It returns an error if the call is over.
func (w *watch) awaitChange(ctx context.Context, changed <-chan struct{}, passed <-chan time.Time) error {
	select {
	case <-changed:
	case <-passed:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.service.server.stopping:
		return errStopping
	}
	return nil
}

// answerOnce asks within a slot, and sends the answer if it is another than the one before. again says
// that there was no slot, or that another replica has answered until now.
func (w *watch) answerOnce(ctx context.Context, view conductor.View) (again bool, err error) {
	var out *pb.QueryResponse
	err = w.service.server.runInSlot(ctx, w.caller.Flow(), func() error {
		return view.Answer(w.query, func(ans *match.Answer) { out = answerOf(ans) })
	})
	var unserved *conductor.UnservedError
	switch {
	case errors.Is(err, server.ErrBusy):
		return ctx.Err() == nil, ctx.Err()
	case errors.As(err, &unserved):
		return true, w.relayAnswers(ctx, unserved)
	case err != nil:
		return false, err
	}
	text, err := proto.Marshal(out)
	if err != nil {
		return false, err
	}
	return false, w.sendIfNew(text)
}

// sendIfNew sends an answer if it is another than the one before.
func (w *watch) sendIfNew(text []byte) error {
	if bytes.Equal(text, w.sent) {
		return nil // no answer is empty: it has the tenant
	}
	w.sent = append(w.sent[:0], text...)
	w.service.server.opts.Watches.answers.Add(1)
	return w.stream.Send(withBytes(new(pb.QueryResponse), text))
}

// errMoved ends a watch at a replica that serves the model no more.
var errMoved = errors.New("another replica serves the model")

// relayAnswers sends what another replica answers. It returns nil once that replica has ended the call, or
// is no more the one to ask.
func (w *watch) relayAnswers(ctx context.Context, to *conductor.UnservedError) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	began, room := false, w.service.server.keepMemory(ctx)
	defer room.releaseMemory()
	reserve := func(bytes int64) error { // for one answer at a time
		room.releaseMemory()
		return room.reserve(bytes)
	}
	err := w.service.server.carry(ctx, pb.Conductor_Watch_FullMethodName, w.in, to, func(by conductor.ReplicaAddress) {
		began = true
		looking.Go(func() { cancel(w.lookAfter(ctx, by)) })
	}, reserve, w.sendIfNew)
	cancel(nil)
	looking.Wait()
	cause := context.Cause(ctx)
	switch {
	case cause == errMoved:
		return nil
	case cause != context.Canceled:
		return cause
	case began && (err == nil || status.Code(statusOf(err)) == codes.Unavailable):
		return nil
	}
	return err
}

// lookAfter returns why a watch at another replica ends, or ctx.Err().
func (w *watch) lookAfter(ctx context.Context, by conductor.ReplicaAddress) error {
	pace := time.NewTicker(conductor.LookAgain)
	defer pace.Stop()
	for {
		if err := w.awaitChange(ctx, nil, pace.C); err != nil {
			return err
		}
		if err := w.caller.Recheck(); err != nil {
			return err
		}
		var now *conductor.UnservedError
		if !errors.As(w.service.server.opts.Conductor.Unserved(w.query.Tenant, w.query.Model), &now) || !slices.Contains(now.Serving, by) {
			return errMoved
		}
	}
}
