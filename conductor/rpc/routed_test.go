package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// reportOf says that the prompt 1 2 3 … goes to an instance.
func reportOf(instance string, n int) *pb.RoutedPrompt {
	return &pb.RoutedPrompt{Model: "m", BlockSize: 1, InstanceId: instance, Prompt: &pb.RoutedPrompt_Tokens{Tokens: prompt(n).GetTokens()}}
}

func requestOf(prompts ...*pb.RoutedPrompt) *pb.RoutedRequest {
	return &pb.RoutedRequest{Prompts: prompts}
}

// expected returns how much of the prompt 1 2 3 … each row has, and is expected to have.
func (r *rig) expected() string {
	r.t.Helper()
	q := prompt(100)
	q.Expected = true
	ans, err := r.client.Query(r.t.Context(), q)
	must.Succeed(r.t, err)
	return shownExpected(ans)
}

func shownExpected(ans *pb.QueryResponse) string {
	var rows []string
	for _, row := range ans.Rows {
		text := fmt.Sprintf("%s:%d/%d", row.InstanceId, row.LongestMatched, row.Expected)
		for _, rank := range row.Ranks {
			if rank.Expected != row.Expected {
				text += fmt.Sprintf(" %d:%d/%d", rank.Rank, rank.Disk, rank.Expected)
			}
		}
		rows = append(rows, text)
	}
	return strings.Join(rows, " ")
}

// synced reports whether all sources are synced.
func (r *rig) synced() bool {
	for state, keys := range r.conductor.States() {
		if state != stream.Synced && len(keys) > 0 {
			return false
		}
	}
	return true
}

// faultOf returns the code of a call, and the field and the names that its detail has.
func faultOf(err error) string {
	st := status.Convert(err)
	text := st.Code().String()
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.BadRequest:
			text += " " + d.FieldViolations[0].Field + " " + d.FieldViolations[0].Reason
		case *pb.Error:
			if st.Code() != codes.InvalidArgument {
				text += fmt.Sprint(" ", d.Field, " ", d.Reason, " ", d.Known)
			}
		}
	}
	return text
}

// errorsOf prints the errors of a response.
func errorsOf(out *pb.RoutedResponse) string {
	var all []string
	for _, e := range out.Errors {
		all = append(all, fmt.Sprintf("%d %s %s %v", e.Prompt, e.Error.Field, e.Error.Reason, e.Error.Known))
	}
	return strings.Join(all, ", ")
}

// TestUnsyncedSources holds that warnings name the first eight sources that are not synced, each once,
// and count the others.
func TestUnsyncedSources(t *testing.T) {
	r := newRig(t)
	f := func(last string, prompts ...*pb.RoutedPrompt) {
		t.Helper()
		out, err := r.client.Routed(t.Context(), requestOf(prompts...))
		must.Succeed(t, err)
		if w := out.Warnings; len(w) != 9 || !strings.HasPrefix(w[0], "s0|default|0 is ") || !strings.HasPrefix(w[7], "s7|default|0 is ") ||
			w[8] != last {
			t.Errorf("%q", w)
		}
	}
	var prompts []*pb.RoutedPrompt
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		must.Succeed(t, r.conductor.Register(registration.Registration{
			Endpoint: "ipc:///nowhere/" + name, Type: registration.TypeVLLM, Model: "m", Instance: name, BlockSize: 1,
		},
			ingest.RegisterOptions{AnyEndpoint: true}))
		prompts = append(prompts, reportOf(name, 3), reportOf(name, 5))
	}
	f("1 more source is not synced", prompts[:18]...)
	f("2 more sources are not synced", prompts...)
}

