package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/status"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
)

// A report is kept in the same way whether it comes in a call or in a stream:
//
//	request --keep--> prompts of this replica: kept, errors, warnings
//	           |
//	           +----> prompts of others: sent on in one call for each replica, as a request of Routed
//
// The error of a prompt is in the response, so that the others are kept. Only a call with a single prompt
// ends with its error. Another replica that sends a call on always gets a response.

// Routed implements kvconductorv1.ConductorServer. It returns a *reports if other replicas keep some of
// the prompts.
func (s *service) Routed(ctx context.Context, in *pb.RoutedRequest) (*pb.RoutedResponse, error) {
	r := &reports{in: in, out: new(pb.RoutedResponse), single: len(in.Prompts) == 1 && !isCarried(ctx)}
	if err := s.keepReports(ctx, r); err != nil {
		return nil, err
	}
	if len(r.parts) > 0 {
		return nil, r
	}
	return r.out, nil
}

// TakeBack implements kvconductorv1.ConductorServer.
func (s *service) TakeBack(ctx context.Context, in *pb.TakeBackRequest) (*pb.TakeBackResponse, error) {
	return new(pb.TakeBackResponse), access.ViewOf(ctx, s.server.opts.Conductor).TakeBack(in.TenantId, in.RequestId)
}

// reports are the prompts of one request. They are an error, so that the slot of the request is given back
// before other replicas are asked.
type reports struct {
	in     *pb.RoutedRequest
	out    *pb.RoutedResponse
	parts  forward.Parts // of other replicas
	single bool          // the error of the prompt is that of the call
}

func (*reports) Error() string { return "other replicas keep parts of the request" }

// keepReports keeps the prompts that this replica answers for. Its error is about the request as a whole.
func (s *service) keepReports(ctx context.Context, r *reports) error {
	if n := len(r.in.Prompts); n > body.MaxItems {
		return &invalid.FieldError{
			Field: "prompts", Index: body.MaxItems, Reason: "out_of_range",
			Message: fmt.Sprintf("prompts has %d elements, at most %d are allowed", n, body.MaxItems),
		}
	}
	total := 0
	for _, p := range r.in.Prompts {
		total += len(p.GetTokens().GetIds()) + len(p.GetHashes().GetValues())
	}
	if total > s.server.opts.MaxTokens && len(r.in.Prompts) > 1 {
		return invalid.Field("prompts", "out_of_range", "prompts have %d tokens and hashes together, limits.max_tokens allows %d",
			total, s.server.opts.MaxTokens)
	}
	view := access.ViewOf(ctx, s.server.opts.Conductor)
	var unsynced server.Unsynced // of all prompts
	for i, p := range r.in.Prompts {
		if err := ctx.Err(); err != nil {
			return err
		}
		of, err := s.keepReport(view, p)
		var unserved *conductor.UnservedError
		switch {
		case errors.As(err, &unserved) && s.server.opts.Forward == nil:
			return err // as a whole: the sender asks another replica
		case unserved != nil && len(unserved.Serving) > 0:
			r.parts.Add(i, unserved)
		case err != nil && unserved == nil && r.single:
			return statusOfError(errorOf(err))
		case err != nil && r.single:
			return err
		case err != nil:
			r.addError(i, errorOf(err))
		default:
			r.out.Kept++
			unsynced.Add(of)
		}
	}
	r.warn(unsynced.Warnings())
	return nil
}

// keepReport keeps one prompt.
func (s *service) keepReport(view conductor.View, in *pb.RoutedPrompt) ([]status.SourceState, error) {
	r := match.Routed{
		Target: in.InstanceId, Rank: match.AnyRank, TTL: time.Duration(in.TtlMs) * time.Millisecond, RequestID: in.RequestId,
		AnswerID: in.AnswerId,
	}
	if in.DpRank != nil {
		if *in.DpRank > math.MaxInt32 {
			return nil, invalid.Field("dp_rank", "out_of_range", "dp_rank must be at most %d, got %d", math.MaxInt32, *in.DpRank)
		}
		r.Rank = int(*in.DpRank)
	}
	if in.AnswerId != "" {
		if in.Prompt != nil {
			return nil, invalid.Field("prompt", "conflict", "answer_id and a prompt are both given")
		}
		r.Tenant = in.TenantId
		return view.Routed(&r)
	}
	prompt := &pb.QueryRequest{
		TenantId: in.TenantId, Model: in.Model, BlockSize: in.BlockSize, LoraName: in.LoraName, CacheSalt: in.CacheSalt,
	}
	switch p := in.Prompt.(type) {
	case *pb.RoutedPrompt_Tokens:
		prompt.Prompt = &pb.QueryRequest_Tokens{Tokens: p.Tokens}
	case *pb.RoutedPrompt_Hashes:
		prompt.Prompt = &pb.QueryRequest_Hashes{Hashes: p.Hashes}
	}
	q, err := s.readQuery(prompt)
	if err != nil {
		return nil, err
	}
	r.Query = q
	return view.Routed(&r)
}

