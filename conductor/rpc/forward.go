package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
)

// Forwarder sends calls to other replicas, as Server.Carried takes them.
type Forwarder interface {
	// Carry sends a message to one replica after another until one answers, and passes its answer
	// to use. client is what access.Caller.Tell returns. It returns the error of use, or
	// forward.ErrReplicas.
	Carry(ctx context.Context, client, path, mediaType string, message []byte, to *conductor.UnservedError,
		use func(*http.Response, conductor.ReplicaAddress) error) error
}

// kept is the memory of the answers of other replicas to one call. Parts of a batch share it.
type kept struct {
	budget *server.Budget
	flow   string

	mu   sync.Mutex
	free []func() // guarded by mu
}

func (s *Server) keepMemory(ctx context.Context) *kept {
	return &kept{budget: s.opts.Budget, flow: access.CallerOf(ctx).Flow().Name}
}

// reserve takes memory for an answer. It returns body.ErrMemory.
func (k *kept) reserve(bytes int64) error {
	free, err := k.budget.Reserve(k.flow, bytes)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free = append(k.free, free)
	return nil
}

// releaseMemory gives all of it back.
func (k *kept) releaseMemory() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, free := range k.free {
		free()
	}
	k.free = nil
}

// carry sends a message to a replica that serves it, and passes the answers of that to take. reserve
// takes memory for an answer before it is read. begun is called before the first one; it may be nil. The error is a status of the
// call, ctx.Err(), or wraps to.
func (s *Server) carry(ctx context.Context, method string, message proto.Message, to *conductor.UnservedError,
	begun func(conductor.ReplicaAddress), reserve func(bytes int64) error, take func([]byte) error) error {
	if s.opts.Forward == nil || len(to.Serving) == 0 {
		return to
	}
	text, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	err = s.opts.Forward.Carry(ctx, access.CallerOf(ctx).Tell(), "/grpc"+method, carriedType, text, to,
		func(resp *http.Response, by conductor.ReplicaAddress) error {
			if kind := resp.Header.Get("Content-Type"); kind != carriedType {
				return fmt.Errorf("%w: replica %s answers %s", forward.ErrReplicas, by.ID, resp.Status)
			}
			if begun != nil {
				begun(by)
			}
			return readFrames(resp.Body, reserve, take)
		})
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, forward.ErrReplicas):
		return fmt.Errorf("%w: %w", to, err)
	}
	return err
}

// carryOne is carry for a method with one answer.
func (s *Server) carryOne(ctx context.Context, method string, message proto.Message, to *conductor.UnservedError,
	room *kept) (answer []byte, err error) {
	answers := 0
	err = s.carry(ctx, method, message, to, nil, room.reserve, func(text []byte) error {
		if answers++; answers > 1 {
			return fmt.Errorf("%w: more than one answer of one call", forward.ErrReplicas)
		}
		answer = text
		return nil
	})
	if err == nil && answers != 1 {
		err = fmt.Errorf("%w: %w: %d answers of one call", to, forward.ErrReplicas, answers)
	}
	return answer, err
}

// forward answers a call that others answer, if err says so. It returns the error that the client
// gets. The call has given its slot back: replicas that hold slots while they wait for each
// other's would wait for ever.
func (s *Server) forward(ctx context.Context, method string, message, answer any, err error) (any, error) {
	var (
		parts *split
		told  *reports
		to    *conductor.UnservedError
	)
	switch {
	case errors.As(err, &told):
		room := s.keepMemory(ctx)
		defer room.releaseMemory()
		return told.out, s.tellOthers(ctx, told, room)
	case errors.As(err, &parts):
		room := s.keepMemory(ctx)
		defer room.releaseMemory()
		s.joinAnswers(ctx, method, parts, room)
		return parts.out, nil
	case errors.As(err, &to):
		room := s.keepMemory(ctx)
		defer room.releaseMemory()
		text, err := s.carryOne(ctx, method, message.(proto.Message), to, room)
		return withBytes(new(pb.QueryResponse), text), err
	}
	return answer, err
}

// withBytes makes a message that is sent as some bytes, whatever its type is.
func withBytes[M proto.Message](m M, text []byte) M {
	m.ProtoReflect().SetUnknown(text)
	return m
}

// split is a batch that other replicas answer in parts. It is an error, so that the slot of the
// batch is given back before they are asked.
type split struct {
	in    *pb.QueryBatchRequest
	out   *pb.QueryBatchResponse // without the answers of others
	parts forward.Parts
}

func (*split) Error() string { return "parts of the batch are served elsewhere" }

// joinAnswers asks the other replicas, all at once. A part that fails costs its queries alone.
func (s *Server) joinAnswers(ctx context.Context, method string, batch *split, room *kept) {
	batch.parts.Ask(func(p *forward.Part) {
		var in pb.QueryBatchRequest
		for _, i := range p.At {
			in.Queries = append(in.Queries, batch.in.Queries[i])
		}
		answers, err := answersOf(s.carryOne(ctx, method, &in, p.To, room))
		if err == nil && len(answers) != len(p.At) {
			err = fmt.Errorf("%w: %d answers for %d queries", forward.ErrReplicas, len(answers), len(p.At))
		}
		for n, i := range p.At {
			if err != nil {
				batch.out.Answers[i] = &pb.Answer{Result: &pb.Answer_Error{Error: errorOf(err)}}
			} else {
				batch.out.Answers[i] = withBytes(new(pb.Answer), answers[n])
			}
		}
	})
}

// answersOf returns the answers in a QueryBatchResponse, each as it stands there.
func answersOf(text []byte, err error) (all [][]byte, _ error) {
	for err == nil && len(text) > 0 {
		number, kind, n := protowire.ConsumeTag(text)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			return nil, fmt.Errorf("%w: its answer cannot be read", forward.ErrReplicas)
		}
		answer, m := protowire.ConsumeBytes(text[n:])
		if m < 0 {
			return nil, fmt.Errorf("%w: its answer cannot be read: %w", forward.ErrReplicas, protowire.ParseError(m))
		}
		all, text = append(all, answer), text[n+m:]
	}
	return all, err
}
