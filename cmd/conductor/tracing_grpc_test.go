package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	indexerpb "example.com/conductor/api/kvindexer/v1"
	"example.com/conductor/internal/must"
)

// TestGRPCTraces makes each call of queries with the context of a caller, and holds what a collector
// and the log of slow queries get, as TestTraces and TestSlowQueries do for HTTP. Watches and health
// have no span.
func TestGRPCTraces(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	e := newRuledEngine(t, "10.0.0.7:30000", 0)
	p, address := grpcProcess(t, "tracing: {endpoint: "+to.URL+", sample: 0}\nlog: {slow_query: 1ns}\nshutdown: {drain: 0s}\nsources:\n"+
		explainSource(e, "SGLang", "m", ""))
	e.publish(ruledStored(0, 4))
	e.settled(p)

	ids := make([]uint32, 0, 4*recordedBlock)
	for _, id := range recordedTokens(4) {
		ids = append(ids, uint32(id))
	}
	conn := dialed(t, address, "", nil)
	client, indexer, health := pb.NewConductorClient(conn), indexerpb.NewKVIndexerClient(conn), grpc_health_v1.NewHealthClient(conn)
	question := func(model string) *pb.QueryRequest {
		return &pb.QueryRequest{Model: model, BlockSize: recordedBlock, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: ids}}}
	}
	const parent = "00f067aa0ba902b7"
	within := func(trace string, sampled int) context.Context {
		return metadata.AppendToOutgoingContext(inTime(t), "traceparent", fmt.Sprintf("00-%s-%s-%02d", trace, parent, sampled))
	}
	all := []string{"admit", "encode", "hash", "match", "parse", "read", "send"}
	var checks []func() // of what has arrived at the end
	for i, c := range []struct {
		call            func(context.Context) error
		method          string
		code            codes.Code
		model           string
		tokens, queries int64
		stages          []string
	}{
		{func(ctx context.Context) error { _, err := client.Query(ctx, question("m")); return err },
			"kvconductor.v1.Conductor/Query", codes.OK, "m", 4 * recordedBlock, 1, all},
		{func(ctx context.Context) error {
			_, err := client.QueryBatch(ctx, &pb.QueryBatchRequest{Queries: []*pb.QueryRequest{question("m"), question("m")}})
			return err
		}, "kvconductor.v1.Conductor/QueryBatch", codes.OK, "m", 8 * recordedBlock, 2, all},
		{func(ctx context.Context) error { _, err := client.Query(ctx, question("")); return err },
			"kvconductor.v1.Conductor/Query", codes.InvalidArgument, "", 0, 0, []string{"admit", "parse", "read", "send"}},
		{func(ctx context.Context) error {
			_, err := indexer.MatchExternalKvPrefix(ctx, &indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1, 2}})
			return err
		}, "kv_indexer.v1.KVIndexer/MatchExternalKvPrefix", codes.OK, "", 0, 1,
			[]string{"admit", "encode", "match", "parse", "read", "send"}},
	} {
		id := fmt.Sprintf("%031x%x", 0xabc, i+1)
		if err := c.call(within(id, 1)); grpcstatus.Code(err) != c.code {
			t.Fatalf("%s: %v, want %s", c.method, err, c.code)
		}
		c.call(within(fmt.Sprintf("%031x%x", 0xdef, i+1), 0)) // the caller did not sample this one
		checks = append(checks, func() {
			server, below := to.trace(id)
			if server == nil {
				t.Errorf("%s: no server span of the trace %s", c.method, id)
				return
			}
			if hex.EncodeToString(server.ParentSpanId) != parent || server.Name != c.method {
				t.Errorf("%s: %q below %x", c.method, server.Name, server.ParentSpanId)
			}
			if !slices.Equal(below, c.stages) {
				t.Errorf("%s: %v, want %v", c.method, below, c.stages)
			}
			got := make(map[string]any)
			for _, a := range server.Attributes {
				if got[a.Key] = a.Value.GetStringValue(); got[a.Key] == "" {
					got[a.Key] = a.Value.GetIntValue()
				}
			}
			service, method, _ := strings.Cut(c.method, "/")
			for key, want := range map[string]any{
				"conductor.tokens": c.tokens, "conductor.queries": c.queries,
				"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "rpc.grpc.status_code": int64(c.code),
			} {
				if got[key] != want {
					t.Errorf("%s: %s = %v, want %v", c.method, key, got[key], want)
				}
			}
			if c.model != "" && (got["conductor.model"] != c.model || got["conductor.tenant"] != "default") {
				t.Errorf("%s: %v", c.method, got)
			}
		})
	}
	_, err := health.Check(within(fmt.Sprintf("%032x", 0xdef1), 1), &grpc_health_v1.HealthCheckRequest{})
	must.Succeed(t, err)
	watch, err := client.Watch(within(fmt.Sprintf("%032x", 0xdef2), 1), &pb.WatchRequest{Query: question("m")})
	must.Succeed(t, err)
	_, err = watch.Recv()
	must.Succeed(t, err)

	open := openMetrics(t, p.url)
	for _, series := range []string{`conductor_query_seconds_bucket\{by="tokens",le="[^"]+"\}`,
		`conductor_query_seconds_bucket\{by="hashes",le="[^"]+"\}`, `conductor_grpc_request_seconds_bucket\{[^}]+\}`} {
		if !regexp.MustCompile(series + ` [0-9]+ # \{trace_id="0+abc[1-4]"\}`).MatchString(open) {
			t.Errorf("no exemplar of %s: %s", series, open)
		}
	}
	stop(t, p)
	for _, check := range checks {
		check()
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, s := range to.spans {
		if strings.Contains(hex.EncodeToString(s.TraceId), "def") {
			t.Errorf("%s was sent", s.Name)
		}
	}
	lines := make(map[string]int)
	for line := range strings.Lines(p.log()) {
		if !strings.Contains(line, "slow query") {
			continue
		}
		var slow struct {
			Route, Code string
			Stages      map[string]float64 `json:"stages_ms"`
		}
		decode(t, line, &slow)
		lines[slow.Route+" "+slow.Code]++
		if _, timed := slow.Stages["send"]; !timed {
			t.Errorf("no time of the stage send: %s", line)
		}
	}
	for _, want := range []string{"/kvconductor.v1.Conductor/Query OK", "/kvconductor.v1.Conductor/QueryBatch OK",
		"/kvconductor.v1.Conductor/Query InvalidArgument", "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix OK"} {
		if lines[want] != 2 {
			t.Errorf("%d lines of %q, want 2: %v", lines[want], want, lines)
		}
		delete(lines, want)
	}
	if len(lines) > 0 || bytes.Contains(to.raw.Bytes(), []byte("Health")) {
		t.Errorf("more than queries: %v", lines)
	}
}