func (r *reports) addError(prompt int, e *pb.Error) {
	r.out.Errors = append(r.out.Errors, &pb.RoutedError{Prompt: uint32(prompt), Error: e})
}

// warn adds warnings that are not there yet.
func (r *reports) warn(all []string) {
	for _, w := range all {
		if !slices.Contains(r.out.Warnings, w) {
			r.out.Warnings = append(r.out.Warnings, w)
		}
	}
}

// tellOthers lets other replicas keep their prompts, all at once. A part that fails costs its prompts alone.
// The error is that of a single prompt.
func (s *Server) tellOthers(ctx context.Context, r *reports, room *kept) error {
	type answer struct {
		at  []int
		out pb.RoutedResponse
		err error
	}
	answers := make(chan *answer, len(r.parts))
	r.parts.Ask(func(p *forward.Part) {
		a, in := &answer{at: p.At}, new(pb.RoutedRequest)
		for _, i := range p.At {
			in.Prompts = append(in.Prompts, r.in.Prompts[i])
		}
		text, err := s.carryOne(ctx, pb.Conductor_Routed_FullMethodName, in, p.To, room)
		if err == nil && proto.Unmarshal(text, &a.out) != nil {
			err = fmt.Errorf("%w: its answer cannot be read", forward.ErrReplicas)
		}
		a.err = err
		answers <- a
	})
	close(answers)
	for a := range answers {
		if a.err != nil {
			if r.single {
				return a.err
			}
			for _, i := range a.at {
				r.addError(i, errorOf(a.err))
			}
			continue
		}
		r.out.Kept += a.out.Kept
		for _, e := range a.out.Errors {
			if int(e.Prompt) >= len(a.at) {
				continue
			}
			if r.single {
				return statusOfError(e.Error)
			}
			r.addError(a.at[e.Prompt], e.Error)
		}
		r.warn(a.out.Warnings)
	}
	slices.SortFunc(r.out.Errors, func(a, b *pb.RoutedError) int { return cmp.Compare(a.Prompt, b.Prompt) })
	return nil
}

// RoutedStream implements kvconductorv1.ConductorServer. Requests are done one after another: the next one
// waits in the transport, which holds the client back.
func (s *service) RoutedStream(stream grpc.BidiStreamingServer[pb.RoutedRequest, pb.RoutedResponse]) error {
	ctx := stream.Context()
	caller := access.CallerOf(ctx)
	flow := caller.Flow().Name
	if err := s.server.opts.Watches.countCall(flow); err != nil {
		return err
	}
	defer s.server.opts.Watches.endCall(flow)
	turns, requests := make(chan struct{}, 1), make(chan streamed, 1) // there is room: of both at most one is under way
	defer close(turns)
	go receive(stream, turns, requests)
	for n := uint64(1); ; n++ {
		turns <- struct{}{}
		var next streamed
		select {
		case next = <-requests:
		case <-s.server.stopping:
			return errStopping
		}
		if next.err == io.EOF {
			return nil
		}
		if next.err != nil {
			return next.err
		}
		if err := caller.Recheck(); err != nil {
			return err
		}
		out, err := s.keepStreamed(ctx, caller, next.in, n == 1)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			out = &pb.RoutedResponse{Error: errorOf(err)}
		}
		if !next.in.Acknowledge && out.Error == nil && len(out.Errors) == 0 && len(out.Warnings) == 0 {
			continue
		}
		out.Request = n
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// streamed is a request of a stream, or how the stream ends.
type streamed struct {
	in  *pb.RoutedRequest
	err error
}

// receive passes a request of a stream on for each turn, or how the stream ends. A handler cannot wait for its client and for the
// end of its server at once. Recv ends the call at the first fault, also if the response to the request before is still to be sent,
// so it waits for that.
func receive(stream grpc.BidiStreamingServer[pb.RoutedRequest, pb.RoutedResponse], turns <-chan struct{}, to chan<- streamed) {
	for range turns {
		in, err := stream.Recv() // it returns when the client is gone, or the handler has returned
		to <- streamed{in, err}
	}
}

// keepStreamed does what unary does for a request of a stream. The limits of the client have counted the
// first one as its call. The error is about the request as a whole.
func (s *service) keepStreamed(ctx context.Context, caller *access.Caller, in *pb.RoutedRequest, first bool) (*pb.RoutedResponse, error) {
	if !first {
		if err := caller.CountMessage(); err != nil {
			return nil, err
		}
	}
	held, err := s.server.reserve(caller, in)
	if err != nil {
		return nil, err
	}
	defer held()
	r := &reports{in: in, out: new(pb.RoutedResponse)}
	err = s.server.runInSlot(ctx, caller.Flow(), func() error { return s.keepReports(ctx, r) })
	if err == nil && len(r.parts) > 0 {
		room := s.server.keepMemory(ctx)
		defer room.releaseMemory()
		err = s.server.tellOthers(ctx, r, room)
	}
	return r.out, err
}
