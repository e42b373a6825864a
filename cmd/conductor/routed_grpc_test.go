package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	kv "example.com/conductor/client"
	kvrpc "example.com/conductor/client/rpc"
	"example.com/conductor/internal/must"
)

// reportFor says that a recorded prompt of n blocks goes to an instance.
func reportFor(tenant, instance string, n int) *pb.RoutedPrompt {
	return &pb.RoutedPrompt{TenantId: tenant, Model: "m", BlockSize: recordedBlock, InstanceId: instance, TtlMs: 600_000,
		Prompt: &pb.RoutedPrompt_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(n)}}}
}

// TestReportsOverGRPC reports prompts of a real engine until its events confirm them, as clients of two tenants.
func TestReportsOverGRPC(t *testing.T) {
	t.Parallel()
	a, b := newRuledEngine(t, "e-a", 0), newRuledEngine(t, "e-b", 0)
	file := credentialsFile(t, "a query a", "b query b", "all query '*'")
	source := "  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: '%s', tenant_id: %s, block_size: 16}\n"
	_, address := grpcProcess(t, "auth: {file: "+file+"}\nsources:\n"+fmt.Sprintf(source, a.pub.Addr(), a.name, "a")+
		fmt.Sprintf(source, b.pub.Addr(), b.name, "b"))
	ctx := inTime(t)
	of := func(token string) pb.ConductorClient {
		return pb.NewConductorClient(dialed(t, address, token, nil))
	}
	row := func(tenant string) string {
		out, err := of("all").Query(ctx, &pb.QueryRequest{TenantId: tenant, Model: "m", BlockSize: recordedBlock, Expected: true,
			Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(8)}}})
		must.Succeed(t, err)
		return fmt.Sprintf("%s %d/%d", out.Rows[0].InstanceId, out.Rows[0].LongestMatched/recordedBlock, out.Rows[0].Expected/recordedBlock)
	}
	a.publish(ruledStored(0, 1))
	eventually(t, "the engine never settled", func() (string, bool) { return row("a"), row("a") == "e-a 1/1" })
	_, err := of("a").Routed(ctx, &pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportFor("a", "e-a", 6)}})
	must.Succeed(t, err)
	if got := row("a"); got != "e-a 1/6" {
		t.Error(got)
	}
	a.publish(ruledStored(1, 4))
	eventually(t, "events confirm nothing", func() (string, bool) { return row("a"), row("a") == "e-a 4/6" })

	// Another tenant's rows stay as they are, and look as if there were none.
	for _, target := range []string{"e-b", "none"} {
		if _, err := of("a").Routed(ctx, &pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportFor("b", target, 6)}}); grpcstatus.Code(err) !=
			codes.PermissionDenied {
			t.Errorf("a report for %s of another tenant: %v", target, err)
		}
	}
	stream, err := of("a").RoutedStream(ctx)
	must.Succeed(t, err)
	must.Succeed(t, stream.Send(&pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportFor("b", "e-b", 6), reportFor("a", "e-a", 7)}}))
	out, err := stream.Recv()
	if err != nil || out.Kept != 1 || out.Errors[0].Error.Reason != "forbidden" || len(out.Errors[0].Error.Known) > 0 {
		t.Errorf("%v %v", out, err)
	}
	named := reportFor("b", "e-b", 3)
	named.RequestId = "r"
	_, err = of("b").Routed(ctx, &pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{named}})
	must.Succeed(t, err)
	if _, err := of("a").TakeBack(ctx, &pb.TakeBackRequest{TenantId: "b", RequestId: "r"}); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("a report of another tenant is taken back: %v", err)
	}
	if _, err := of("a").TakeBack(ctx, &pb.TakeBackRequest{TenantId: "a", RequestId: "r"}); grpcstatus.Code(err) != codes.NotFound {
		t.Errorf("an id of another tenant: %v", err)
	}
	if a, b := row("a"), row("b"); a != "e-a 4/7" || b != "e-b 0/3" {
		t.Errorf("%s, %s", a, b)
	}
}

