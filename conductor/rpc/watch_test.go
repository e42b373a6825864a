package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// rig is a server on a real socket, whose engines are on a network without sockets.
type rig struct {
	t         *testing.T
	conductor *conductor.Conductor
	network   *streamtest.Network
	server    *Server
	conn      *grpc.ClientConn
	client    pb.ConductorClient
	watches   *Watches
	slots     *server.Admission
	ahead     atomic.Int64 // how much the clock of the Conductor is ahead, ns
}

func newRig(t *testing.T, dial ...grpc.DialOption) *rig { return newRigOf(t, nil, dial...) }

func newRigOf(t *testing.T, forward Forwarder, dial ...grpc.DialOption) *rig {
	r := &rig{t: t, network: new(streamtest.Network), watches: NewWatches(400), slots: server.NewAdmission(1, time.Minute)}
	now := func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }
	r.conductor = conductor.New(conductor.Options{HashSeed: 1337, ExpectedBytes: 64 << 20, Now: now, Log: zerolog.Nop(),
		Stream: stream.Config{
			Transport: r.network, ReplayTimeout: time.Minute, StaleAfter: time.Hour, Queue: 1024, Replays: stream.NewLimiter(8),
		}})
	t.Cleanup(r.conductor.Close)
	r.server = NewServer(Options{
		Conductor: r.conductor, MaxBody: 1 << 20, MaxTokens: 1 << 16, Watches: r.watches, Admission: r.slots, Forward: forward,
		Metrics: NewMetrics(nil), Log: zerolog.Nop(),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	go r.server.Serve(l)
	t.Cleanup(func() { r.server.Close() })
	conn, err := grpc.NewClient(l.Addr().String(), append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	r.conn, r.client = conn, pb.NewConductorClient(conn)
	return r
}

// register registers an engine of the model m with blocks of a token.
func (r *rig) register(instance string) *streamtest.Publisher {
	r.t.Helper()
	at := "ipc://" + instance
	must.Succeed(r.t, r.conductor.Register(registration.Registration{
		Endpoint: at, ReplayEndpoint: at + "/replay", Type: registration.TypeVLLM, Model: "m", Instance: instance, BlockSize: 1,
	}, ingest.RegisterOptions{AnyEndpoint: true}))
	return r.network.PublisherAt(at)
}

// store lets an engine announce the first n tokens of the prompt 1 2 3 …
func store(p *streamtest.Publisher, n int) { p.Publish(streamtest.EncodeBatch(1, 0, stored(n))) }

func stored(n int) map[string]any {
	var hashes, tokens []int
	for i := range n {
		hashes, tokens = append(hashes, 100+i), append(tokens, i+1)
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 1, "medium": "GPU",
	}
}

func remove(p *streamtest.Publisher, block int) {
	p.Publish(streamtest.EncodeBatch(1, 0, map[string]any{"type": "BlockRemoved", "block_hashes": []int{100 + block}, "medium": "GPU"}))
}

func prompt(n int) *pb.QueryRequest {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	return &pb.QueryRequest{Model: "m", BlockSize: 1, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: ids}}}
}

// shown prints the rows of an answer.
func shown(ans *pb.QueryResponse) string {
	var rows []string
	for _, row := range ans.Rows {
		rows = append(rows, fmt.Sprintf("%s:%d", row.InstanceId, row.LongestMatched))
	}
	return strings.Join(rows, " ")
}

// TestWatchSendsChanges holds that a watch sends the answer, then each other one, and nothing where
// the answer stays.
func TestWatchSendsChanges(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w, err := r.client.Watch(ctx, &pb.WatchRequest{Query: prompt(4), IntervalMs: 20})
	must.Succeed(t, err)
	expect := func(want string) {
		t.Helper()
		ans, err := w.Recv()
		must.Succeed(t, err)
		if got := shown(ans); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	expect("") // nothing is registered
	a := r.register("a")
	expect("a:0")
	store(a, 2)
	expect("a:2")
	store(a, 2) // a copy of each
	b := r.register("b")
	expect("a:2 b:0")
	store(b, 4)
	expect("a:2 b:4")
	remove(b, 1)
	expect("a:2 b:1")
	_, err = r.conductor.Unregister(registration.Key{Instance: "a", Tenant: scope.DefaultTenant})
	must.Succeed(t, err)
	expect("b:1")
	if n := r.open(); n != 1 {
		t.Errorf("%d watches", n)
	}
	must.Succeed(t, r.server.Shutdown(ctx))
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the end is %v", err)
	}
}

// TestWatchCoalesces holds that a client which takes nothing gets the newest answer, and few of
// those before.
func TestWatchCoalesces(t *testing.T) {
	r := newRig(t, grpc.WithInitialWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const instances, changes = 300, 3000 // answers of some 20 KB
	a := r.register("a")
	for i := range instances {
		r.register(fmt.Sprintf("instance-with-a-long-name-%04d", i))
	}
	w, err := r.client.Watch(ctx, &pb.WatchRequest{Query: prompt(64), IntervalMs: 20})
	must.Succeed(t, err)
	_, err = w.Recv()
	must.Succeed(t, err)
	for i := range changes {
		// Each batch replaces what the engine has, and the last one alone has 64 blocks.
		n := 1 + i%63
		if i == changes-1 {
			n = 64
		}
		if a.Publish(streamtest.EncodeBatch(1, 0, map[string]any{"type": "AllBlocksCleared"}, stored(n))); i == changes/2 {
			_, err := r.client.Query(ctx, prompt(64)) // the watch waits for the client by now, or soon
			must.Succeed(t, err)
		}
	}
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for r.conductor.Query(match.Query{Model: "m", BlockSize: 1, Tokens: prompt(64).GetTokens().Ids}).Rows[0].Longest < 64 {
		<-pace.C // else the client takes answers while changes are applied
	}
	got := 0
	for {
		ans, err := w.Recv()
		must.Succeed(t, err)
		if got++; strings.HasPrefix(shown(ans), "a:64 ") {
			break
		}
	}
	if got > changes/10 {
		t.Errorf("the client got %d answers of %d changes", got, changes)
	}
}

// TestWatchWaitsForSlot holds that a watch that gets no slot goes on, and takes none while it
// waits for changes.
func TestWatchWaitsForSlot(t *testing.T) {
	r := newRig(t)
	r.slots.SetBound(1, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	a := r.register("a")
	var all []grpc.ServerStreamingClient[pb.QueryResponse]
	for range 20 {
		w, err := r.client.Watch(ctx, &pb.WatchRequest{Query: prompt(4), IntervalMs: 20})
		must.Succeed(t, err)
		all = append(all, w)
	}
	for want := range 4 {
		if want > 0 {
			store(a, want)
		}
		for _, w := range all {
			var seen []string
			for wanted := fmt.Sprintf("a:%d", want); !slices.Contains(seen, wanted); {
				ans, err := w.Recv()
				must.Succeed(t, err)
				seen = append(seen, shown(ans))
			}
		}
	}
}
