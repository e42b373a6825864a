package rpc

import (
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/conductor/bounds"
)

// We register every method as client-streaming, because grpc-go otherwise answers a unary call only after the whole message has
// arrived: nobody could tell its client earlier that a wire has refused the message.

// registerReceived registers a service whose messages are received by receiver. brief is about its long calls.
func (s *Server) registerReceived(desc *grpc.ServiceDesc, handler any, brief bool) {
	streams := *desc
	streams.Methods, streams.Streams = nil, nil
	for _, m := range desc.Methods {
		s.opts.Metrics.know("/"+desc.ServiceName+"/"+m.MethodName, methodKind{})
		streams.Streams = append(streams.Streams, grpc.StreamDesc{
			StreamName: m.MethodName, ClientStreams: true,
			Handler: func(handler any, stream grpc.ServerStream) error {
				in := receiver{ServerStream: stream, arrival: arrivalOf(stream.Context())}
				answer, err := m.Handler(handler, stream.Context(), in.RecvMsg, s.unary)
				if err != nil {
					return err
				}
				return stream.SendMsg(answer)
			},
		})
	}
	for _, m := range desc.Streams {
		method := "/" + desc.ServiceName + "/" + m.StreamName
		s.opts.Metrics.know(method, methodKind{stream: true, long: m.ClientStreams, brief: brief})
		info := &grpc.StreamServerInfo{FullMethod: method, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}
		streams.Streams = append(streams.Streams, grpc.StreamDesc{
			StreamName: m.StreamName, ServerStreams: m.ServerStreams, ClientStreams: true,
			Handler: func(handler any, stream grpc.ServerStream) error {
				in := &receiver{ServerStream: stream, arrival: arrivalOf(stream.Context()), long: m.ClientStreams, patience: s.opts.Idle}
				if brief {
					flow := bounds.Flow{Name: in.arrival.flow}
					if s.brief.TryEnter(flow) != nil {
						return errTooManyReflections
					}
					defer s.brief.Leave(flow)
				}
				return s.stream(handler, in, info, m.Handler)
			},
		})
	}
	s.grpc.RegisterService(&streams, handler)
}

// errTooManyReflections refuses a call beyond maxReflections, or a quarter of it for one client.
var errTooManyReflections = status.Error(codes.ResourceExhausted, "too many open calls of reflection")

// reflected is a server as the service of reflection registers itself.
type reflected struct{ server *Server }

// RegisterService implements grpc.ServiceRegistrar.
func (r reflected) RegisterService(desc *grpc.ServiceDesc, handler any) {
	r.server.registerReceived(desc, handler, true)
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (r reflected) GetServiceInfo() map[string]grpc.ServiceInfo {
	return r.server.grpc.GetServiceInfo()
}

// receiver receives the messages of a call, and holds both sides to what its wire has decided.
type receiver struct {
	grpc.ServerStream
	arrival  *arrival
	long     bool          // the client may send several messages
	patience time.Duration // for a message that the client shall take, 0 for any
}

// RecvMsg implements grpc.ServerStream. A method that takes one message gets it once the client has sent all.
func (r *receiver) RecvMsg(m any) error {
	if err := r.ServerStream.RecvMsg(m); err != nil {
		if why := r.arrival.whyRefused(); why != nil {
			return statusOf(why)
		}
		if err == io.EOF && !r.long {
			return status.Error(codes.Internal, errNoMessage.Error())
		}
		return err
	}
	ended, err := r.arrival.received(m.(proto.Message))
	if err != nil {
		return statusOf(err)
	}
	if r.long || ended {
		return nil
	}
	switch err := r.ServerStream.RecvMsg(new(emptypb.Empty)); err {
	case io.EOF:
		return nil
	case nil:
		return status.Error(codes.Internal, errMessages.Error())
	default:
		return err
	}
}

// SendMsg implements grpc.ServerStream. It ends the call of a client that takes no more messages.
func (r *receiver) SendMsg(m any) error {
	if r.patience > 0 {
		defer time.AfterFunc(r.patience, r.arrival.endUnread).Stop()
	}
	return r.ServerStream.SendMsg(m)
}
