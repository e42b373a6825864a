// Package smg answers what gateways of smg ask a shared index for each request that they route:
// radix_index.RadixIndex, over gRPC. The service is experimental, as the peer's is.
//
//	smg --content hashes--> Subscribe --conductor.View.Holders--> URLs of workers
//	smg --placements------> Publish  ---------------------------> acknowledged, not used
//
// A gateway hashes blocks as Dynamo's clients do. The answer is that of rule SMG-1 in
// docs/semantics.md. Engines tell Conductor what they hold, so placements add nothing.
package smg

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "kvconductor/api/radixindex/v1"
	"kvconductor/conductor"
	"kvconductor/conductor/rpc"
)

// localHashes is the scheme of content hashes: XXH3-64 with seed 1337. Gateways may leave it out.
const localHashes = 1

// Config configures the service.
type Config struct {
	// MaxTokens bounds the hashes of one query (limits.max_tokens).
	MaxTokens int
}

// Index is the service.
type Index struct {
	pb.UnimplementedRadixIndexServer
	server *rpc.Server
	cfg    Config
}

// Register adds the service to a server.
func Register(s *rpc.Server, cfg Config) {
	s.Register(&pb.RadixIndex_ServiceDesc, &Index{server: s, cfg: cfg}, codes.Internal)
}

// Subscribe implements radixindexv1.RadixIndexServer. A query that is refused has an answer without
// scores, upon which a gateway chooses by load.
func (x *Index) Subscribe(stream grpc.BidiStreamingServer[pb.Query, pb.Match]) error {
	return rpc.Exchange(x.server, stream, x.match, func(in *pb.Query) *pb.Match { return &pb.Match{QueryId: in.QueryId} })
}

// Publish implements radixindexv1.RadixIndexServer.
func (x *Index) Publish(stream grpc.BidiStreamingServer[pb.Update, pb.PublishAck]) error {
	return rpc.Exchange(x.server, stream, func(_ conductor.View, in *pb.Update) (*pb.PublishAck, error) { return ack(in), nil }, ack)
}

// ack returns the acknowledgement of an update.
func ack(in *pb.Update) *pb.PublishAck {
	return &pb.PublishAck{Holder: in.Holder, Epoch: in.Epoch, AppliedSeq: in.Seq}
}

// match answers a query.
func (x *Index) match(view conductor.View, in *pb.Query) (*pb.Match, error) {
	space := in.GetKeyspace()
	switch kind := space.GetSymbolKind(); kind {
	case pb.SymbolKind_SYMBOL_KIND_UNSPECIFIED, pb.SymbolKind_SYMBOL_KIND_TOKENS:
	case pb.SymbolKind_SYMBOL_KIND_BYTES:
		// Of a request in raw text, on the stream of those in tokens: blocks of engines have no bytes.
		return &pb.Match{QueryId: in.QueryId}, nil
	default:
		return nil, status.Errorf(codes.FailedPrecondition, "keyspace.symbol_kind: must be TOKENS or BYTES, got %s", kind)
	}
	if scheme := space.GetHashScheme(); scheme != 0 && scheme != localHashes {
		return nil, status.Errorf(codes.FailedPrecondition, "keyspace.hash_scheme: the index has hashes of scheme %d, got %d", localHashes, scheme)
	}
	if n := len(in.ContentHashes); n > x.cfg.MaxTokens {
		return nil, status.Errorf(codes.InvalidArgument, "content_hashes[%d]: limits.max_tokens allows %d hashes, got %d", x.cfg.MaxTokens, x.cfg.MaxTokens, n)
	}
	if err := view.ServesModel(space.GetModel()); err != nil {
		return nil, err
	}
	holders, err := view.Holders(space.GetModel(), int(space.GetBlockSize()), in.ContentHashes)
	if err != nil {
		return nil, err
	}
	out := &pb.Match{QueryId: in.QueryId, Scores: make([]*pb.HolderScore, len(holders))}
	for i, h := range holders {
		matched := uint32(h.Blocks)
		out.Scores[i] = &pb.HolderScore{
			Holder: h.Address, MatchedBlocks: matched, TotalBlocks: uint64(h.Held), EventFed: true,
			Intervals: []*pb.Interval{{End: matched}},
		}
	}
	return out, nil
}
