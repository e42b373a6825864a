package extproc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/conductor/integrations/envoy/pick"
)

const (
	fullDuplex = extfilter.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered   = extfilter.ProcessingMode_BUFFERED
	streamed   = extfilter.ProcessingMode_STREAMED
	none       = extfilter.ProcessingMode_NONE
)

// fakePicker chooses what a test says, and writes down what it hears.
type fakePicker struct {
	choice pick.Choice
	err    error
	panics bool
	wait   bool // until the context ends

	mu       sync.Mutex
	requests []pick.Request
	calls    []string
}

func (p *fakePicker) Pick(ctx context.Context, r *pick.Request) (pick.Flight, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	copied := *r
	copied.Body = bytes.Clone(r.Body)
	p.requests = append(p.requests, copied)
	if p.panics {
		panic("a defect")
	}
	if p.wait {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

func (p *fakePicker) note(format string, of ...any) {
	p.calls = append(p.calls, fmt.Sprintf(format, of...))
}

func (p *fakePicker) Choice() *pick.Choice { return &p.choice }
func (p *fakePicker) Answered(endpoint string, status int) {
	p.note("answered %s %d", endpoint, status)
}
func (p *fakePicker) FirstToken()              { p.note("first token") }
func (p *fakePicker) Usage(prompt, cached int) { p.note("usage %d %d", prompt, cached) }
func (p *fakePicker) End()                     { p.note("end") }

// fakeStream is a data plane that sends a list of messages and keeps the answers.
type fakeStream struct {
	grpc.ServerStream
	ctx  context.Context
	in   []*extproc.ProcessingRequest
	last error // after the messages; io.EOF if nil
	sent []*extproc.ProcessingResponse
	fail error // of Send
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) Recv() (*extproc.ProcessingRequest, error) {
	if len(s.in) == 0 {
		if s.last == nil {
			return nil, io.EOF
		}
		return nil, s.last
	}
	m := s.in[0]
	s.in = s.in[1:]
	return m, nil
}

func (s *fakeStream) Send(m *extproc.ProcessingResponse) error {
	if s.fail == nil {
		s.sent = append(s.sent, m)
	}
	return s.fail
}

// run has a Server handle the messages, and returns the answers.
func run(t *testing.T, p *fakePicker, o Options, in ...*extproc.ProcessingRequest) []*extproc.ProcessingResponse {
	t.Helper()
	s := &fakeStream{ctx: t.Context(), in: in}
	if err := New(p, o).Process(s); err != nil {
		t.Fatalf("Process: %v", err)
	}
	return s.sent
}

func fleet() *fakePicker {
	return &fakePicker{choice: pick.Choice{Endpoints: []string{"10.0.0.1:8000", "10.0.0.2:8000"}, Why: "longest prefix"}}
}

// config makes a message the first of a stream.
func config(m *extproc.ProcessingRequest, request, response extfilter.ProcessingMode_BodySendMode) *extproc.ProcessingRequest {
	m.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

func httpHeaders(end bool, pairs ...string) *extproc.HttpHeaders {
	h := &extproc.HttpHeaders{EndOfStream: end, Headers: &core.HeaderMap{}}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers.Headers = append(h.Headers.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return h
}

// requestHeaders are those of a POST, and pairs.
func requestHeaders(end bool, pairs ...string) *extproc.ProcessingRequest {
	pairs = append([]string{":method", "POST", ":path", "/v1/completions?x=1", "x-request-id", "r1"}, pairs...)
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: httpHeaders(end, pairs...)}}
}

func requestBody(body string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{
		RequestBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: end},
	}}
}

func requestTrailers() *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}}
}

func responseHeaders(code, served string) *extproc.ProcessingRequest {
	m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: httpHeaders(false, ":status", code),
	}}
	if served != "" {
		m.MetadataContext = filterMetadata("envoy.lb", map[string]any{"x-gateway-destination-endpoint-served": served})
	}
	return m
}

func responseBody(body string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{
		ResponseBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: end},
	}}
}

func responseTrailers() *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}}
}

func filterMetadata(namespace string, fields map[string]any) *core.Metadata {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return &core.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: s}}
}

