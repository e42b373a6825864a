package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/must"
)

// shares says which replicas answer for the model m, in place of a fleet. It is a conductor.Serving.
type shares struct {
	m atomic.Pointer[[]conductor.ReplicaAddress]
} // nil: this one

func (s *shares) Serves(of scope.Shard) *conductor.UnservedError {
	if to := s.m.Load(); to != nil && of.Model == "m" {
		return &conductor.UnservedError{Shard: of, Serving: *to}
	}
	return nil
}
func (s *shares) ServesInstance(string, string) *conductor.UnservedError { return nil }
func (s *shares) Away() []*conductor.UnservedError                       { return nil }
func (s *shares) Names() registration.Names                              { return nil }
func (s *shares) Models(string) []string                                 { return nil }

// replica is a rig that sends calls to others, and takes theirs.
type replica struct {
	*rig
	shares    shares
	address   conductor.ReplicaAddress
	forwarder *cluster.Forwarder
	carried   *Server
	web       *httptest.Server
}

func newReplica(t *testing.T, id string) *replica {
	r := &replica{forwarder: cluster.NewForwarder(cluster.ForwarderConfig{
		Me: id, To: cluster.NewTransport(), Failed: func() {}, Timeout: time.Minute, Log: zerolog.Nop(),
	})}
	r.rig = newRigOf(t, r.forwarder)
	r.conductor.ServeBy(&r.shares)
	opts := r.server.opts
	opts.Forward = nil
	r.carried = NewServer(opts)
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.POST("/grpc/:service/:method", r.carried.Carried)
	r.web = httptest.NewServer(engine)
	t.Cleanup(r.web.Close)
	t.Cleanup(func() { r.carried.Close() })
	r.address = conductor.ReplicaAddress{ID: id, URL: r.web.URL}
	return r
}

// leave lets others answer for the model m.
func (r *replica) leave(to ...*replica) {
	all := []conductor.ReplicaAddress{}
	for _, other := range to {
		all = append(all, other.address)
	}
	r.shares.m.Store(&all)
}

// held returns a replica whose engine a holds the first n tokens of the prompt.
func held(t *testing.T, id string, n int) *replica {
	r := newReplica(t, id)
	store(r.register("a"), n)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for {
		out, err := r.client.Query(t.Context(), prompt(8))
		must.Succeed(t, err)
		if out.Rows[0].LongestMatched == uint32(n) && r.synced() { // a report for a source that is not synced gets a warning
			return r
		}
		<-pace.C
	}
}

// asBytes is a codec of messages that stay as they are.
type asBytes struct{}

func (asBytes) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (asBytes) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (asBytes) Name() string                       { return "proto" }

var _ encoding.Codec = asBytes{}

// raw returns the bytes of an answer, or of the status.
func (r *rig) raw(method string, in proto.Message) string {
	r.t.Helper()
	text, err := proto.Marshal(in)
	must.Succeed(r.t, err)
	var out []byte
	err = r.conn.Invoke(r.t.Context(), method, &text, &out, grpc.ForceCodec(asBytes{}))
	if err != nil {
		st, err := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
		must.Succeed(r.t, err)
		return "status " + string(st)
	}
	return string(out)
}

// TestForwardedCallsAnswerAsTheOwner compares the bytes of answers and errors.
func TestForwardedCallsAnswerAsTheOwner(t *testing.T) {
	owner, other := held(t, "owner", 5), newReplica(t, "other")
	other.leave(owner)
	detail := prompt(8)
	detail.InstanceId = proto.String("a")
	bad, long := prompt(8), prompt(1<<16+1)
	bad.BlockSize = 0
	for i, q := range []*pb.QueryRequest{prompt(8), prompt(1), detail, {Model: "m", BlockSize: 3}, bad, long} {
		if want, got := owner.raw(pb.Conductor_Query_FullMethodName, q), other.raw(pb.Conductor_Query_FullMethodName, q); got != want ||
			got == "" {
			t.Errorf("query %d: %q, the owner answers %q", i, got, want)
		}
	}
	batch := &pb.QueryBatchRequest{Queries: []*pb.QueryRequest{
		prompt(8), bad, prompt(3), {Model: "none", BlockSize: 1, Prompt: prompt(2).Prompt}, prompt(8),
	}}
	if want, got := owner.raw(pb.Conductor_QueryBatch_FullMethodName, batch), other.raw(pb.Conductor_QueryBatch_FullMethodName,
		batch); got != want || len(got) < 50 {
		t.Errorf("batch: %q, the owner answers %q", got, want)
	}
	if st := other.slots.Stats(); st.Inside != 0 {
		t.Errorf("%d slots are taken", st.Inside)
	}
	if got := counted(t, other.forwarder, "answered"); got != 4 { // bad queries are refused at once
		t.Errorf("%v calls were sent on", got)
	}
}

