// Package rpc asks a Conductor over gRPC, for routers in Go. It is apart from package client, whose
// queries and rows it shares, so that clients over HTTP do not link gRPC.
//
//	c, err := rpc.New("conductor:50051")
//	rows, err := c.Query(ctx, client.Query{Model: "deepseek", BlockSize: 16, Tokens: tokens})
//
// A Client keeps one connection open and is safe for concurrent use. It asks again, at most twice,
// while the server is unavailable and the deadline of the context leaves time. Errors are those of
// gRPC: package status tells their codes. A stream of reports calls back only for requests with errors
// or warnings:
//
//	reports, err := c.RoutedStream(ctx, func(r rpc.Reply) { log.Print(r.Errors, r.Warnings) })
//	_, err = reports.Send(client.Routed{Query: q, Target: "engine", Rank: client.AnyRank})
//	err = reports.Close()
package rpc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/client"
)

// Client asks one server.
type Client struct {
	conn      *grpc.ClientConn
	conductor pb.ConductorClient
	token     func() (string, error)
	creds     credentials.TransportCredentials
}

// Option changes a Client that New makes.
type Option func(*Client)

// WithTokens asks for the bearer token of each call.
func WithTokens(token func() (string, error)) Option { return func(c *Client) { c.token = token } }

// WithTLS uses credentials of the transport; without them there is no TLS.
func WithTLS(creds credentials.TransportCredentials) Option {
	return func(c *Client) { c.creds = creds }
}

