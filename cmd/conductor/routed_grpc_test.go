package main

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	pb "kvconductor/api/kvconductor/v1"
	"kvconductor/internal/must"
)

// reportFor says that a recorded prompt of n blocks goes to an instance.
func reportFor(tenant, instance string, n int) *pb.RoutedPrompt {
	return &pb.RoutedPrompt{TenantId: tenant, Model: "m", BlockSize: recordedBlock, InstanceId: instance, Prompt: &pb.RoutedPrompt_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(n)}}}
}

// TestReportsOverGRPC reports prompts of a real engine until its events confirm them, as clients of two tenants.
func TestReportsOverGRPC(t *testing.T) {
	t.Parallel()
	a, b := newRuledEngine(t, "e-a", 0), newRuledEngine(t, "e-b", 0)
	file := credentialsFile(t, "a query a", "b query b", "all query '*'")
	source := "  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: '%s', tenant_id: %s, block_size: 16}\n"
	_, address := grpcProcess(t, "auth: {file: "+file+"}\nsources:\n"+fmt.Sprintf(source, a.pub.Addr(), a.name, "a")+fmt.Sprintf(source, b.pub.Addr(), b.name, "b"))
	ctx := inTime(t)
	of := func(token string) pb.ConductorClient {
		return pb.NewConductorClient(dialed(t, address, token, nil))
	}
	row := func(tenant string) string {
		out, err := of("all").Query(ctx, &pb.QueryRequest{TenantId: tenant, Model: "m", BlockSize: recordedBlock, Expected: true, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(8)}}})
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
		if _, err := of("a").Routed(ctx, &pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportFor("b", target, 6)}}); grpcstatus.Code(err) != codes.PermissionDenied {
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
	_, address := grpcProcess(t, "limits: {client_requests: 8, max_watches: 4}\nauth: {file: "+credentialsFile(t, "a query a")+"}\n")
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
	if _, err := second.Recv(); grpcstatus.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "one client has at most 1") && !strings.Contains(err.Error(), "client_requests") {
		t.Errorf("a second stream: %v", err)
	}
}
