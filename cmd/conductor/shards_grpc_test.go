package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	indexerpb "example.com/conductor/api/kvindexer/v1"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// asBytes is a codec of messages that stay as they are.
type asBytes struct{}

func (asBytes) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (asBytes) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (asBytes) Name() string                       { return "proto" }

// rpcBytes returns the bytes of an answer.
func rpcBytes(ctx context.Context, conn *grpc.ClientConn, method string, in proto.Message) (string, error) {
	text, err := proto.Marshal(in)
	if err != nil {
		return "", err
	}
	var out []byte
	err = conn.Invoke(ctx, method, &text, &out, grpc.ForceCodec(asBytes{}))
	return string(out), err
}

// rpcQuery is shardQuery over gRPC.
func rpcQuery(i int) *pb.QueryRequest {
	return &pb.QueryRequest{Model: fmt.Sprintf("m%d", i), BlockSize: recordedBlock,
		Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(shardModels + 1)}}}
}

// rpcTrue reports whether the bytes of an answer are those for model i.
func rpcTrue(text string, i int) bool {
	var out pb.QueryResponse
	if proto.Unmarshal([]byte(text), &out) != nil || len(out.Rows) == 0 {
		return false
	}
	return out.Rows[0].InstanceId == fmt.Sprintf("e%d", i) && out.Rows[0].LongestMatched == uint32((i+1)*recordedBlock)
}