// retries lets gRPC repeat calls that found no server.
const retries = `{"methodConfig": [{"name": [{"service": "kvconductor.v1.Conductor"}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// maxAnswer bounds an answer in bytes.
const maxAnswer = 256 << 20

// New returns a client of the server at a target of gRPC, such as conductor:50051.
func New(target string, options ...Option) (*Client, error) {
	c := &Client{creds: insecure.NewCredentials()}
	for _, o := range options {
		o(c)
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(c.creds), grpc.WithDefaultServiceConfig(retries),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, err
	}
	c.conn, c.conductor = conn, pb.NewConductorClient(conn)
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// authorized adds the token to a call.
func (c *Client) authorized(ctx context.Context) (context.Context, error) {
	if c.token == nil {
		return ctx, nil
	}
	token, err := c.token()
	if err != nil {
		return nil, fmt.Errorf("no token: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}

// Query returns the rows of client.Client's Query.
func (c *Client) Query(ctx context.Context, q client.Query) (client.Rows, error) {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := c.conductor.Query(ctx, requestOf(q))
	if err != nil {
		return nil, err
	}
	return rowsOf(answer), nil
}

// Candidates returns the answer of client.Client's Candidates. A model or a block size that is not known is NOT_FOUND or
// INVALID_ARGUMENT, with a kvconductor.v1.Error as the first detail.
func (c *Client) Candidates(ctx context.Context, q client.Query) (client.Candidates, error) {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return client.Candidates{}, err
	}
	q.Detail = false
	answer, err := c.conductor.Candidates(ctx, requestOf(q))
	if err != nil {
		return client.Candidates{}, err
	}
	out := client.Candidates{ID: answer.Id, Model: answer.Model, Adapter: answer.LoraName, BlockSize: int(answer.BlockSize)}
	for i, row := range rowsOf(&pb.QueryResponse{Rows: answer.Rows, Truncated: answer.Truncated}) {
		out.Rows = append(out.Rows, client.Candidate{Row: row, Address: answer.Rows[i].Address, State: answer.Rows[i].State})
	}
	return out, nil
}

// QueryBatch asks up to 256 queries at once and returns as many answers, in order. Err of an answer
// is a *client.Error with the status that client.StatusOf has for its reason. Queries may have
// SeqHashes.
func (c *Client) QueryBatch(ctx context.Context, all []client.Query) ([]client.BatchAnswer, error) {
	ctx, err := c.authorized(ctx)
	if err != nil {
		return nil, err
	}
	in := &pb.QueryBatchRequest{Queries: make([]*pb.QueryRequest, len(all))}
	for i, q := range all {
		in.Queries[i] = requestOf(q)
	}
	answer, err := c.conductor.QueryBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	if len(answer.Answers) != len(all) {
		return nil, fmt.Errorf("conductor: %d answers to %d queries", len(answer.Answers), len(all))
	}
	out := make([]client.BatchAnswer, len(all))
	for i, a := range answer.Answers {
		if refused := a.GetError(); refused != nil {
			out[i].Err = errorOf(refused)
		} else {
			out[i].Rows = rowsOf(a.GetResponse())
		}
	}
	return out, nil
}

// errorOf returns the error of one query of a batch, or of one report.
func errorOf(refused *pb.Error) *client.Error {
	e := &client.Error{Status: client.StatusOf(refused.Reason), Message: refused.Message, Reason: refused.Reason, Field: refused.Field,
		Known: refused.Known}
	if refused.Index != nil {
		index := int(*refused.Index)
		e.Index = &index
	}
	return e
}

// Watch calls use with the rows of a query, and with those of the moment when they have changed, at
// most once an interval. It returns when the stream or ctx ends, or with the error of use.
func (c *Client) Watch(ctx context.Context, q client.Query, interval time.Duration, use func(client.Rows) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx, err := c.authorized(ctx)
	if err != nil {
		return err
	}
	stream, err := c.conductor.Watch(ctx, &pb.WatchRequest{Query: requestOf(q), IntervalMs: uint32(interval.Milliseconds())})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err == nil {
			err = use(rowsOf(answer))
		}
		if err != nil {
			return err
		}
	}
}

// kinds are the kinds of hashes. The server refuses any other.
var kinds = map[client.HashKind]pb.HashKind{
	client.Canonical: pb.HashKind_HASH_KIND_CANONICAL, client.Engine: pb.HashKind_HASH_KIND_ENGINE,
	client.VLLM: pb.HashKind_HASH_KIND_VLLM, client.SGLang: pb.HashKind_HASH_KIND_SGLANG,
}

func requestOf(q client.Query) *pb.QueryRequest {
	r := &pb.QueryRequest{
		TenantId: q.Tenant, Model: q.Model, BlockSize: uint32(q.BlockSize), LoraName: q.Adapter, CacheSalt: q.Salt,
		MinMatched: uint32(q.MinMatched), Top: uint32(q.Top), Detail: q.Detail, Expected: q.Expected,
	}
	if q.Instance != "" {
		r.InstanceId = &q.Instance
	}
	if q.SeqHashes != nil {
		r.Prompt = &pb.QueryRequest_Hashes{Hashes: hashesOf(q)}
	} else {
		r.Prompt = &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: q.Tokens}}
	}
	return r
}

func hashesOf(q client.Query) *pb.Hashes {
	kind, known := kinds[q.HashKind]
	if !known {
		kind = -1
	}
	return &pb.Hashes{Kind: kind, Values: q.SeqHashes}
}

// Rows returns rows as answers over HTTP have them.
func rowsOf(answer *pb.QueryResponse) (rows client.Rows) {
	for _, a := range answer.GetRows() {
		row := client.Row{
			Instance: a.InstanceId, Longest: int(a.LongestMatched), Media: make(map[string]int),
			Window: int(a.Window), Truncated: answer.Truncated, Expected: int(a.Expected), Approximate: a.Approximate,
			UpperBound: a.UpperBound,
		}
		for _, m := range a.Media {
			row.Media[m.Name] = int(m.Matched)
		}
		for _, r := range a.Ranks {
			row.Ranks = append(row.Ranks, client.Rank{Rank: int(r.Rank), GPU: int(r.Gpu), CPU: int(r.Cpu), Disk: int(r.Disk),
				Expected: int(r.Expected)})
		}
		for _, s := range a.Sources {
			if row.Detail == nil {
				row.Detail = make(map[int]client.Source)
			}
			row.Detail[int(s.Rank)] = sourceOf(s)
		}
		for _, p := range answer.Pools {
			if len(p.Serves) > 0 && !slices.Contains(p.Serves, row.Instance) {
				continue
			}
			if row.Pools == nil {
				row.Pools = make(map[string]client.Source)
			}
			row.Pools[p.Key] = sourceOf(p)
		}
		rows = append(rows, row)
	}
	return rows
}

func sourceOf(s *pb.Source) client.Source {
	out := client.Source{State: s.State, Reason: s.Reason, Epoch: s.Epoch, Watermark: s.Watermark}
	if s.AgeMs != nil {
		age := int64(*s.AgeMs)
		out.AgeMS = &age
	}
	return out
}