// TestRouted reports prompts, asks what the instances are expected to have, and takes a report back.
func TestRouted(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.register("a")
	r.register("b")
	one := reportOf("a", 40)
	one.DpRank, one.RequestId, one.TtlMs = proto.Uint32(0), "one", 60_000
	out, err := r.client.Routed(ctx, requestOf(one))
	must.Succeed(t, err)
	if got := r.expected(); out.Kept != 1 || got != "a:0/40 b:0/0" {
		t.Errorf("%v: %s", out, got)
	}
	hashed := &pb.RoutedPrompt{
		Model: "m", BlockSize: 1, InstanceId: "b",
		Prompt: &pb.RoutedPrompt_Hashes{Hashes: &pb.Hashes{Kind: pb.HashKind_HASH_KIND_ENGINE, Values: []uint64{100, 101}}},
	}
	unknown, bad := reportOf("c", 1), reportOf("b", 1)
	bad.BlockSize = 0
	out, err = r.client.Routed(ctx, requestOf(hashed, unknown, bad, reportOf("b", 7)))
	must.Succeed(t, err)
	if got := errorsOf(out); out.Kept != 2 || got != "1 instance_id not_found [a b], 2 block_size missing []" {
		t.Errorf("%d kept, %s", out.Kept, got)
	}
	if got := r.expected(); got != "a:0/40 b:0/7" {
		t.Error(got)
	}
	q := &pb.QueryRequest{Model: "m", BlockSize: 1, Expected: true, Prompt: &pb.QueryRequest_Hashes{Hashes: hashed.GetHashes()}}
	ans, err := r.client.Query(ctx, q)
	must.Succeed(t, err)
	if got := shownExpected(ans); got != "a:0/0 b:0/2" {
		t.Errorf("by hashes: %s", got)
	}
	q = prompt(40)
	q.Expected, q.Top, q.MinMatched = true, 1, 8
	ans, err = r.client.Query(ctx, q)
	must.Succeed(t, err)
	if got := shownExpected(ans); got != "a:0/40" {
		t.Errorf("the longest row: %s", got)
	}
	ans, err = r.client.Query(ctx, prompt(40))
	must.Succeed(t, err)
	if got := shownExpected(ans); got != "a:0/0 b:0/0" {
		t.Errorf("a query that does not ask: %s", got)
	}
	_, err = r.client.TakeBack(ctx, &pb.TakeBackRequest{RequestId: "one"})
	must.Succeed(t, err)
	if got := r.expected(); got != "a:0/0 b:0/7" {
		t.Error(got)
	}
	if _, err = r.client.TakeBack(ctx, &pb.TakeBackRequest{TenantId: "default", RequestId: "one"}); status.Code(err) != codes.NotFound {
		t.Errorf("a second time: %v", err)
	}
	if _, err = r.client.TakeBack(ctx, new(pb.TakeBackRequest)); faultOf(err) != "InvalidArgument request_id missing" {
		t.Errorf("no id: %v", err)
	}
	if out, err := r.client.Routed(ctx, requestOf()); err != nil || out.Kept != 0 {
		t.Errorf("no prompt: %v %v", out, err)
	}
}

// TestRoutedWarns holds that a report for an engine whose events do not come is kept, and says so.
func TestRoutedWarns(t *testing.T) {
	r := newRig(t)
	p := r.register("a")
	out, err := r.client.Routed(t.Context(), requestOf(reportOf("a", 1), reportOf("a", 2)))
	must.Succeed(t, err)
	if len(out.Warnings) > 1 || len(out.Warnings) == 1 && !strings.Contains(out.Warnings[0], "a|default|0 is ") {
		t.Errorf("%q", out.Warnings)
	}
	store(p, 1)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for out.Kept != 2 || len(out.Warnings) > 0 {
		out, err = r.client.Routed(t.Context(), requestOf(reportOf("a", 1), reportOf("a", 2)))
		must.Succeed(t, err)
		<-pace.C
	}
}

