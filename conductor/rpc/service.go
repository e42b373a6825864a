package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
)

// service answers the calls of conductor.proto.
type service struct {
	pb.UnimplementedConductorServer
	server *Server
}

// Query implements kvconductorv1.ConductorServer.
func (s *service) Query(ctx context.Context, in *pb.QueryRequest) (out *pb.QueryResponse, err error) {
	q, err := s.readQuery(in)
	if err != nil {
		return nil, err
	}
	err = access.ViewOf(ctx, s.server.opts.Conductor).Answer(&q, func(ans *match.Answer) { out = answerOf(ans) })
	return out, err
}

// Candidates implements kvconductorv1.ConductorServer.
func (s *service) Candidates(ctx context.Context, in *pb.QueryRequest) (out *pb.CandidatesResponse, err error) {
	q, err := s.readQueryWithin(in, 0)
	if err != nil {
		return nil, err
	}
	q.Detail, q.Keep = false, !isCarried(ctx) // else the report comes to the replica that was asked first, which does not have the answer
	err = conductor.Candidates(access.ViewOf(ctx, s.server.opts.Conductor), &q, func(ans *match.Answer, resolved registration.Meaning) {
		out = candidatesOf(ans, resolved)
	})
	return out, err
}

// QueryBatch implements kvconductorv1.ConductorServer. It returns a *split if other replicas answer
// some of the queries.
func (s *service) QueryBatch(ctx context.Context, in *pb.QueryBatchRequest) (*pb.QueryBatchResponse, error) {
	if n := len(in.Queries); n > body.MaxItems {
		return nil, &invalid.FieldError{
			Field: "queries", Index: body.MaxItems, Reason: "out_of_range",
			Message: fmt.Sprintf("queries has %d elements, at most %d are allowed", n, body.MaxItems),
		}
	}
	total := 0
	for _, q := range in.Queries {
		total += len(q.GetTokens().GetIds()) + len(q.GetHashes().GetValues())
	}
	if total > s.server.opts.MaxTokens {
		return nil, invalid.Field("queries", "out_of_range", "queries have %d tokens and hashes together, limits.max_tokens allows %d",
			total, s.server.opts.MaxTokens)
	}
	out := &pb.QueryBatchResponse{Answers: make([]*pb.Answer, len(in.Queries))}
	away := split{in: in, out: out}
	for i, q := range in.Queries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ans, err := s.Query(ctx, q)
		var unserved *conductor.UnservedError
		switch {
		case errors.As(err, &unserved) && s.server.opts.Forward == nil:
			return nil, err // as a whole: the sender asks another replica
		case unserved != nil && len(unserved.Serving) > 0:
			away.parts.Add(i, unserved)
		case err != nil:
			out.Answers[i] = &pb.Answer{Result: &pb.Answer_Error{Error: errorOf(err)}}
		default:
			out.Answers[i] = &pb.Answer{Result: &pb.Answer_Response{Response: ans}}
		}
	}
	if len(away.parts) > 0 {
		return nil, &away
	}
	return out, nil
}

// errorOf returns the error of one query of a batch, or of a report.
func errorOf(err error) *pb.Error {
	var (
		field   *invalid.FieldError
		unknown *match.UnknownNameError

		forgotten *match.UnknownAnswerError
	)
	switch {
	case errors.As(err, &field):
		e := &pb.Error{Message: field.Message, Reason: field.Reason, Field: protoField(field.Field)}
		if field.Index >= 0 {
			index := uint32(field.Index)
			e.Index = &index
		}
		return e
	case errors.As(err, &unknown):
		return &pb.Error{Message: err.Error(), Reason: unknown.Reason, Field: unknown.Field, Known: unknown.Known}
	case errors.As(err, &forgotten):
		return &pb.Error{Message: err.Error(), Reason: match.UnknownAnswerReason, Field: "answer_id"}
	case errors.Is(err, conductor.ErrForbidden):
		return &pb.Error{Message: err.Error(), Reason: "forbidden"}
	case errors.Is(err, forward.ErrReplicas):
		return &pb.Error{Message: err.Error(), Reason: "replicas"}
	case errors.As(err, new(*conductor.UnservedError)):
		return &pb.Error{Message: err.Error(), Reason: "unserved"}
	case errors.Is(err, server.ErrBusy):
		return &pb.Error{Message: err.Error(), Reason: "busy"}
	case errors.Is(err, body.ErrMemory):
		return &pb.Error{Message: err.Error(), Reason: body.NoMemory}
	case access.Refused(err) == http.StatusTooManyRequests:
		return &pb.Error{Message: err.Error(), Reason: "too_many_requests"}
	}
	return &pb.Error{Message: "internal error", Reason: "internal"}
}

