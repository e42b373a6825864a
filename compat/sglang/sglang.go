// Package sglang answers what sgl-router asks an external KV indexer for each request that it
// routes: kv_indexer.v1.KVIndexer, over gRPC.
//
//	sgl-router --page hashes--> MatchExternalKvPrefix --conductor.View.Workers--> URLs of workers
//
// The router hashes a prompt as SGLang does, without adapter and salt, and knows its workers by
// their URLs. The answer is that of rule SGLANG-1 in docs/semantics.md.
//
// To the router each code but UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, RESOURCE_EXHAUSTED and
// OUT_OF_RANGE is a rejection of its request, which its user sees. A query that it sends has no
// other, unless its credentials are wrong.
package sglang

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvindexer/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
)

// Crash is the code for a broken invariant: the router falls back to load.
const Crash = codes.Unavailable

// Desc describes the service.
var Desc = &pb.KVIndexer_ServiceDesc

// Config configures the service.
type Config struct {
	Conductor *conductor.Conductor
	// MaxTokens bounds the hashes of one query (limits.max_tokens).
	MaxTokens int
	// Model is the model that the router serves; "" is all.
	Model string
}

// Indexer is the service.
type Indexer struct {
	pb.UnimplementedKVIndexerServer
	cfg Config
}

// New returns the service.
func New(cfg Config) *Indexer { return &Indexer{cfg: cfg} }

// MatchExternalKvPrefix implements kvindexerv1.KVIndexerServer.
func (x *Indexer) MatchExternalKvPrefix(ctx context.Context, in *pb.MatchExternalKvPrefixRequest) (*pb.MatchExternalKvPrefixResponse,
	error) {
	signed := in.Hashes
	if most := int(in.MaxBlocks); most > 0 {
		signed = signed[:min(most, len(signed))]
	}
	switch {
	case len(in.Hashes) == 0:
		return nil, status.Error(codes.InvalidArgument, "hashes: there is none")
	case len(signed) > x.cfg.MaxTokens:
		return nil, status.Errorf(codes.OutOfRange, "hashes[%d]: limits.max_tokens allows %d hashes, got %d", x.cfg.MaxTokens,
			x.cfg.MaxTokens, len(signed))
	}
	hashes := make([]uint64, len(signed))
	for i, h := range signed {
		hashes[i] = uint64(h)
	}
	view := access.ViewOf(ctx, x.cfg.Conductor)
	if err := view.ServesModel(x.cfg.Model); err != nil {
		return nil, err // UNAVAILABLE, unless another replica answers
	}
	workers := view.Workers(x.cfg.Model, hashes)
	out := &pb.MatchExternalKvPrefixResponse{BlocksRead: 1} // the first one, at least
	if len(workers) == 0 {
		return out, nil
	}
	out.BestPrefixBlocks, out.BlocksRead = uint32(workers[0].Blocks), uint32(len(hashes))
	out.Matches = make([]*pb.ExternalKvPrefixMatch, len(workers))
	for i, w := range workers {
		out.Matches[i] = &pb.ExternalKvPrefixMatch{WorkerAddress: w.Address, MatchedPrefixBlocks: uint32(w.Blocks), WorkerId: w.Instance}
	}
	return out, nil
}
