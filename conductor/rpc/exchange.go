package rpc

import (
	"context"
	"errors"
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kvconductor/conductor"
	"kvconductor/conductor/access"
)

// Exchange answers the messages of a long call one by one, in the order of their arrival. It counts
// as a watch, and each message as a request of the client: with memory, and a place among all
// queries. Exchange does not read a message until the transport has taken the answer before. A client
// that reads no answers costs one, and what the windows of the transport hold.
//
// refuse makes the answer to a message that is beyond a limit, that no replica answers, or for which
// answer returns INVALID_ARGUMENT. Another error of answer ends the call.
func Exchange[In, Out any](s *Server, stream grpc.BidiStreamingServer[In, Out], answer func(conductor.View, *In) (*Out, error), refuse func(*In) *Out) error {
	ctx := stream.Context()
	caller := access.CallerOf(ctx)
	flow := caller.Flow().Name
	if err := s.opts.Watches.enter(flow); err != nil {
		return err
	}
	defer s.opts.Watches.leave(flow)
	method, _ := grpc.MethodFromServerStream(stream)
	counts := s.opts.Metrics.messages.MustCurryWith(prometheus.Labels{"rpc": method})

	arrived, ended, answered := make(chan *In), make(chan error, 1), make(chan struct{}, 1)
	go func() { // until the call ends
		for {
			in, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case arrived <- in:
			case <-ctx.Done():
				return
			}
			select {
			case <-answered:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case in := <-arrived:
			if err := caller.Recheck(); err != nil {
				return err
			}
			out, sent, err := exchange(ctx, s, method, caller, in, answer)
			code := status.Code(err)
			counts.WithLabelValues(code.String()).Inc()
			switch {
			case code == codes.OK:
			case code == codes.InvalidArgument, code == codes.ResourceExhausted, code == codes.Unavailable && s.opts.Forward != nil:
				out = refuse(in)
			default:
				return err
			}
			err = stream.Send(out)
			sent()
			if err != nil {
				return err
			}
			answered <- struct{}{}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.stopping:
			return errStopping
		}
	}
}

// exchange makes one answer within memory and a place, as unary does. sent gives the memory of the answer back. The error is a
// status.
func exchange[In, Out any](ctx context.Context, s *Server, method string, caller *access.Caller, in *In, answer func(conductor.View, *In) (*Out, error)) (out *Out, sent func(), err error) {
	sent = func() {}
	if err := caller.Count(); err != nil {
		return nil, sent, statusOf(err)
	}
	held, err := s.reserve(caller, any(in).(proto.Message))
	if err != nil {
		return nil, sent, err
	}
	defer held()
	flow := caller.Flow()
	err = s.placed(ctx, flow, func() (err error) {
		out, err = answer(caller.View(s.opts.Conductor), in)
		return err
	})
	var unserved *conductor.UnservedError
	if errors.As(err, &unserved) {
		room := s.keep(ctx)
		defer room.release()
		var text []byte
		text, err = s.carryOne(ctx, method, any(in).(proto.Message), unserved, room)
		out = new(Out)
		withBytes(any(out).(proto.Message), text)
	}
	if err != nil {
		return nil, sent, statusOf(err)
	}
	release, err := s.opts.Budget.Reserve(flow.Name, int64(proto.Size(any(out).(proto.Message))))
	if err != nil {
		return nil, sent, statusOf(err)
	}
	return out, release, nil
}