// readQuery checks a request. The query has the lists of the request.
func (s *service) readQuery(in *pb.QueryRequest) (q match.Query, err error) {
	return s.readQueryWithin(in, 1)
}

// readQueryWithin is readQuery for a block size of at least leastBlockSize tokens, 0 if it may be left out.
func (s *service) readQueryWithin(in *pb.QueryRequest, leastBlockSize uint32) (q match.Query, err error) {
	q = match.Query{
		Tenant: in.TenantId, Model: in.Model, Lora: in.LoraName, Salt: in.CacheSalt, Instance: in.InstanceId, Detail: in.Detail,
		Expected: in.Expected,
	}
	if q.Model == "" {
		return q, invalid.Field("model", "missing", "model is required")
	}
	if in.BlockSize < leastBlockSize {
		return q, invalid.Field("block_size", "missing", "block_size is required, and at least 1")
	}
	for _, f := range [...]struct {
		name string
		from uint32
		to   *int
	}{{"block_size", in.BlockSize, &q.BlockSize}, {"min_matched", in.MinMatched, &q.MinMatched}, {"top", in.Top, &q.Top}} {
		if f.from > math.MaxInt32 {
			return q, invalid.Field(f.name, "out_of_range", "%s must be at most %d, got %d", f.name, math.MaxInt32, f.from)
		}
		*f.to = int(f.from)
	}
	switch p := in.Prompt.(type) {
	case *pb.QueryRequest_Tokens:
		q.Tokens = p.Tokens.GetIds()
		return q, s.checkLength("tokens.ids", len(q.Tokens))
	case *pb.QueryRequest_Hashes:
		q.Hashes, q.ByHash = p.Hashes.GetValues(), true
		var known bool
		if q.HashKind, known = hashKinds[p.Hashes.GetKind()]; !known {
			return q, invalid.Field("hashes.kind", "invalid_value", "hashes.kind has no value %d", int32(p.Hashes.GetKind()))
		}
		return q, s.checkLength("hashes.values", len(q.Hashes))
	}
	return q, invalid.Field("prompt", "missing", "tokens or hashes are required")
}

// hashKinds are what the hashes of a query may be.
var hashKinds = map[pb.HashKind]match.HashKind{
	pb.HashKind_HASH_KIND_UNSPECIFIED: match.CanonicalHashes,
	pb.HashKind_HASH_KIND_CANONICAL:   match.CanonicalHashes,
	pb.HashKind_HASH_KIND_ENGINE:      match.EngineHashes,
	pb.HashKind_HASH_KIND_VLLM:        match.VLLMHashes,
	pb.HashKind_HASH_KIND_SGLANG:      match.SGLangHashes,
}

// checkLength refuses a list that is too long, at its first element that is too many.
func (s *service) checkLength(name string, n int) error {
	if n <= s.server.opts.MaxTokens {
		return nil
	}
	return &invalid.FieldError{Field: name, Index: s.server.opts.MaxTokens, Reason: "out_of_range",
		Message: fmt.Sprintf("%s has %d elements, limits.max_tokens allows %d", name, n, s.server.opts.MaxTokens)}
}