// TestReportsAreBounded holds that a client which sends too many requests in a stream hears of it and goes on
// later, and that streams count as long calls.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	_, address := grpcProcess(t, "limits: {client_requests: 8}\n# fixed: {watches: 4}\nauth: {file: "+credentialsFile(t, "a query a")+"}\n")
	ctx := inTime(t)
	client := pb.NewConductorClient(dialed(t, address, "a", nil))
	stream, err := client.RoutedStream(ctx)
	must.Succeed(t, err)
	// wave sends requests at once and counts what became of them.
	wave := func(n int) map[string]int {
		for range n {
			must.Succeed(t, stream.Send(&pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportFor("a", "e", 1)}}))
		}
		seen := make(map[string]int)
		for range n {
			out, err := stream.Recv()
			must.Succeed(t, err)
			if out.Error != nil {
				seen[out.Error.Reason]++
			} else {
				seen[out.Errors[0].Error.Reason]++
			}
		}
		return seen
	}
	first := wave(16)
	for first["too_many_requests"] == 0 { // a slow machine gets more
		first = wave(16)
	}
	if len(first) > 2 || first["too_many_requests"]+first["not_found"] != 16 {
		t.Errorf("%v", first)
	}
	eventually(t, "the limit grants nothing again", func() (string, bool) { return "", wave(1)["not_found"] == 1 })
	second, err := client.RoutedStream(ctx)
	must.Succeed(t, err)
	if _, err := second.Recv(); grpcstatus.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "one client has at most 1") && !strings.Contains(err.Error(), "client_requests") {
		t.Errorf("a second stream: %v", err)
	}
}

// TestReportsEndWithCredentials holds that a stream ends with its next request once its token is withdrawn.
func TestReportsEndWithCredentials(t *testing.T) {
	t.Parallel()
	file := credentialsFile(t, "a query a")
	p, address := grpcProcess(t, "auth: {file: "+file+"}\n")
	stream, err := pb.NewConductorClient(dialed(t, address, "a", nil)).RoutedStream(inTime(t))
	must.Succeed(t, err)
	empty := &pb.RoutedRequest{Acknowledge: true}
	must.Succeed(t, stream.Send(empty))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(credentialsFile(t, "b query a"))
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(file, text, 0o600))
	eventually(t, "the new file is not read", func() (string, bool) {
		log := p.log()
		return log, strings.Contains(log, "credentials replaced")
	})
	must.Succeed(t, stream.Send(empty))
	if out, err := stream.Recv(); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("%v %v", out, err)
	}
}