// brief writes an answer in one line: its kind, what it does to headers and body, and the endpoint in the metadata.
func brief(m *extproc.ProcessingResponse) string {
	var line []string
	add := func(format string, of ...any) { line = append(line, fmt.Sprintf(format, of...)) }
	mutation := func(h *extproc.HeaderMutation) {
		var set []string
		for _, v := range h.GetSetHeaders() {
			set = append(set, fmt.Sprintf("%s=%s", v.GetHeader().GetKey(), v.GetHeader().GetRawValue()))
			if v.GetAppendAction() != core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				add("appended")
			}
		}
		slices.Sort(set)
		for _, v := range set {
			add("%s", v)
		}
		for _, v := range h.GetRemoveHeaders() {
			add("-%s", v)
		}
	}
	common := func(c *extproc.CommonResponse) {
		if c.GetStatus() != extproc.CommonResponse_CONTINUE {
			add("%s", c.GetStatus())
		}
		mutation(c.GetHeaderMutation())
		if s := c.GetBodyMutation().GetStreamedResponse(); s != nil {
			add("%q", s.GetBody())
			if s.GetEndOfStream() {
				add("last")
			}
		} else if c.GetBodyMutation() != nil {
			add("body changed")
		}
	}
	switch r := m.GetResponse().(type) {
	case *extproc.ProcessingResponse_RequestHeaders:
		add("request headers")
		common(r.RequestHeaders.GetResponse())
	case *extproc.ProcessingResponse_RequestBody:
		add("request body")
		common(r.RequestBody.GetResponse())
	case *extproc.ProcessingResponse_RequestTrailers:
		add("request trailers")
		mutation(r.RequestTrailers.GetHeaderMutation())
	case *extproc.ProcessingResponse_ResponseHeaders:
		add("response headers")
		common(r.ResponseHeaders.GetResponse())
	case *extproc.ProcessingResponse_ResponseBody:
		add("response body")
		common(r.ResponseBody.GetResponse())
	case *extproc.ProcessingResponse_ResponseTrailers:
		add("response trailers")
		mutation(r.ResponseTrailers.GetHeaderMutation())
	case *extproc.ProcessingResponse_ImmediateResponse:
		add("immediate %d", r.ImmediateResponse.GetStatus().GetCode())
		mutation(r.ImmediateResponse.GetHeaders())
		add("%s", r.ImmediateResponse.GetBody())
	}
	if d := m.GetDynamicMetadata(); d != nil {
		add("metadata %s", d.GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue())
	}
	return strings.Join(line, " ")
}