// TestRoutedRefuses holds what a report may not say. The same error is the status of a call with one prompt,
// and in the response of one with several, and of a stream.
func TestRoutedRefuses(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.register("a")
	stream, err := r.client.RoutedStream(ctx)
	must.Succeed(t, err)
	f := func(want string, change func(*pb.RoutedPrompt)) {
		t.Helper()
		p := reportOf("a", 3)
		change(p)
		_, err := r.client.Routed(ctx, requestOf(p))
		if got := faultOf(err); got != want {
			t.Errorf("%s, want %s: %v", got, want, err)
		}
		for name, call := range map[string]func(*pb.RoutedRequest) (*pb.RoutedResponse, error){
			"several": func(in *pb.RoutedRequest) (*pb.RoutedResponse, error) { return r.client.Routed(ctx, in) },
			"stream": func(in *pb.RoutedRequest) (*pb.RoutedResponse, error) {
				must.Succeed(t, stream.Send(in))
				return stream.Recv()
			},
		} {
			out, err := call(requestOf(reportOf("a", 1), p))
			must.Succeed(t, err)
			if out.Kept != 1 || len(out.Errors) != 1 || out.Errors[0].Prompt != 1 {
				t.Fatalf("%s: %v", name, out)
			}
			e := out.Errors[0].Error
			field := e.Field
			if e.Index != nil {
				field += fmt.Sprintf("[%d]", *e.Index)
			}
			got := "InvalidArgument " + field + " " + e.Reason
			if e.Reason == "not_found" {
				got = fmt.Sprint("NotFound ", field, " ", e.Reason, " ", e.Known)
			}
			if got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
	f("InvalidArgument model missing", func(p *pb.RoutedPrompt) { p.Model = "" })
	f("InvalidArgument block_size missing", func(p *pb.RoutedPrompt) { p.BlockSize = 0 })
	f("InvalidArgument block_size invalid_value", func(p *pb.RoutedPrompt) { p.BlockSize = 2 })
	f("InvalidArgument prompt missing", func(p *pb.RoutedPrompt) { p.Prompt = nil })
	f("InvalidArgument instance_id missing", func(p *pb.RoutedPrompt) { p.InstanceId = "" })
	f("InvalidArgument ttl_ms out_of_range", func(p *pb.RoutedPrompt) { p.TtlMs = 600_001 })
	f("InvalidArgument ttl_ms out_of_range", func(p *pb.RoutedPrompt) { p.TtlMs = 1<<32 - 1 })
	f("InvalidArgument dp_rank out_of_range", func(p *pb.RoutedPrompt) { p.DpRank = proto.Uint32(1 << 31) })
	f("InvalidArgument request_id out_of_range", func(p *pb.RoutedPrompt) { p.RequestId = strings.Repeat("x", 129) })
	f("InvalidArgument hashes.kind invalid_value", func(p *pb.RoutedPrompt) {
		p.Prompt = &pb.RoutedPrompt_Hashes{Hashes: &pb.Hashes{Kind: 77}}
	})
	f("NotFound model not_found [m]", func(p *pb.RoutedPrompt) { p.Model = "n" })
	f("NotFound model not_found []", func(p *pb.RoutedPrompt) { p.TenantId = "other" })
	f("NotFound instance_id not_found [a]", func(p *pb.RoutedPrompt) { p.InstanceId = "b" })
	f("NotFound dp_rank not_found [0]", func(p *pb.RoutedPrompt) { p.DpRank = proto.Uint32(1) })
	whole := func(want string, in *pb.RoutedRequest) {
		t.Helper()
		if _, err := r.client.Routed(ctx, in); faultOf(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
		must.Succeed(t, stream.Send(in))
		out, err := stream.Recv()
		must.Succeed(t, err)
		field := out.GetError().GetField()
		if out.GetError().GetIndex() > 0 {
			field += fmt.Sprintf("[%d]", out.Error.GetIndex())
		}
		if got := "InvalidArgument " + field + " " + out.GetError().GetReason(); got != want || out.Kept != 0 {
			t.Errorf("a stream: %v, want %s", out, want)
		}
	}
	whole("InvalidArgument prompts[256] out_of_range", requestOf(slices.Repeat([]*pb.RoutedPrompt{reportOf("a", 1)}, 257)...))
	whole("InvalidArgument prompts out_of_range", requestOf(slices.Repeat([]*pb.RoutedPrompt{reportOf("a", 1<<15+1)}, 2)...))
	if _, err := r.client.Routed(ctx, requestOf(reportOf("a", 1<<16+1))); faultOf(err) != "InvalidArgument tokens.ids[65536] out_of_range" {
		t.Error(err)
	}
	if got := r.expected(); got != "a:0/1" {
		t.Errorf("something bad was kept: %s", got)
	}
}

// TestRoutedStream holds which requests of a stream are responded to, how it ends, and that the others go on
// after an error.
func TestRoutedStream(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	store(r.register("a"), 1)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for r.expected() != "a:1/1" || !r.synced() { // a report for a source that is not synced gets a warning
		<-pace.C
	}
	stream, err := r.client.RoutedStream(ctx)
	must.Succeed(t, err)
	send := func(in *pb.RoutedRequest, acknowledge bool) {
		in.Acknowledge = acknowledge
		must.Succeed(t, stream.Send(in))
	}
	expect := func(want string) {
		t.Helper()
		out, err := stream.Recv()
		must.Succeed(t, err)
		if got := fmt.Sprintf("%d kept %d: %s", out.Request, out.Kept, errorsOf(out)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	send(requestOf(reportOf("a", 10)), false)
	send(requestOf(reportOf("a", 11), reportOf("b", 1), reportOf("a", 12)), false)
	send(requestOf(reportOf("a", 13)), false)
	send(requestOf(), true)
	send(requestOf(reportOf("a", 14)), true)
	expect("2 kept 2: 1 instance_id not_found [a]")
	expect("4 kept 0: ")
	expect("5 kept 1: ")
	if got := r.expected(); got != "a:1/14" {
		t.Error(got)
	}
	if r.open() != 1 {
		t.Errorf("%d long calls are open", r.open())
	}
	send(requestOf(reportOf("a", 15)), false)
	must.Succeed(t, stream.CloseSend())
	if out, err := stream.Recv(); err != io.EOF {
		t.Errorf("the end is %v, %v", out, err)
	}
	if got := r.expected(); got != "a:1/15" {
		t.Errorf("when the stream has ended: %s", got)
	}
	for r.open() > 0 {
		<-pace.C
	}
	// A server that leaves ends a stream whose client says nothing.
	stream, err = r.client.RoutedStream(ctx)
	must.Succeed(t, err)
	send(requestOf(), true)
	expect("1 kept 0: ")
	must.Succeed(t, r.server.Shutdown(ctx))
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the end is %v", err)
	}
}

// goneStream is a stream whose client is gone.
type goneStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s goneStream) Context() context.Context { return s.ctx }
func (s goneStream) RecvMsg(any) error        { return s.ctx.Err() }

// TestRoutedStreamEndsWithItsClient: a call ends if its client is gone, also if the goroutine that receives could know that before the
// handler asks it for a request. It must not keep that to itself.
func TestRoutedStreamEndsWithItsClient(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		stream := &grpc.GenericServerStream[pb.RoutedRequest, pb.RoutedResponse]{ServerStream: goneStream{ctx: ctx}}
		if err := (&service{server: r.server}).RoutedStream(stream); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// TestRoutedStreamsAtOnce reports, asks and takes back in many calls at once. Afterwards everything that was
// acknowledged is expected.
func TestRoutedStreamsAtOnce(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r.slots.SetBound(2, time.Minute)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		r.register(name)
	}
	var all sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	for range 4 {
		q := prompt(100)
		q.Expected = true
		all.Go(func() {
			watch, err := r.client.Watch(watching, &pb.WatchRequest{Query: q, IntervalMs: 20})
			for err == nil {
				_, err = watch.Recv()
			}
		})
	}
	var sending sync.WaitGroup
	for w, name := range names {
		sending.Go(func() {
			stream, err := r.client.RoutedStream(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 100 {
				p := reportOf(name, 1+i)
				p.RequestId, p.TtlMs = fmt.Sprintf("%s-%d", name, i), 600_000
				bad := reportOf("none", 1)
				if err := stream.Send(&pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{p, bad}, Acknowledge: true}); err != nil {
					t.Error(err)
					return
				}
				out, err := stream.Recv()
				if err != nil || out.Kept != 1 || len(out.Errors) != 1 || out.Request != uint64(i+1) {
					t.Errorf("%s %d: %v %v", name, i, out, err)
					return
				}
				if i%10 < w { // others stay
					if _, err := r.client.TakeBack(ctx, &pb.TakeBackRequest{RequestId: p.RequestId}); err != nil {
						t.Error(err)
					}
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := stream.Recv(); err != io.EOF {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	stop()
	all.Wait()
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for r.open() > 0 { // a watch may have a slot after its client has left
		<-pace.C
	}
	if got := r.expected(); got != "a:0/100 b:0/100 c:0/100 d:0/100" {
		t.Error(got)
	}
	if st := r.slots.Stats(); st.Inside != 0 {
		t.Errorf("%d slots are taken", st.Inside)
	}
}

// TestWatchSendsExpected holds that a watch which asks for it sends what reports change.
func TestWatchSendsExpected(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p := r.register("a")
	q := prompt(8)
	q.Expected = true
	w, err := r.client.Watch(ctx, &pb.WatchRequest{Query: q, IntervalMs: 20})
	must.Succeed(t, err)
	expect := func(want string) {
		t.Helper()
		ans, err := w.Recv()
		must.Succeed(t, err)
		if got := shownExpected(ans); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	expect("a:0/0")
	report := reportOf("a", 6)
	report.RequestId = "one"
	_, err = r.client.Routed(ctx, requestOf(report))
	must.Succeed(t, err)
	expect("a:0/6")
	store(p, 2)
	expect("a:2/6")
	_, err = r.client.TakeBack(ctx, &pb.TakeBackRequest{RequestId: "one"})
	must.Succeed(t, err)
	expect("a:2/2") // no event tells it: within a second
	_, err = r.conductor.For(conductor.Reader{}).Routed(&match.Routed{
		Query: match.Query{Model: "m", BlockSize: 1, Tokens: prompt(5).GetTokens().Ids}, Target: "a", TTL: 5 * time.Minute,
	})
	must.Succeed(t, err)
	expect("a:2/5")
	r.ahead.Store(int64(5 * time.Minute))
	expect("a:2/2")
}

// TestForwardedReports reports at a replica that answers for nothing, in every way.
func TestForwardedReports(t *testing.T) {
	owner, other := held(t, "owner", 5), newReplica(t, "other")
	other.leave(owner)
	ctx := t.Context()
	out, err := other.client.Routed(ctx, requestOf(reportOf("a", 9)))
	must.Succeed(t, err)
	if got := owner.expected(); out.Kept != 1 || got != "a:5/9" || other.expected() != got {
		t.Errorf("%v: %s", out, got)
	}
	// The error of a single prompt, and of one of several, are those of the owner.
	bad := reportOf("a", 9)
	bad.BlockSize = 3
	for _, p := range []*pb.RoutedPrompt{reportOf("none", 1), bad} {
		_, want := owner.client.Routed(ctx, requestOf(p))
		if _, got := other.client.Routed(ctx, requestOf(p)); status.Code(want) == codes.OK || faultOf(got) != faultOf(want) ||
			got.Error() != want.Error() {
			t.Errorf("%s, the owner answers %s", faultOf(got), faultOf(want))
		}
	}
	here := &pb.RoutedPrompt{Model: "none", BlockSize: 1, InstanceId: "x", Prompt: reportOf("x", 1).Prompt}
	mixed := requestOf(reportOf("a", 10), here, reportOf("none", 1), reportOf("a", 11))
	const want = "1 model not_found [], 2 instance_id not_found [a]"
	if out, err = other.client.Routed(ctx, mixed); err != nil || out.Kept != 2 || errorsOf(out) != want {
		t.Errorf("%v %v", out, err)
	}
	stream, err := other.client.RoutedStream(ctx)
	must.Succeed(t, err)
	must.Succeed(t, stream.Send(requestOf(reportOf("a", 12))))
	must.Succeed(t, stream.Send(mixed))
	if out, err = stream.Recv(); err != nil || out.Request != 2 || out.Kept != 2 || errorsOf(out) != want {
		t.Errorf("%v %v", out, err)
	}
	if got := owner.expected(); got != "a:5/12" {
		t.Error(got)
	}
	// The owner is gone: its prompts have an error, the stream goes on.
	owner.web.CloseClientConnections()
	owner.web.Close()
	must.Succeed(t, stream.Send(mixed))
	if out, err = stream.Recv(); err != nil || out.Kept != 0 ||
		errorsOf(out) != "0  replicas [], 1 model not_found [], 2  replicas [], 3  replicas []" {
		t.Errorf("%v %v", out, err)
	}
	if _, err := other.client.Routed(ctx, requestOf(reportOf("a", 1))); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	other.shares.m.Store(nil)
	other.register("a")
	must.Succeed(t, stream.Send(&pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{reportOf("a", 3)}, Acknowledge: true}))
	if out, err = stream.Recv(); err != nil || out.Kept != 1 || other.expected() != "a:0/3" {
		t.Errorf("%v %v", out, err)
	}
	other.leave()
	must.Succeed(t, stream.Send(requestOf(reportOf("a", 1))))
	if out, err = stream.Recv(); err != nil || errorsOf(out) != "0  unserved []" {
		t.Errorf("%v %v", out, err)
	}
	if st := other.slots.Stats(); st.Inside != 0 {
		t.Errorf("%d slots are taken", st.Inside)
	}
}

// TestCandidates asks where a prompt may go, and reports by the id of the answer.
func TestCandidates(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.register("a")
	r.register("http://b")
	in := prompt(40)
	in.BlockSize = 0
	ans, err := r.client.Candidates(ctx, in)
	must.Succeed(t, err)
	if ans.Id == "" || ans.TenantId != "default" || ans.Model != "m" || ans.LoraName != "" || ans.BlockSize != 1 || len(ans.Rows) != 2 ||
		ans.Rows[0].Address != "" || ans.Rows[1].Address != "http://b" || ans.Rows[0].State == "" {
		t.Errorf("%v", ans)
	}
	by := func(id string, more ...func(*pb.RoutedPrompt)) error {
		p := &pb.RoutedPrompt{AnswerId: id, InstanceId: "a"}
		for _, f := range more {
			f(p)
		}
		_, err := r.client.Routed(ctx, requestOf(p))
		return err
	}
	must.Succeed(t, by(ans.Id))
	if got := r.expected(); got != "a:0/40 http://b:0/0" {
		t.Errorf("after a report by id: %s", got)
	}
	f := func(err error, want string) {
		t.Helper()
		if got := faultOf(err); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f(by("7"), "NotFound answer_id unknown_answer []")
	f(by(ans.Id, func(p *pb.RoutedPrompt) { p.TenantId = "other" }), "NotFound answer_id unknown_answer []")
	f(by(ans.Id, func(p *pb.RoutedPrompt) { p.InstanceId = "c" }), "NotFound instance_id not_found [a http://b]")
	f(by(ans.Id, func(p *pb.RoutedPrompt) { p.Prompt = reportOf("a", 1).Prompt }), "InvalidArgument prompt conflict")
	ask := func(change func(*pb.QueryRequest)) error {
		in := prompt(4)
		change(in)
		_, err := r.client.Candidates(ctx, in)
		return err
	}
	f(ask(func(in *pb.QueryRequest) { in.Model = "x" }), "NotFound model unknown_model [m]")
	f(ask(func(in *pb.QueryRequest) { in.BlockSize = 16 }), "InvalidArgument block_size unknown_block_size")
	f(ask(func(in *pb.QueryRequest) { in.Prompt = nil }), "InvalidArgument prompt missing")
}
