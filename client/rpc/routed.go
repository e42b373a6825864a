package rpc

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/client"
)

// Routed reports that a prompt goes to an instance. A model, an instance or a rank that is not registered
// is NOT_FOUND. Errors of the report have a kvconductor.v1.Error as their first detail.
func (c *Client) Routed(ctx context.Context, r client.Routed) error {
	_, err := c.routed(ctx, []client.Routed{r})
	return err
}

// RoutedBatch makes up to 256 reports at once.
func (c *Client) RoutedBatch(ctx context.Context, all []client.Routed) (client.RoutedAnswer, error) {
	answer, err := c.routed(ctx, all)
	if err != nil {
		if fault := faultOf(err); fault != nil && len(all) == 1 {
			return client.RoutedAnswer{Errors: []error{fault}}, nil
		}
		return client.RoutedAnswer{}, err
	}
	out := client.RoutedAnswer{Warnings: answer.Warnings}
	for _, e := range answer.Errors {
		if out.Errors == nil {
			out.Errors = make([]error, len(all))
		}
		if int(e.Prompt) < len(all) {
			out.Errors[e.Prompt] = errorOf(e.Error)
		}
	}
	return out, nil
}

func (c *Client) routed(ctx context.Context, all []client.Routed) (*pb.RoutedResponse, error) {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return nil, err
	}
	return c.conductor.Routed(ctx, reportsOf(all))
}

// TakeBack takes the report of a request back, because the engine refused it or its client left. A report
// that is not there any more is NOT_FOUND.
func (c *Client) TakeBack(ctx context.Context, tenant, requestID string) error {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return err
	}
	_, err = c.conductor.TakeBack(ctx, &pb.TakeBackRequest{TenantId: tenant, RequestId: requestID})
	return err
}

// reportsOf returns a request with reports.
func reportsOf(all []client.Routed) *pb.RoutedRequest {
	in := &pb.RoutedRequest{Prompts: make([]*pb.RoutedPrompt, len(all))}
	for i := range all {
		in.Prompts[i] = reportOf(&all[i])
	}
	return in
}

func reportOf(r *client.Routed) *pb.RoutedPrompt {
	p := &pb.RoutedPrompt{
		TenantId: r.Tenant, Model: r.Model, BlockSize: uint32(r.BlockSize), LoraName: r.Adapter, CacheSalt: r.Salt,
		InstanceId: r.Target, TtlMs: milliseconds(r.TTL), RequestId: r.RequestID,
	}
	if r.Rank != client.AnyRank {
		rank := uint32(r.Rank) // the server refuses what a negative one becomes
		p.DpRank = &rank
	}
	switch {
	case r.AnswerID != "":
		return &pb.RoutedPrompt{AnswerId: r.AnswerID, TenantId: r.Tenant, InstanceId: p.InstanceId, DpRank: p.DpRank, TtlMs: p.TtlMs,
			RequestId: p.RequestId}
	case r.SeqHashes != nil:
		p.Prompt = &pb.RoutedPrompt_Hashes{Hashes: hashesOf(r.Query)}
	default:
		p.Prompt = &pb.RoutedPrompt_Tokens{Tokens: &pb.Tokens{Ids: r.Tokens}}
	}
	return p
}

// milliseconds rounds a time up. The server refuses those that are too long, and what negative ones become.
func milliseconds(d time.Duration) uint32 {
	if d < 0 || d > math.MaxUint32*time.Millisecond {
		return math.MaxUint32
	}
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

// faultOf returns the error of a call with one report as RoutedBatch returns those of several, nil if it is about
// something else.
func faultOf(err error) *client.Error {
	for _, d := range status.Convert(err).Details() {
		if e, is := d.(*pb.Error); is {
			return errorOf(e)
		}
	}
	return nil
}

// Reply is what the server says of a request of a stream.
type Reply struct {
	Request uint64 // as Send has numbered it
	Kept    int    // number of reports
	// Err is why no report of the request was kept, such as a limit of the client.
	Err error
	// Errors are those of single reports by their places in the request. Each is a *client.Error, and
	// so is Err.
	Errors   map[int]error
	Warnings []string
}

// Reports is a stream of reports. Its methods may be called by several goroutines at once.
type Reports struct {
	stream grpc.BidiStreamingClient[pb.RoutedRequest, pb.RoutedResponse]
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // how the stream has ended, once ended is closed

	mu   sync.Mutex
	sent uint64 // guarded by mu
}

// RoutedStream opens a stream of reports, for routers that make thousands a second. It calls reply, from one
// goroutine, for each request with errors or warnings; the stream goes on. reply must not call Send, which may
// wait for it. Close the stream when you are done.
func (c *Client) RoutedStream(ctx context.Context, reply func(Reply)) (*Reports, error) {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.conductor.RoutedStream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &Reports{stream: stream, cancel: cancel, ended: make(chan struct{})}
	go r.receive(reply)
	return r, nil
}

// receive passes replies on until the stream ends.
func (r *Reports) receive(reply func(Reply)) {
	defer close(r.ended)
	for {
		in, err := r.stream.Recv()
		if err != nil {
			r.err = err
			return
		}
		out := Reply{Request: in.Request, Kept: int(in.Kept), Warnings: in.Warnings}
		if in.Error != nil {
			out.Err = errorOf(in.Error)
		}
		for _, e := range in.Errors {
			if out.Errors == nil {
				out.Errors = make(map[int]error)
			}
			out.Errors[int(e.Prompt)] = errorOf(e.Error)
		}
		reply(out)
	}
}

// Send sends up to 256 reports as one request, and returns its number in the stream, from 1. It waits while
// the server has more to do than the connection holds. Its error is how the stream has ended; open
// another one then.
func (r *Reports) Send(all ...client.Routed) (request uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.stream.Send(reportsOf(all)); err == io.EOF {
		<-r.ended
		return 0, r.err
	} else if err != nil {
		return 0, err
	}
	r.sent++
	return r.sent, nil
}

// Close ends the stream and waits until the server is done with everything that was sent. A nil error says that
// it is.
func (r *Reports) Close() error {
	defer r.cancel()
	r.mu.Lock()
	err := r.stream.CloseSend()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	<-r.ended
	if r.err == io.EOF {
		return nil
	}
	return r.err
}