// TestReportsOfClients makes reports with both Go clients, and in the stream of the one over gRPC.
func TestReportsOfClients(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	p, address := grpcProcess(t, fmt.Sprintf("sources:\n  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: engine, "+
		"block_size: 16}\n", engine.pub.Addr()))
	engine.publish(ruledStored(0, 1))
	engine.settled(p)
	ctx := inTime(t)
	over, err := kv.New(p.url)
	must.Succeed(t, err)
	packed, err := kv.New(p.url, kv.WithMsgpack())
	must.Succeed(t, err)
	rpc, err := kvrpc.New(address)
	must.Succeed(t, err)
	defer rpc.Close()
	type reporter interface {
		Query(context.Context, kv.Query) (kv.Rows, error)
		Routed(context.Context, kv.Routed) error
		RoutedBatch(context.Context, []kv.Routed) (kv.RoutedAnswer, error)
		TakeBack(ctx context.Context, tenant, requestID string) error
	}
	q := func(n int) kv.Query {
		return kv.Query{Model: "m", BlockSize: recordedBlock, Tokens: recordedTokens(n), Expected: true}
	}
	// Each client sees the reports of the others.
	rows := func(c reporter, want string) {
		t.Helper()
		all, err := c.Query(ctx, q(8))
		must.Succeed(t, err)
		r := all[0]
		if got := fmt.Sprintf("%d/%d, %d/%d", r.Longest/16, r.Expected/16, r.Ranks[0].Disk/16, r.Ranks[0].Expected/16); got != want ||
			r.Approximate {
			t.Errorf("%T: %s, want %s", c, got, want)
		}
	}
	for i, c := range []reporter{over, packed, rpc} {
		for _, id := range []string{"one", "two/ü ?"} {
			r := kv.Routed{Query: q(3 + i), Target: "engine", Rank: 0, TTL: 10 * time.Minute, RequestID: id}
			must.Succeed(t, c.Routed(ctx, r))
			must.Succeed(t, c.Routed(ctx, r))
			for _, asks := range []reporter{over, packed, rpc} {
				rows(asks, fmt.Sprintf("1/%d, 1/%d", 3+i, 3+i))
			}
			must.Succeed(t, c.TakeBack(ctx, "", id))
			rows(c, "1/1, 1/1")
			refusedWith(t, c.TakeBack(ctx, "", id), 404, codes.NotFound, "", nil)
		}
		refusedWith(t, c.Routed(ctx, kv.Routed{Query: q(1), Target: "other"}), 404, codes.NotFound, "instance_id", []string{"engine"})
		refusedWith(t, c.Routed(ctx, kv.Routed{Query: q(1), Target: "engine", Rank: 7}), 404, codes.NotFound, "dp_rank", []string{"0"})
		refusedWith(t, c.Routed(ctx, kv.Routed{Query: kv.Query{Model: "n", BlockSize: 16}, Target: "engine"}), 404, codes.NotFound, "model",
			[]string{"m"})
		refusedWith(t, c.Routed(ctx, kv.Routed{Query: q(1), Target: "engine", TTL: 365 * 24 * time.Hour}), 400, codes.InvalidArgument,
			"ttl", nil)
		refusedWith(t, c.Routed(ctx, kv.Routed{Query: kv.Query{Model: "m", BlockSize: 16, SeqHashes: []uint64{1}, HashKind: "other"},
			Target: "engine"}), 400, codes.InvalidArgument, "hash", nil)
		hashed := kv.Query{Model: "m", BlockSize: 16, SeqHashes: []uint64{1000, 1001, 1002, 5}, HashKind: kv.Engine, Expected: true}
		answer, err := c.RoutedBatch(ctx, []kv.Routed{
			{Query: hashed, Target: "engine", Rank: kv.AnyRank, TTL: 10 * time.Minute, RequestID: "h"}, {Query: q(1), Target: "other"},
			{Query: q(2), Target: "engine", TTL: 10 * time.Minute, RequestID: "t"}, {Query: kv.Query{Model: "m"}, Target: "engine"},
		})
		must.Succeed(t, err)
		if len(answer.Errors) != 4 || answer.Errors[0] != nil || answer.Errors[2] != nil || len(answer.Warnings) != 0 {
			t.Fatalf("%T: %+v", c, answer)
		}
		refusedWith(t, answer.Errors[1], 404, 0, "instance_id", []string{"engine"})
		refusedWith(t, answer.Errors[3], 400, 0, "block_size", nil)
		rows(c, "1/2, 1/2")
		if all, err := c.Query(ctx, hashed); err != nil || all[0].Longest != 16 || all[0].Expected != 64 {
			t.Errorf("%T: by hashes %+v, %v", c, all, err)
		}
		must.Succeed(t, c.TakeBack(ctx, "", "h"))
		must.Succeed(t, c.TakeBack(ctx, "", "t"))
		one, err := c.RoutedBatch(ctx, []kv.Routed{{Query: q(1), Target: "other"}})
		must.Succeed(t, err)
		refusedWith(t, one.Errors[0], 404, 0, "instance_id", []string{"engine"})
	}
	replies := make(chan kvrpc.Reply, 1)
	stream, err := rpc.RoutedStream(ctx, func(r kvrpc.Reply) { replies <- r })
	must.Succeed(t, err)
	_, err = stream.Send(kv.Routed{Query: q(5), Target: "engine", TTL: 10 * time.Minute})
	must.Succeed(t, err)
	_, err = stream.Send(kv.Routed{Query: q(6), Target: "engine", TTL: 10 * time.Minute}, kv.Routed{Query: q(6), Target: "other"})
	must.Succeed(t, err)
	if r := <-replies; r.Request != 2 || r.Kept != 1 || r.Err != nil {
		t.Errorf("%+v", r)
	} else {
		refusedWith(t, r.Errors[1], 404, 0, "instance_id", []string{"engine"})
	}
	must.Succeed(t, stream.Close())
	rows(over, "1/6, 1/6")
	engine.publish(ruledStored(1, 4))
	eventually(t, "events confirm nothing", func() (string, bool) {
		all, err := over.Query(ctx, q(8))
		must.Succeed(t, err)
		return fmt.Sprint(all), all[0].Longest == 64 && all[0].Expected == 96
	})
}

// refusedWith compares the error of either client. A client over gRPC has a status, of reports in a batch an error of
// the client over HTTP.
func refusedWith(t *testing.T, err error, want int, code codes.Code, field string, known []string) {
	t.Helper()
	var refused *kv.Error
	if errors.As(err, &refused) {
		if refused.Status != want || refused.Field != field || !slices.Equal(refused.Known, known) {
			t.Errorf("%+v, want %d of %s %q", refused, want, field, known)
		}
		return
	}
	st := grpcstatus.Convert(err)
	if st.Code() != code {
		t.Errorf("%v, want %s", err, code)
	}
	names := map[string]string{"ttl_ms": "ttl", "hashes.kind": "hash"}
	for _, d := range st.Details() {
		if e, is := d.(*pb.Error); is && (cmp.Or(names[e.Field], e.Field) != field || !slices.Equal(e.Known, known)) {
			t.Errorf("%v, want %s %q", e, field, known)
		}
	}
}