// TestForwardedCandidatesHaveNoID holds that a client gets no id of an answer that another replica has made: its report would come to
// the replica that it asked, which does not have the answer.
func TestForwardedCandidatesHaveNoID(t *testing.T) {
	owner, other := held(t, "owner", 5), newReplica(t, "other")
	other.leave(owner)
	own, err := owner.client.Candidates(t.Context(), prompt(8))
	must.Succeed(t, err)
	forwarded, err := other.client.Candidates(t.Context(), prompt(8))
	must.Succeed(t, err)
	if own.Id == "" || forwarded.Id != "" {
		t.Errorf("the owner's answer has the id %q, the forwarded one %q", own.Id, forwarded.Id)
	}
	if own.Id = ""; !proto.Equal(forwarded, own) || len(own.Rows) != 1 || own.Rows[0].LongestMatched != 5 {
		t.Errorf("forwarded: %v\nthe owner answers %v", forwarded, own)
	}
}

// counted returns the count of calls with a result.
func counted(t *testing.T, f *cluster.Forwarder, result string) (n float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f)
	all, err := registry.Gather()
	must.Succeed(t, err)
	for _, family := range all {
		for _, m := range family.Metric {
			if family.GetName() == "conductor_cluster_forwarded_total" && m.Label[0].GetValue() == result {
				n = m.Counter.GetValue()
			}
		}
	}
	return n
}

// TestForwardedCallsGoOnce: a replica that does not serve a forwarded call refuses it, and the next
// one is asked. Without one the call is UNAVAILABLE, and names a replica.
func TestForwardedCallsGoOnce(t *testing.T) {
	owner, other, wrong := held(t, "owner", 5), newReplica(t, "other"), newReplica(t, "wrong")
	wrong.leave(owner)
	dead := newReplica(t, "dead")
	dead.web.Close()
	other.leave(wrong, dead, owner)
	want := owner.raw(pb.Conductor_Query_FullMethodName, prompt(8))
	for range 20 { // whichever is asked first
		if got := other.raw(pb.Conductor_Query_FullMethodName, prompt(8)); got != want {
			t.Fatalf("%q, the owner answers %q", got, want)
		}
	}
	other.leave(wrong, dead)
	_, err := other.client.Query(t.Context(), prompt(8))
	st := status.Convert(err)
	if info, is := st.Details()[0].(*errdetails.ErrorInfo); !is || st.Code() != codes.Unavailable || info.Reason != "UNSERVED" ||
		info.Metadata["replica"] != "wrong" || info.Metadata["url"] != wrong.address.URL {
		t.Errorf("%v %v", err, st.Details())
	}
	batch, err := other.client.QueryBatch(t.Context(), &pb.QueryBatchRequest{Queries: []*pb.QueryRequest{prompt(8), {
		Model: "none", BlockSize: 1, Prompt: prompt(1).Prompt,
	}}})
	if err != nil || batch.Answers[0].GetError().GetReason() != "replicas" || batch.Answers[1].GetResponse() == nil {
		t.Errorf("%v %v", batch, err)
	}
	other.leave()
	if _, err := other.client.Query(t.Context(), prompt(8)); status.Code(err) != codes.Unavailable {
		t.Errorf("no replica serves: %v", err)
	}
	batch, err = other.client.QueryBatch(t.Context(), &pb.QueryBatchRequest{Queries: []*pb.QueryRequest{prompt(8)}})
	if err != nil || batch.Answers[0].GetError().GetReason() != "unserved" {
		t.Errorf("%v %v", batch, err)
	}
	if n := counted(t, wrong.forwarder, "answered"); n != 0 {
		t.Errorf("%v calls were sent on twice", n)
	}
}

