package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	indexerpb "example.com/conductor/api/kvindexer/v1"
)

// isGRPC reports whether a codec is of gRPC.
func isGRPC(codec string) bool { return strings.HasPrefix(codec, "grpc-") }

// methods of the codecs.
var methods = map[string]string{
	grpcTokens: pb.Conductor_Query_FullMethodName, grpcHashes: pb.Conductor_Query_FullMethodName,
	grpcRouter: indexerpb.KVIndexer_MatchExternalKvPrefix_FullMethodName,
}

// encodeMessage encodes a prompt.
func (l *Load) encodeMessage(codec string, tokens []uint32, hashes []uint64) ([]byte, error) {
	in := &pb.QueryRequest{Model: model, BlockSize: uint32(l.BlockSize)}
	switch codec {
	case grpcTokens:
		in.Prompt = &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: tokens}}
	case grpcHashes:
		in.Prompt = &pb.QueryRequest_Hashes{Hashes: &pb.Hashes{Kind: pb.HashKind_HASH_KIND_ENGINE, Values: hashes}}
	default:
		signed := make([]int64, len(hashes))
		for i, h := range hashes {
			signed[i] = int64(h)
		}
		return proto.Marshal(&indexerpb.MatchExternalKvPrefixRequest{Hashes: signed})
	}
	return proto.Marshal(in)
}

// grpcAnswer reads an answer. Instances that a router is not told of have none.
func (l *Load) grpcAnswer(codec string, body []byte) (answer, error) {
	got := make(answer, l.Workers)
	set := func(name string, tokens uint32) {
		row := got[name]
		row.Longest = int(tokens)
		got[name] = row
	}
	if codec != grpcRouter {
		var out pb.QueryResponse
		if err := proto.Unmarshal(body, &out); err != nil {
			return nil, fmt.Errorf("an answer is no message: %w", err)
		}
		for _, row := range out.Rows {
			set(row.InstanceId, row.LongestMatched)
		}
		return got, nil
	}
	var out indexerpb.MatchExternalKvPrefixResponse
	if err := proto.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("an answer is no message: %w", err)
	}
	for i := range l.Workers {
		set(instanceName(i), 0)
	}
	for _, m := range out.Matches {
		set(m.WorkerAddress, m.MatchedPrefixBlocks*uint32(l.BlockSize))
	}
	return got, nil
}

// caller is one connection of gRPC. Messages are encoded before they are sent.
type caller struct {
	conn   *grpc.ClientConn
	method string
	answer []byte
}

func dialGRPC(address, codec string) (asker, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encoded{})))
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return &caller{conn: conn, method: methods[codec]}, nil
}

func (c *caller) close() { c.conn.Close() }

func (c *caller) sendRequest(r *request) (status int, body []byte, err error) {
	if err := c.conn.Invoke(context.Background(), c.method, &r.body, &c.answer); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, c.answer, nil
}

// encoded is the codec of messages that are encoded.
type encoded struct{}

// Marshal implements encoding.CodecV2.
func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	text, ok := v.(*[]byte)
	if !ok {
		return nil, errors.New("the message is not encoded")
	}
	return mem.BufferSlice{mem.SliceBuffer(*text)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	into := v.(*[]byte)
	*into = append((*into)[:0], data.Materialize()...)
	return nil
}

// Name implements encoding.CodecV2.
func (encoded) Name() string { return "proto" }