func wantAnswers(t *testing.T, sent []*extproc.ProcessingResponse, want ...string) {
	t.Helper()
	var got []string
	for _, m := range sent {
		got = append(got, brief(m))
	}
	if !slices.Equal(got, want) {
		t.Errorf("answers:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func wantCalls(t *testing.T, p *fakePicker, want ...string) {
	t.Helper()
	if !slices.Equal(p.calls, want) {
		t.Errorf("the flight was told %q, want %q", p.calls, want)
	}
}

// chosen is what every mode says of the fleet's choice.
const (
	chosen   = "x-gateway-destination-endpoint=10.0.0.1:8000,10.0.0.2:8000"
	inMeta   = "metadata 10.0.0.1:8000,10.0.0.2:8000"
	usageEnd = `data: {"choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\ndata: [DONE]\n\n"
)

func TestFullDuplex(t *testing.T) {
	p := fleet()
	wantAnswers(t, run(t, p, Options{},
		config(requestHeaders(false), fullDuplex, fullDuplex), requestBody(`{"prompt":`, false), requestBody(`[1,2]}`, false),
		requestBody("", true),
		responseHeaders("200", "10.0.0.2:8000"), responseBody("data: {}\n\n", false), responseBody(usageEnd, false), responseBody("", true),
	),
		"request headers "+chosen+" "+inMeta,
		`request body "{\"prompt\":[1,2]}" last`,
		"response headers",
		`response body "data: {}\n\n"`,
		fmt.Sprintf("response body %q", usageEnd),
		`response body "" last`,
	)
	wantCalls(t, p, "answered 10.0.0.2:8000 200", "first token", "usage 40 32", "end")
	r := p.requests[0]
	if r.Method != "POST" || r.Path != "/v1/completions?x=1" || r.ID != "r1" || string(r.Body) != `{"prompt":[1,2]}` || r.Eligible != nil {
		t.Errorf("the picker was asked %+v with body %q", r, r.Body)
	}
}

func TestBuffered(t *testing.T) {
	p := fleet()
	wantAnswers(t, run(t, p, Options{},
		config(requestHeaders(false), buffered, streamed), requestBody(`{"prompt":[1,2]}`, true),
		responseHeaders("200", ""), responseBody(`{"usage":{"prompt_tokens":7}}`, true), responseTrailers(),
	),
		"request headers",
		"request body "+chosen+" "+inMeta,
		"response headers",
		"response body",
		"response trailers",
	)
	wantCalls(t, p, "answered  200", "first token", "usage 7 -1", "end")
	if string(p.requests[0].Body) != `{"prompt":[1,2]}` {
		t.Errorf("body %q", p.requests[0].Body)
	}
}

// TestModeOfOthers has a data plane that sends no ProtocolConfiguration, and others with modes in which no engine can be chosen.
func TestModeOfOthers(t *testing.T) {
	wantAnswers(t, run(t, fleet(), Options{}, requestHeaders(false), requestBody("x", true), responseHeaders("200", ""),
		responseBody("y", true)),
		"request headers "+chosen+" "+inMeta, `request body "x" last`, "response headers", `response body "y" last`)
	for _, mode := range []extfilter.ProcessingMode_BodySendMode{
		streamed, extfilter.ProcessingMode_BUFFERED_PARTIAL, extfilter.ProcessingMode_GRPC,
	} {
		err := New(fleet(), Options{}).Process(&fakeStream{ctx: t.Context(), in: []*extproc.ProcessingRequest{
			config(requestHeaders(false), mode, none),
		}})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "request_body_mode "+mode.String()) {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestLastPieceTwice has a data plane that sends the end of a body twice: it is sent on once.
func TestLastPieceTwice(t *testing.T) {
	wantAnswers(t, run(t, fleet(), Options{}, config(requestHeaders(false), fullDuplex, none), requestBody("x", false),
		requestBody("y", true), requestBody("y", true), responseHeaders("200", "")),
		"request headers "+chosen+" "+inMeta, `request body "xy" last`, "response headers")
}

func TestWithoutBody(t *testing.T) {
	for _, mode := range []extfilter.ProcessingMode_BodySendMode{fullDuplex, buffered, none} {
		p := fleet()
		wantAnswers(t, run(t, p, Options{}, config(requestHeaders(true), mode, none), responseHeaders("404", "10.0.0.1:8000")),
			"request headers "+chosen+" "+inMeta, "response headers")
		wantCalls(t, p, "answered 10.0.0.1:8000 404", "first token", "end") // no body will come
		if p.requests[0].Body != nil {
			t.Errorf("%s: body %q", mode, p.requests[0].Body)
		}
	}
}

// TestUpgrade holds that clients which wait for an answer before they send anything else get one.
func TestUpgrade(t *testing.T) {
	for _, headers := range [][]string{{":method", "GET", "upgrade", "websocket"}, {":method", "CONNECT"}} {
		wantAnswers(t, run(t, fleet(), Options{}, config(requestHeaders(false, headers...), fullDuplex, fullDuplex),
			responseHeaders("101", ""), requestBody("x", false), responseBody("y", true)),
			"request headers "+chosen+" "+inMeta, "response headers", `request body "x"`, `response body "y" last`)
	}
}

func TestTrailers(t *testing.T) {
	p := fleet()
	wantAnswers(t, run(t, p, Options{}, config(requestHeaders(false), fullDuplex, fullDuplex), requestBody("x", false), requestTrailers(),
		responseHeaders("200", ""), responseBody("y", false), responseTrailers()),
		"request headers "+chosen+" "+inMeta, `request body "x"`, "request trailers", "response headers", `response body "y"`,
		"response trailers")
	if string(p.requests[0].Body) != "x" {
		t.Errorf("body %q", p.requests[0].Body)
	}
	wantAnswers(t, run(t, fleet(), Options{}, config(requestHeaders(false), fullDuplex, none), requestTrailers()),
		"request headers "+chosen+" "+inMeta, "request trailers")
	wantAnswers(t, run(t, fleet(), Options{}, config(requestHeaders(false), buffered, none), requestBody("x", false), requestTrailers()),
		"request headers", "request body "+chosen+" "+inMeta, "request trailers")
	wantAnswers(t, run(t, fleet(), Options{}, config(requestHeaders(false), buffered, none), requestTrailers()),
		"request headers", "request trailers "+inMeta)
}

// TestLargeBodies sends bodies beyond the bound: they pass, in every mode, but the picker gets only their beginning.
func TestLargeBodies(t *testing.T) {
	for name, o := range map[string]Options{"one body": {MaxBody: 5}, "all bodies": {MaxHeld: 5}} {
		p := fleet()
		wantAnswers(t, run(t, p, o, config(requestHeaders(false), fullDuplex, none),
			requestBody("abc", false), requestBody("def", false), requestBody("ghi", false), requestBody("", true)),
			"request headers "+chosen+" "+inMeta, `request body "abcdef"`, `request body "ghi"`, `request body "" last`)
		wantAnswers(t, run(t, p, o, config(requestHeaders(false), buffered, none), requestBody("abcdef", true)),
			"request headers", "request body "+chosen+" "+inMeta)
		for i, r := range p.requests {
			if string(r.Body) != "abcdef" {
				t.Errorf("%s: the picker got the body %q of request %d", name, r.Body, i)
			}
		}
	}
	p := fleet()
	run(t, p, Options{MaxBody: 5}, config(requestHeaders(false), buffered, none), requestBody(strings.Repeat("x", modelWithin+1), true))
	if n := len(p.requests[0].Body); n != modelWithin {
		t.Errorf("the picker got %d bytes of a body that is too large", n)
	}
}

// TestHeldIsReleased sees that bodies leave no trace in what all streams hold, however their streams end.
func TestHeldIsReleased(t *testing.T) {
	s := New(fleet(), Options{})
	refusing := New(&fakePicker{err: &pick.Refusal{Status: 429}}, Options{})
	panicking := New(&fakePicker{panics: true}, Options{})
	for _, server := range []*Server{s, refusing, panicking} {
		for _, mode := range []extfilter.ProcessingMode_BodySendMode{fullDuplex, buffered} {
			for _, end := range []bool{false, true} {
				_ = server.Process(&fakeStream{ctx: t.Context(), last: io.ErrUnexpectedEOF, in: []*extproc.ProcessingRequest{
					config(requestHeaders(false), mode, none), requestBody("abc", false), requestBody("def", end),
				}})
				if n := server.held.Load(); n != 0 {
					t.Errorf("%s, end %t: %d bytes held", mode, end, n)
				}
			}
		}
		if n := server.streams.Load(); n != 0 {
			t.Errorf("%d streams", n)
		}
	}
}

// TestPieces sends 8 MiB in one message, which comes back in messages that Envoy takes, and in 10,000.
func TestPieces(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 8<<20/16)
	for _, pieces := range []int{1, 10_000} {
		p := fleet()
		in := []*extproc.ProcessingRequest{config(requestHeaders(false), fullDuplex, fullDuplex)}
		size := len(body)/pieces + 1
		for i := 0; i < len(body); i += size {
			in = append(in, requestBody(body[i:min(i+size, len(body))], i+size >= len(body)))
		}
		sent := run(t, p, Options{}, append(in, responseHeaders("200", ""), responseBody(body, true))...)
		var there, back strings.Builder
		for i, m := range sent {
			for to, b := range map[*strings.Builder]*extproc.BodyResponse{&there: m.GetRequestBody(), &back: m.GetResponseBody()} {
				piece := b.GetResponse().GetBodyMutation().GetStreamedResponse()
				if len(piece.GetBody()) > 62<<10 {
					t.Fatalf("a piece of %d bytes", len(piece.GetBody()))
				}
				to.Write(piece.GetBody())
				if piece.GetEndOfStream() != (b != nil && to.Len() == len(body)) {
					t.Errorf("answer %d: end of stream %t after %d bytes", i, piece.GetEndOfStream(), to.Len())
				}
			}
		}
		if string(p.requests[0].Body) != body || there.String() != body || back.String() != body {
			t.Errorf("%d pieces: the picker got %d bytes, the engine %d, the client %d", pieces, len(p.requests[0].Body), there.Len(),
				back.Len())
		}
	}
}

func TestForeignHeaders(t *testing.T) {
	own := []string{ // a copy, so that none goes unnoticed
		"x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served",
		"x-conductor-picker", "x-conductor-picker-debug", "x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports",
		"x-data-parallel-host-port", "x-data-parallel-rank",
	}
	if !slices.Equal(OwnHeaders, own) {
		t.Errorf("own headers %q, want %q", OwnHeaders, own)
	}
	p := fleet()
	p.choice.Headers = map[string]string{"X-Data-Parallel-Rank": "3"}
	outside, removed := []string{"x-other", "stays", "X-Mine", "1"}, " -x-mine"
	removedAtOnce := removed
	for i, name := range own {
		if i%2 == 0 {
			outside = append(outside, strings.ToUpper(name), "6.6.6.6:1")
		} else {
			outside = append(outside, name, "6.6.6.6:1")
		}
		removedAtOnce += " -" + name
		if name != "x-gateway-destination-endpoint" && name != "x-data-parallel-rank" { // which are set
			removed += " -" + name
		}
	}
	o := Options{OwnHeaders: []string{"X-Mine"}}
	set := "x-data-parallel-rank=3 " + chosen
	wantAnswers(t, run(t, p, o, config(requestHeaders(false, outside...), fullDuplex, none), requestBody("x", true)),
		"request headers "+set+removed+" "+inMeta, `request body "x" last`)
	wantAnswers(t, run(t, p, o, config(requestHeaders(false, outside...), buffered, none), requestBody("x", true)),
		"request headers"+removedAtOnce, "request body "+set+removed+" "+inMeta)
}

func TestSubset(t *testing.T) {
	f := func(hint any, want ...string) {
		t.Helper()
		p := fleet()
		m := config(requestHeaders(true), fullDuplex, none)
		m.MetadataContext = filterMetadata("envoy.lb.subset_hint", map[string]any{"x-gateway-destination-endpoint-subset": hint})
		sent := run(t, p, Options{}, m)
		if want != nil && len(want) == 0 {
			if len(p.requests) != 0 || sent[0].GetImmediateResponse().GetStatus().GetCode() != 503 {
				t.Errorf("%v: answered %s", hint, brief(sent[0]))
			}
			return
		}
		if got := p.requests[0].Eligible; !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v: eligible %q, want %q", hint, got, want)
		}
	}
	f([]any{"a:1", "b:2"}, "a:1", "b:2")
	f("a:1,b:2", "a:1", "b:2")
	f(" a:1 , b:2,", "a:1", "b:2")
	f([]any{"a:1,b:2", 7, ""}, "a:1", "b:2")
	f(nil)
	f([]any{}, []string{}...)
	f("", []string{}...)
	f([]any{7}, []string{}...)
	f(7, []string{}...)
	f(map[string]any{"a:1": true}, []string{}...)

	// Other keys and namespaces are no hints.
	p := fleet()
	m := config(requestHeaders(true), fullDuplex, none)
	m.MetadataContext = filterMetadata("envoy.lb", map[string]any{"x-gateway-destination-endpoint-subset": "a:1"})
	run(t, p, Options{}, m)
	if p.requests[0].Eligible != nil {
		t.Errorf("eligible %q", p.requests[0].Eligible)
	}
}

func TestRefusal(t *testing.T) {
	f := func(code int, want string) {
		t.Helper()
		p := &fakePicker{err: fmt.Errorf("wrapped: %w", &pick.Refusal{Status: code, Message: `all "busy"`})}
		for _, mode := range []extfilter.ProcessingMode_BodySendMode{fullDuplex, buffered} {
			sent := run(t, p, Options{}, config(requestHeaders(false), mode, none), requestBody("x", true), requestBody("ignored", true))
			if got := brief(sent[len(sent)-1]); got != want {
				t.Errorf("answered %s, want %s", got, want)
			}
		}
	}
	f(429, `immediate 429 content-type=application/json `+
		`{"error":{"message":"all \"busy\"","type":"rate_limit_exceeded","param":null,"code":429}}`)
	unavailable := `immediate 503 content-type=application/json ` +
		`{"error":{"message":"all \"busy\"","type":"service_unavailable","param":null,"code":503}}`
	f(503, unavailable)
	f(0, unavailable)
	f(200, unavailable)
	f(999, unavailable)
}

// TestErrors checks how streams end that cannot go on, and that the flight hears of it in any case.
func TestErrors(t *testing.T) {
	f := func(name string, p *fakePicker, want codes.Code, in ...*extproc.ProcessingRequest) {
		t.Helper()
		err := New(p, Options{}).Process(&fakeStream{ctx: t.Context(), in: in})
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	headers := func() *extproc.ProcessingRequest { return config(requestHeaders(false), fullDuplex, none) }
	f("no part", fleet(), codes.InvalidArgument, &extproc.ProcessingRequest{})
	f("headers twice", fleet(), codes.InvalidArgument, headers(), headers())
	f("body first", fleet(), codes.InvalidArgument, requestBody("x", true))
	f("trailers first", fleet(), codes.InvalidArgument, requestTrailers())
	f("empty headers", fleet(), codes.OK, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{}})
	f("gRPC bodies", fleet(), codes.Unimplemented, config(requestHeaders(false), extfilter.ProcessingMode_GRPC, none))
	f("observed", fleet(), codes.Unimplemented, &extproc.ProcessingRequest{ObservabilityMode: true})
	f("another error", &fakePicker{err: errors.New("odd")}, codes.Internal, headers(), requestBody("x", true))
	f("panic", &fakePicker{panics: true}, codes.Internal, headers(), requestBody("x", true))
	f("no endpoint", &fakePicker{}, codes.Internal, headers(), requestBody("x", true))

	// Responses without a request that was picked for are the data plane's own, such as its 408.
	p := fleet()
	wantAnswers(t, run(t, p, Options{}, headers(), requestBody("x", false), responseHeaders("408", ""), responseBody("late", true)),
		"response headers", "response body")
	wantCalls(t, p)

	// A client that leaves.
	p = fleet()
	left := &fakeStream{ctx: t.Context(), last: status.Error(codes.Canceled, "left"), in: []*extproc.ProcessingRequest{
		headers(), requestBody("x", true), responseHeaders("200", ""), responseBody(`{"usage":{"prompt_tokens":3}}`, false),
	}}
	if err := New(p, Options{}).Process(left); status.Code(err) != codes.Canceled {
		t.Errorf("left: %v", err)
	}
	wantCalls(t, p, "answered  200", "first token", "usage 3 -1", "end")

	// A client that leaves while the engine is chosen.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	gone := &fakeStream{ctx: ctx, in: []*extproc.ProcessingRequest{headers(), requestBody("x", true)}}
	err := New(&fakePicker{wait: true}, Options{}).Process(gone)
	if status.Code(err) != codes.Canceled {
		t.Errorf("left while waiting: %v", err)
	}

	// A data plane that takes no answer.
	p = fleet()
	if err := New(p, Options{}).Process(&fakeStream{
		ctx: t.Context(), fail: io.ErrClosedPipe, in: []*extproc.ProcessingRequest{headers(), requestBody("x", true)},
	}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("send: %v", err)
	}
	wantCalls(t, p, "end")
}

// TestDebug runs in bubbles, because a decision that is logged, the first of a second, asks for the reason too.
func TestDebug(t *testing.T) {
	f := func(allowed bool, asked, why, want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			p := fleet()
			p.choice.Why = why
			s := New(p, Options{Debug: allowed})
			process := func() []*extproc.ProcessingResponse {
				stream := &fakeStream{ctx: t.Context(), in: []*extproc.ProcessingRequest{
					config(requestHeaders(true, "x-conductor-picker-debug", asked), fullDuplex, none), responseHeaders("200", ""),
				}}
				if err := s.Process(stream); err != nil {
					t.Fatal(err)
				}
				return stream.sent
			}
			for range 2 {
				wantAnswers(t, process(), "request headers "+chosen+" -x-conductor-picker-debug "+inMeta, want)
			}
			if !p.requests[0].Explain || p.requests[1].Explain != (allowed && asked == "1") {
				t.Errorf("debug allowed %t and asked for by %q: the choice that is logged is explained %t, and the next one %t",
					allowed, asked, p.requests[0].Explain, p.requests[1].Explain)
			}
		})
	}
	f(true, "1", "longest prefix", "response headers x-conductor-picker=longest prefix")
	f(true, "1", "line\r\nx-evil: ä", "response headers x-conductor-picker=line??x-evil: ?")
	f(true, "1", strings.Repeat("w", 2000), "response headers x-conductor-picker="+strings.Repeat("w", 1024))
	f(true, "1", "", "response headers")
	f(true, "0", "longest prefix", "response headers")
	f(false, "1", "longest prefix", "response headers")
}

func TestMetricsAndLog(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	var out bytes.Buffer
	p := fleet()
	s := New(p, Options{Registry: registry, MaxBody: 2, Log: zerolog.New(&out)})
	process := func() {
		_ = s.Process(&fakeStream{ctx: t.Context(), in: []*extproc.ProcessingRequest{
			config(requestHeaders(false), buffered, none), requestBody("abc", true),
		}})
	}
	process()
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["endpoint"] != "10.0.0.1:8000" || line["why"] != "longest prefix" ||
		line["request"] != "r1" {
		t.Errorf("log %s: %v", out.Bytes(), err)
	}
	if s.logDue(testTime) != true || s.logDue(testTime) != false || s.logDue(testTime.Add(1e9)) != true {
		t.Error("more or less than one line a second")
	}
	p.err = &pick.Refusal{Status: 429}
	process()
	p.err = errors.New("odd")
	process()
	p.panics = true
	process()
	for outcome, want := range map[string]float64{"picked": 1, "refused_429": 1, "failed": 1} {
		if got := testutil.ToFloat64(s.metrics.requests.WithLabelValues(outcome)); got != want {
			t.Errorf("%v of %s, want %v", got, outcome, want)
		}
	}
	if n := testutil.ToFloat64(s.metrics.panics); n != 1 {
		t.Errorf("%v panics", n)
	}
	if n := testutil.ToFloat64(s.metrics.unread); n != 4 {
		t.Errorf("%v bodies unread", n)
	}
	if !strings.Contains(out.String(), "a defect") {
		t.Errorf("the panic is not in the log: %s", out.String())
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}

// TestTrace sees that the span of a choice belongs to Envoy's trace, and that the picker gets the span.
func TestTrace(t *testing.T) {
	const client, envoy = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	p := fleet()
	s := New(p, Options{Tracer: tracer})
	for _, ctx := range []context.Context{metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", envoy)), t.Context()} {
		if err := s.Process(&fakeStream{ctx: ctx, in: []*extproc.ProcessingRequest{
			config(requestHeaders(true, "traceparent", client), fullDuplex, none),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, parent := range []string{envoy, client} {
		span := recorder.Ended()[i]
		if got := fmt.Sprintf("00-%s-%s-01", span.Parent().TraceID(), span.Parent().SpanID()); got != parent {
			t.Errorf("parent %s, want %s", got, parent)
		}
		want := fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())
		if got := p.requests[i].Traceparent; got != want {
			t.Errorf("the picker got %s, want %s", got, want)
		}
	}
	// Without a tracer the picker gets what came.
	p = fleet()
	run(t, p, Options{}, config(requestHeaders(true, "traceparent", client), fullDuplex, none))
	if got := p.requests[0].Traceparent; got != client {
		t.Errorf("the picker got %s, want %s", got, client)
	}
}

func TestRequestsWithoutID(t *testing.T) {
	p := fleet()
	for range 2 {
		run(t, p, Options{}, config(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
			RequestHeaders: httpHeaders(true, ":path", "/"),
		}}, buffered, none))
	}
	if a, b := p.requests[0].ID, p.requests[1].ID; a == "" || a == b {
		t.Errorf("IDs %q and %q", a, b)
	}
	run(t, p, Options{}, config(requestHeaders(true, "x-request-id", strings.Repeat("x", 1000)), buffered, none))
	if id := p.requests[2].ID; id == "" || len(id) > maxID {
		t.Errorf("ID %q", id)
	}
}

// FuzzStream sends any messages in any order: the stream must end without a panic, and what it held be released.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5}, uint8(4), uint8(4))
	f.Add([]byte{0, 7, 1, 6}, uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, order []byte, request, response uint8) {
		registry := prometheus.NewRegistry()
		s := New(fleet(), Options{MaxBody: 100, Registry: registry})
		var in []*extproc.ProcessingRequest
		for i, b := range order {
			var m *extproc.ProcessingRequest
			end := b&8 != 0
			switch b % 8 {
			case 0:
				m = requestHeaders(end)
			case 1:
				m = requestBody(strings.Repeat("x", int(b)), end)
			case 2:
				m = requestTrailers()
			case 3:
				m = responseHeaders("200", "a:1")
			case 4:
				m = responseBody(strings.Repeat(`"usage":{`, int(b)), end)
			case 5:
				m = responseTrailers()
			case 6:
				m = &extproc.ProcessingRequest{}
			default:
				m = &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{}}
			}
			if i == 0 {
				m = config(m, extfilter.ProcessingMode_BodySendMode(request%6), extfilter.ProcessingMode_BodySendMode(response%6))
			}
			in = append(in, m)
		}
		_ = s.Process(&fakeStream{ctx: t.Context(), in: in})
		if n := testutil.ToFloat64(s.metrics.panics); n != 0 || s.held.Load() != 0 {
			t.Errorf("%v panics, %d bytes held", n, s.held.Load())
		}
	})
}