// TestCarriedRefuses holds the statuses of what other replicas may not send.
func TestCarriedRefuses(t *testing.T) {
	r := newReplica(t, "r")
	f := func(path, body string, want int, text string) {
		t.Helper()
		resp, err := http.Post(r.web.URL+path, carriedType, strings.NewReader(body))
		must.Succeed(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		if resp.StatusCode != want || !strings.Contains(string(got), text) {
			t.Errorf("%s: %d %q", path, resp.StatusCode, got)
		}
	}
	f("/grpc/grpc.health.v1.Health/Watch", "", 404, "not_found")
	f("/grpc/kvconductor.v1.Conductor/None", "", 404, "not_found")
	f("/grpc/kvconductor.v1.Conductor/RoutedStream", "", 404, "not_found") // its requests are sent on as those of Routed
	f("/grpc/kvconductor.v1.Conductor/TakeBack", "", 404, "not_found")
	f("/grpc/kvconductor.v1.Conductor/Query", "", 200, "model is required")
	f("/grpc/kvconductor.v1.Conductor/Watch", "", 200, "query is required")
	f("/grpc/kvconductor.v1.Conductor/Query", "\xff", 500, "cannot be read")
	f("/grpc/kvconductor.v1.Conductor/Query", strings.Repeat("x", 1<<20+1), 413, "too_large")
	r.leave(r)
	query, err := proto.Marshal(prompt(1))
	must.Succeed(t, err)
	f("/grpc/kvconductor.v1.Conductor/Query", string(query), 421, "misdirected")
	batch, err := proto.Marshal(&pb.QueryBatchRequest{Queries: []*pb.QueryRequest{prompt(1)}})
	must.Succeed(t, err)
	f("/grpc/kvconductor.v1.Conductor/QueryBatch", string(batch), 421, "misdirected")
	watch, err := proto.Marshal(&pb.WatchRequest{Query: prompt(1)})
	must.Succeed(t, err)
	f("/grpc/kvconductor.v1.Conductor/Watch", string(watch), 421, "misdirected")
	report, err := proto.Marshal(requestOf(&pb.RoutedPrompt{Model: "none", BlockSize: 1, InstanceId: "a", Prompt: reportOf("a", 1).Prompt},
		reportOf("a", 1)))
	must.Succeed(t, err)
	f("/grpc/kvconductor.v1.Conductor/Routed", string(report), 421, "misdirected")
}

// TestReadFrames reads answers that are cut off, or have a length that is a lie.
func TestReadFrames(t *testing.T) {
	f := func(text string, want int, fault string) {
		t.Helper()
		n := 0
		err := readFrames(strings.NewReader(text), func(int64) error { return nil }, func([]byte) error { n++; return nil })
		if n != want || (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %d messages, %v", text, n, err)
		}
	}
	f("", 0, "")
	f("\x00\x00\x00\x00\x01x\x00\x00\x00\x00\x00", 2, "")
	f("\x00\x00\x00\x00\x01x\x00\x00", 1, "cut off")
	f("\x00\x00\x00\x00\x05x", 0, "after 1 of 5 bytes")
	f("\x00\xff\xff\xff\xffx", 0, "larger than")
	f("\x80\x00\x00\x00\x00", 0, "status cannot be read")
	f("\x80\x00\x00\x00\x01\xff", 0, "status cannot be read")
	f("\x80\x00\x00\x00\x02\x08\x08\x00", 0, codes.ResourceExhausted.String())
	text, err := answersOf(bytes.Repeat([]byte{0x0a, 1, 'x'}, 2), nil)
	if err != nil || fmt.Sprintf("%s", text) != "[x x]" {
		t.Errorf("%s %v", text, err)
	}
	for _, bad := range []string{"\x0a", "\x0a\x05x", "\x12\x01x", "\x08\x01"} {
		if text, err := answersOf([]byte(bad), nil); err == nil {
			t.Errorf("%q: %q", bad, text)
		}
	}
}

// TestForwardedWatchFollowsItsModel watches at a replica, while the model goes from one owner to
// another and then comes to that replica.
func TestForwardedWatchFollowsItsModel(t *testing.T) {
	first, second, here := held(t, "first", 5), held(t, "second", 6), held(t, "here", 7)
	here.leave(first)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	stream, err := here.client.Watch(ctx, &pb.WatchRequest{Query: prompt(8), IntervalMs: 20})
	must.Succeed(t, err)
	expect := func(want uint32) {
		t.Helper()
		out, err := stream.Recv()
		if err != nil || out.Rows[0].LongestMatched != want {
			t.Fatalf("%v %v, want %d tokens", out, err, want)
		}
	}
	expect(5)
	remove(first.network.PublisherAt("ipc://a"), 4)
	expect(4)
	here.leave(second)
	first.leave(second)
	expect(6)
	second.web.CloseClientConnections() // the call begins again, with an answer that is known
	remove(second.network.PublisherAt("ipc://a"), 5)
	expect(5)
	here.shares.m.Store(nil)
	expect(7)
	here.leave()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("no replica serves: %v", err)
	}
	for _, r := range []*replica{first, second} {
		pace := time.NewTicker(time.Millisecond)
		for r.open() > 0 {
			<-pace.C
		}
		pace.Stop()
	}
}