// TestShardsAnswerOverGRPC makes every call at three replicas. One of them holds each shard: the
// others send the bytes that it sends.
func TestShardsAnswerOverGRPC(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 1, "sglang: {model: m0}\n")
	// Routers know workers by their URLs.
	post(t, f.replicas[0].url+"/register",
		fmt.Sprintf(`{"endpoint": %q, "replay_endpoint": %q, "type": "vLLM", "modelname": "m0", "instance_id": "http://w0:30000", `+
			`"block_size": %d, "dp_rank": 0}`,
			f.engines[0].Endpoint(), f.engines[0].ReplayEndpoint(), recordedBlock), 200)
	for _, p := range f.replicas {
		eventually(t, "the worker is not answered", func() (string, bool) {
			_, answer, _ := f.ask(p, "/query", shardQuery(0))
			return answer, strings.Contains(answer, fmt.Sprintf(`"http://w0:30000":{"longest_matched":%d,`, recordedBlock))
		})
	}
	f.rest(1, f.replicas...)
	ctx := inTime(t)
	calls := map[string]proto.Message{
		indexerpb.KVIndexer_MatchExternalKvPrefix_FullMethodName: &indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1, 2}},
		pb.Conductor_QueryBatch_FullMethodName:                   &pb.QueryBatchRequest{},
		pb.Conductor_Query_FullMethodName + " of a model that is unknown": &pb.QueryRequest{Model: "none", BlockSize: 16,
			Prompt: rpcQuery(0).Prompt},
	}
	for i := range shardModels {
		calls[fmt.Sprintf("%s of m%d", pb.Conductor_Query_FullMethodName, i)] = rpcQuery(i)
		batch := calls[pb.Conductor_QueryBatch_FullMethodName].(*pb.QueryBatchRequest)
		batch.Queries = append(batch.Queries, rpcQuery(i), &pb.QueryRequest{Model: "m1"})
	}
	for name, in := range calls {
		method, _, _ := strings.Cut(name, " ")
		first := ""
		for n, p := range f.replicas {
			text, err := rpcBytes(ctx, f.dial(p, ""), method, in)
			must.Succeed(t, err)
			if n == 0 {
				first = text
			}
			if text != first {
				t.Errorf("%s: replica %d answers %q, the first one %q", name, n, text, first)
			}
		}
		var batch pb.QueryBatchResponse
		var match indexerpb.MatchExternalKvPrefixResponse
		switch method {
		case pb.Conductor_QueryBatch_FullMethodName:
			must.Succeed(t, proto.Unmarshal([]byte(first), &batch))
			for i := range shardModels {
				text, err := proto.Marshal(batch.Answers[2*i].GetResponse())
				must.Succeed(t, err)
				if i > 0 && !rpcTrue(string(text), i) || batch.Answers[2*i+1].GetError().GetField() != "block_size" {
					t.Errorf("batch, m%d: %v", i, batch.Answers[2*i:2*i+2])
				}
			}
		case indexerpb.KVIndexer_MatchExternalKvPrefix_FullMethodName:
			must.Succeed(t, proto.Unmarshal([]byte(first), &match))
			if got := routerAnswer(&match); got != `[["http://w0:30000",1,"http://w0:30000"]] 1 2` {
				t.Errorf("sgl-router gets %s", got)
			}
		}
	}
	for n, p := range f.replicas {
		f.streams(ctx, p)
		for i := range shardModels {
			post(t, p.url+"/feedback", fmt.Sprintf(`{"instance_id": "e%d", "matched_tokens": 16, "cached_tokens": 16}`, i), 200)
			status, answer, _ := f.ask(p, "/feedback", map[string]any{"instance_id": fmt.Sprintf("e%d", i), "matched_tokens": 16,
				"cached_tokens": 16, "medium": "GPU"})
			if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"reports":%d,`, n+1)) {
				t.Errorf("report %d of e%d: %d %s", n+1, i, status, answer)
			}
		}
		if status, answer, _ := f.ask(p, "/feedback",
			map[string]any{"instance_id": "e99", "matched_tokens": 16, "cached_tokens": 16}); status != 404 {
			t.Errorf("a report of no instance: %d %s", status, answer)
		}
	}
}

// streams makes the long calls at a replica.
func (f *shardFleet) streams(ctx context.Context, p *process) {
	f.t.Helper()
	conn := f.dial(p, "")
	for i := range shardModels {
		watch, err := pb.NewConductorClient(conn).Watch(ctx, &pb.WatchRequest{Query: rpcQuery(i)})
		must.Succeed(f.t, err)
		out, err := watch.Recv()
		must.Succeed(f.t, err)
		text, err := proto.Marshal(out)
		must.Succeed(f.t, err)
		if !rpcTrue(string(text), i) {
			f.t.Errorf("a watch of m%d at %s: %v", i, p.url, out)
		}
	}
}

// TestShardsSurviveOverGRPC kills an owner of each shard. The next one answers at once, and watches
// go on.
func TestShardsSurviveOverGRPC(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 2, "")
	ctx := inTime(t)
	var watches []pb.Conductor_WatchClient
	for _, p := range f.replicas[1:] {
		for i := range shardModels {
			watch, err := pb.NewConductorClient(f.dial(p, "")).Watch(ctx, &pb.WatchRequest{Query: rpcQuery(i)})
			must.Succeed(t, err)
			if _, err := watch.Recv(); err != nil {
				t.Fatal(err)
			}
			watches = append(watches, watch)
		}
	}
	conns := []*grpc.ClientConn{f.dial(f.replicas[1], ""), f.dial(f.replicas[2], "")}
	must.Succeed(t, f.replicas[0].cmd.Process.Kill())
	for range 20 {
		for n, p := range f.replicas[1:] {
			for i := range shardModels {
				text, err := rpcBytes(ctx, conns[n], pb.Conductor_Query_FullMethodName, rpcQuery(i))
				if err != nil || !rpcTrue(text, i) {
					t.Fatalf("m%d at %s: %q %v", i, p.url, text, err)
				}
			}
		}
	}
	// An answer that comes before the engines lose their last blocks is that of the moment.
	defer f.drop()()
	for i, watch := range watches {
		i %= shardModels
		for {
			out, err := watch.Recv()
			if err != nil {
				t.Fatalf("a watch of m%d: %v", i, err)
			}
			if len(out.Rows) == 1 && out.Rows[0].LongestMatched == uint32(i*recordedBlock) {
				break
			}
		}
	}
}

// TestForgedCalls makes calls at replicas with credentials: roles and tenants hold, and what a client
// says of itself as replicas do has no effect.
func TestForgedCalls(t *testing.T) {
	t.Parallel()
	credentials := credentialsFile(t, "replica peer '*'", "any query '*'", "only-b query b", "default query default", "scraper metrics '*'")
	file := redistest.File(t, "replica\n")
	f := newShardFleet(t, 2, 1, "auth: {file: "+credentials+", loopback: [query, register, metrics, admin]}\npeer: {token_file: "+file+
		"}\n")
	from, to := f.away()
	told := func(tenants string, roles ...string) string {
		text, err := json.Marshal(map[string]any{"name": "x", "roles": roles, "tenants": strings.Fields(tenants)})
		must.Succeed(t, err)
		return string(text)
	}
	ctx := inTime(t)
	forged := metadata.AppendToOutgoingContext(ctx, "conductor-forwarded", "x", "conductor-client", told("default", "query"))
	for _, p := range []*process{from, to} {
		for token, want := range map[string]codes.Code{"any": codes.OK, "default": codes.OK, "only-b": codes.PermissionDenied,
			"scraper": codes.PermissionDenied, "stranger": codes.Unauthenticated} {
			for _, ctx := range []context.Context{ctx, forged} {
				_, err := rpcBytes(ctx, f.dial(p, token), pb.Conductor_Query_FullMethodName, rpcQuery(0))
				if grpcstatus.Code(err) != want {
					t.Errorf("as %s at %s: %v, want %s", token, p.url, err, want)
				}
			}
		}
	}
	query, err := proto.Marshal(rpcQuery(0))
	must.Succeed(t, err)
	check := func(p *process, token string, want int, header ...string) {
		t.Helper()
		status, answer, _ := f.askRaw(p, "/grpc"+pb.Conductor_Query_FullMethodName, query,
			append([]string{"Authorization", "Bearer " + token}, header...)...)
		if status != want {
			t.Errorf("as %s with %v: %d %q, want %d", token, header, status, answer, want)
		}
	}
	check(to, "any", 200)
	check(to, "only-b", 403, "Conductor-Forwarded", "x", "Conductor-Client", told("default", "query"))
	check(to, "scraper", 403, "Conductor-Forwarded", "x", "Conductor-Client", told("default", "query"))
	check(to, "replica", 403)
	check(to, "replica", 200, "Conductor-Forwarded", "x", "Conductor-Client", told("default", "query"))
	check(to, "replica", 403, "Conductor-Forwarded", "x", "Conductor-Client", told("b", "query"))
	check(to, "replica", 403, "Conductor-Forwarded", "x", "Conductor-Client", told("default", "metrics"))
	check(from, "any", 421)
	check(from, "replica", 421, "Conductor-Forwarded", "x", "Conductor-Client", told("default", "query"))
	report := map[string]any{"instance_id": "e0", "matched_tokens": 16, "cached_tokens": 16}
	for _, p := range []*process{from, to} {
		for token, want := range map[string]int{"any": 200, "default": 200, "only-b": 403, "scraper": 403} {
			if status, answer, _ := f.ask(p, "/feedback", report, "Authorization", "Bearer "+token, "Origin", p.url); status != want {
				t.Errorf("a report as %s: %d %s, want %d", token, status, answer, want)
			}
		}
	}
	if status, answer, _ := f.ask(from, "/feedback", report, "Authorization", "Bearer replica", "Conductor-Forwarded", "x",
		"Conductor-Client", told("default", "query")); status != 421 {
		t.Errorf("a report that was sent on: %d %s", status, answer)
	}
}
