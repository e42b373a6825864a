package rpc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/client"
	"example.com/conductor/internal/must"
)

// echo is a server that notes reports, and responds to those of the instance "bad" with an error.
type echo struct {
	pb.UnimplementedConductorServer
	mu  sync.Mutex
	got []client.Routed
}

func (e *echo) note(in *pb.RoutedRequest) *pb.RoutedResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := new(pb.RoutedResponse)
	for i, p := range in.Prompts {
		r := client.Routed{Target: p.InstanceId, Rank: client.AnyRank, TTL: time.Duration(p.TtlMs) * time.Millisecond,
			RequestID: p.RequestId}
		r.Model, r.BlockSize, r.Tenant, r.Adapter, r.Salt = p.Model, int(p.BlockSize), p.TenantId, p.LoraName, p.CacheSalt
		if p.DpRank != nil {
			r.Rank = int(*p.DpRank)
		}
		r.Tokens, r.SeqHashes = p.GetTokens().GetIds(), p.GetHashes().GetValues()
		for kind, name := range kinds {
			if name == p.GetHashes().GetKind() {
				r.HashKind = kind
			}
		}
		e.got = append(e.got, r)
		if p.InstanceId == "bad" {
			index := uint32(3)
			out.Errors = append(out.Errors,
				&pb.RoutedError{Prompt: uint32(i), Error: &pb.Error{Message: "no", Reason: "not_found", Field: "instance_id", Index: &index,
					Known: []string{"a"}}})
			continue
		}
		out.Kept++
	}
	return out
}

func (e *echo) Routed(_ context.Context, in *pb.RoutedRequest) (*pb.RoutedResponse, error) {
	return e.note(in), nil
}

func (e *echo) RoutedStream(stream pb.Conductor_RoutedStreamServer) error {
	for n := uint64(1); ; n++ {
		in, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if len(in.Prompts) == 0 {
			return status.Error(codes.Unavailable, "the server leaves")
		}
		if out := e.note(in); len(out.Errors) > 0 {
			out.Request = n
			if err := stream.Send(out); err != nil {
				return err
			}
		}
	}
}

func newEcho(t *testing.T) (*echo, *Client) {
	e, s := new(echo), grpc.NewServer()
	pb.RegisterConductorServer(s, e)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	c, err := New(l.Addr().String())
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	return e, c
}

// randomReport returns a report that a server need not accept.
func randomReport(rnd *rand.Rand) (r client.Routed) {
	text := func() string { return []string{"", "a", "ü/?", strings.Repeat("x", 200)}[rnd.IntN(4)] }
	r = client.Routed{Target: text(), Rank: rnd.IntN(4) - 1, TTL: time.Duration(rnd.IntN(1000)) * time.Millisecond, RequestID: text()}
	r.Model, r.BlockSize, r.Tenant, r.Adapter, r.Salt = text(), rnd.IntN(64), text(), text(), text()
	n := 1 + rnd.IntN(20)
	if rnd.IntN(2) == 0 {
		r.SeqHashes, r.HashKind = make([]uint64, n), []client.HashKind{client.Canonical, client.Engine, client.VLLM,
			client.SGLang}[rnd.IntN(4)]
		for i := range r.SeqHashes {
			r.SeqHashes[i] = rnd.Uint64()
		}
	} else {
		r.Tokens = make([]uint32, n)
		for i := range r.Tokens {
			r.Tokens[i] = rnd.Uint32()
		}
	}
	return r
}

// TestReportsSayEverything compares reports of random values with those that the server reads, of each call.
func TestReportsSayEverything(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	e, c := newEcho(t)
	stream, err := c.RoutedStream(t.Context(), func(r Reply) { t.Errorf("%+v", r) })
	must.Succeed(t, err)
	var want []client.Routed
	for i := range 50 {
		all := []client.Routed{randomReport(rnd), randomReport(rnd)}
		must.Succeed(t, c.Routed(t.Context(), all[0]))
		answer, err := c.RoutedBatch(t.Context(), all)
		if err != nil || answer.Errors != nil {
			t.Errorf("%+v, %v", answer, err)
		}
		want = append(append(want, all[0]), all...)
		n, err := stream.Send(all...)
		if err != nil || n != uint64(i+1) {
			t.Fatalf("request %d: %v", n, err)
		}
	}
	unary := len(want)
	for i := 0; i < unary; i += 3 {
		want = append(want, want[i+1:i+3]...)
	}
	must.Succeed(t, stream.Close())
	count := make(map[string]int) // the stream's come between the others
	for i := range want {
		count[reportOf(&want[i]).String()]++
	}
	for i := range e.got {
		count[reportOf(&e.got[i]).String()]--
	}
	for text, n := range count {
		if n != 0 {
			t.Errorf("seed %d: %d times %s", seed, n, text)
		}
	}
	for _, r := range want[:9] {
		e.got = nil
		must.Succeed(t, c.Routed(t.Context(), r))
		if !reflect.DeepEqual(e.got[0], r) {
			t.Errorf("seed %d: %+v, want %+v", seed, e.got[0], r)
		}
	}
	for ttl, ms := range map[time.Duration]uint32{0: 0, 1: 1, time.Millisecond: 1, time.Second + 1: 1001, -1: 1<<32 - 1,
		365 * 24 * time.Hour: 1<<32 - 1} {
		if got := milliseconds(ttl); got != ms {
			t.Errorf("%s is %d ms, want %d", ttl, got, ms)
		}
	}
}

// TestReportErrors reads the errors of reports, and how streams end.
func TestReportErrors(t *testing.T) {
	_, c := newEcho(t)
	check := func(err error) {
		t.Helper()
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != 404 || refused.Field != "instance_id" || refused.Known[0] != "a" ||
			*refused.Index != 3 {
			t.Errorf("%+v", err)
		}
	}
	bad := client.Routed{Target: "bad"}
	answer, err := c.RoutedBatch(t.Context(), []client.Routed{{Target: "a"}, bad, {Target: "b"}})
	must.Succeed(t, err)
	if len(answer.Errors) != 3 || answer.Errors[0] != nil || answer.Errors[2] != nil {
		t.Errorf("%+v", answer)
	}
	check(answer.Errors[1])
	replies := make(chan Reply, 1)
	stream, err := c.RoutedStream(t.Context(), func(r Reply) { replies <- r })
	must.Succeed(t, err)
	for _, all := range [][]client.Routed{{{}}, {{}, bad}, {{}}} {
		_, err := stream.Send(all...)
		must.Succeed(t, err)
	}
	if r := <-replies; r.Request != 2 || r.Kept != 1 || len(r.Errors) != 1 {
		t.Errorf("%+v", r)
	} else {
		check(r.Errors[1])
	}
	_, err = stream.Send()
	must.Succeed(t, err)
	for err == nil { // until the client knows
		_, err = stream.Send(client.Routed{})
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("after the end: %v", err)
	}
	if err := stream.Close(); status.Code(err) != codes.Unavailable {
		t.Errorf("the end: %v", err)
	}
	if err := c.TakeBack(t.Context(), "", "x"); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that the server lacks: %v", err)
	}
	if _, err := c.RoutedBatch(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