// open returns how many watches are open.
func (r *rig) open() int {
	open, _ := r.watches.slots.Count()
	return open
}

// TestForwardedWatchEndsWithItsServer ends a watch when either replica stops.
func TestForwardedWatchEndsWithItsServer(t *testing.T) {
	owner, here := held(t, "owner", 5), newReplica(t, "here")
	here.leave(owner)
	open := func() pb.Conductor_WatchClient {
		stream, err := here.client.Watch(t.Context(), &pb.WatchRequest{Query: prompt(8)})
		must.Succeed(t, err)
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	a, b := open(), open()
	owner.carried.Close()
	if _, err := a.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the owner: %v", err)
	}
	here.server.Shutdown(t.Context())
	if _, err := b.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the server: %v", err)
	}
}

// FuzzFrames reads arbitrary answers of replicas: none may be read further than it goes.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x04\x0a\x02xy\x80\x00\x00\x00\x02\x08\x08"))
	f.Add([]byte("\x00\x00\x00\x00\x03\x0a\x05x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		read := 0
		readFrames(bytes.NewReader(text), func(int64) error { return nil }, func(message []byte) error {
			read += len(message) + frameHeader
			all, _ := answersOf(message, nil)
			for _, answer := range all {
				if len(answer) >= len(message) {
					t.Errorf("an answer of %d bytes in %d", len(answer), len(message))
				}
			}
			return nil
		})
		if read > len(text) {
			t.Errorf("%d of %d bytes", read, len(text))
		}
	})
}

// TestForwardedAnswersNeedMemory holds that a frame which does not fit into the memory of a call is
// refused before it is read, and that all memory is given back.
func TestForwardedAnswersNeedMemory(t *testing.T) {
	t.Parallel()
	room := &kept{budget: server.NewBudget(1 << 20), flow: "a"}
	frame := func(n int) string {
		return string([]byte{messageFrame, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + strings.Repeat("x", n)
	}
	read := func(n int) (taken int, err error) {
		err = readFrames(strings.NewReader(frame(n)), room.reserve, func(text []byte) error { taken = len(text); return nil })
		return taken, err
	}
	for range 3 {
		if n, err := read(100 << 10); err != nil || n != 100<<10 {
			t.Errorf("a frame that fits: %d bytes, %v", n, err)
		}
		if n, err := read(4 << 20); !errors.Is(err, body.ErrMemory) || n != 0 {
			t.Errorf("a frame that does not fit: %d bytes, %v", n, err)
		}
		room.releaseMemory()
	}
}
