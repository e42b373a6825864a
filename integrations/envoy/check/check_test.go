package check

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/conductor/integrations/envoy/extproc"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/integrations/envoy/server"
)

// forEach runs a test with every variant.
func forEach(t *testing.T, s settings, test func(t *testing.T, e *env)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { test(t, start(t, v, s)) })
	}
}

// wantServed checks that an engine has answered with status 200.
func wantServed(t *testing.T, a answer, by *engine) {
	t.Helper()
	if a.err != nil || a.status != 200 || a.header.Get("X-Engine") != by.name {
		t.Errorf("answer %s of engine %q, want 200 of %q", a, a.header.Get("X-Engine"), by.name)
	}
}

// TestChoice sends requests where the picker says, alternately so that Envoy's own balancing cannot pass.
func TestChoice(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		for i := range 20 {
			want, other := e.a, e.b
			if i%3 == 0 {
				want, other = e.b, e.a
			}
			e.picker.follow(to(want.address, other.address))
			body := fmt.Sprintf(`{"model":"m","prompt":[%d,2,3]}`, i)
			a, path := e.post(body)
			wantServed(t, a, want)
			e.wantTold(path, "answered "+want.address+" 200, first token, usage 64 48, end")
			if got := e.picker.of(path).request; string(got.Body) != body || got.Method != "POST" || got.ID == "" || got.Eligible != nil {
				t.Errorf("the picker was asked %+v with %q", got, got.Body)
			}
			got := want.got(path)
			list := want.address + "," + other.address
			if string(got.body) != body || got.header.Get("X-Gateway-Destination-Endpoint") != list ||
				got.header.Get("X-Test-Metadata") != list {
				t.Errorf("the engine got %q, header %q and metadata %q, want %q in both", got.body,
					got.header.Get("X-Gateway-Destination-Endpoint"), got.header.Get("X-Test-Metadata"), list)
			}
			if got := got.header.Get("X-Request-Id"); got != e.picker.of(path).request.ID {
				t.Errorf("the engine got request ID %q, the picker %q", got, e.picker.of(path).request.ID)
			}
		}
	})
}

// TestMethodsAndBodies sends requests that have no body, or one that is no JSON object.
func TestMethodsAndBodies(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(to(e.b.address))
		path := e.path()
		r := e.newRequest(t.Context(), path, nil)
		r.Method = http.MethodGet
		wantServed(t, e.do(r), e.b)
		if f := e.picker.of(path); f.request.Method != "GET" || f.request.Body != nil {
			t.Errorf("the picker was asked %+v", f.request)
		}
		for _, body := range []string{"no JSON", "\x00\xff{", "{", `{"a":1}{"b":2}`, strings.Repeat("[", 100_000)} {
			a, path := e.post(body, "X-Sim", "echo")
			wantServed(t, a, e.b)
			if a.body != body || string(e.picker.of(path).request.Body) != body {
				t.Errorf("body %.50q: the client got %.50q back, the picker %.50q", body, a.body, e.picker.of(path).request.Body)
			}
		}
		e.picker.follow(func(r *pick.Request) (*pick.Choice, error) {
			return &pick.Choice{Endpoints: []string{e.b.address}, Headers: map[string]string{"X-Prefiller-Host-Port": "1.2.3.4:5"}}, nil
		})
		_, path = e.post("{}")
		if got := e.b.got(path).header.Get("X-Prefiller-Host-Port"); got != "1.2.3.4:5" {
			t.Errorf("the engine got %q as header of the choice", got)
		}
	})
}

// TestFallbacks names endpoints that are not there, and one that answers 503.
func TestFallbacks(t *testing.T) {
	dead := refusing(t)
	forEach(t, settings{hosts: []string{dead}}, func(t *testing.T, e *env) {
		for _, first := range []string{dead, "203.0.113.1:1"} { // refuses connections; is no host of the cluster
			e.picker.follow(to(first, e.b.address, e.a.address))
			for _, body := range []string{"", "{}", strings.Repeat("x", 8<<20)} {
				a, path := e.post(body)
				wantServed(t, a, e.b)
				e.wantTold(path, "answered "+e.b.address+" 200, first token, usage 64 48, end")
				if got := e.b.got(path).body; string(got) != body {
					t.Errorf("the engine got %d bytes, want %d", len(got), len(body))
				}
			}
		}
		e.a.mode.Store("503")
		e.picker.follow(to(e.a.address, e.b.address))
		a, path := e.post("{}")
		wantServed(t, a, e.b)
		e.wantTold(path, "answered "+e.b.address+" 200, first token, usage 64 48, end")
		// Both engines answer 503, and the client gets the answer of the second one.
		e.b.mode.Store("503")
		a, path = e.post("{}")
		if a.status != 503 {
			t.Errorf("answer %s, want 503", a)
		}
		until(t, func() string {
			told := e.picker.of(path).told()
			if !strings.HasPrefix(told, "answered ") || !strings.HasSuffix(told, " 503, first token, end") {
				return "told " + told
			}
			return ""
		})
	})
}

func TestSubset(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(func(r *pick.Request) (*pick.Choice, error) {
			if r.Eligible == nil || slices.Contains(r.Eligible, e.b.address) {
				return &pick.Choice{Endpoints: []string{e.b.address}}, nil
			}
			return nil, &pick.Refusal{Status: 503, Message: "no eligible engine"}
		})
		list := func(of ...any) string {
			l, err := structpb.NewList(of)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := proto.Marshal(structpb.NewListValue(l))
			if err != nil {
				t.Fatal(err)
			}
			return base64.StdEncoding.EncodeToString(raw)
		}
		f := func(header, value string, code int, want ...string) {
			t.Helper()
			a, path := e.post("{}", header, value)
			if a.status != code {
				t.Errorf("%s %q: answer %s, want %d", header, value, a, code)
			}
			if f := e.picker.of(path); want == nil && f != nil {
				t.Errorf("%s %q: the picker was asked", header, value)
			} else if want != nil && !slices.Equal(f.request.Eligible, want) {
				t.Errorf("%s %q: eligible %q, want %q", header, value, f.request.Eligible, want)
			}
		}
		f("x-test-subset", e.b.address+", 10.1.1.1:1", 200, e.b.address, "10.1.1.1:1")
		f("x-test-subset", e.a.address, 503, e.a.address)
		f("x-test-subset", ",", 503)
		f("x-test-subset-value", list(e.a.address, e.b.address), 200, e.a.address, e.b.address)
		f("x-test-subset-value", list("10.1.1.1:1"), 503, "10.1.1.1:1")
		f("x-test-subset-value", list(), 503)
	})
}

func TestRefusals(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		for _, code := range []int{429, 503} {
			e.picker.follow(func(*pick.Request) (*pick.Choice, error) {
				return nil, &pick.Refusal{Status: code, Message: "not now"}
			})
			for _, body := range []string{"", "{}", strings.Repeat("x", 1<<20)} {
				a, path := e.post(body)
				var got struct {
					Error struct {
						Message, Type string
						Code          int
					}
				}
				if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != code || got.Error.Code != code ||
					got.Error.Message != "not now" {
					t.Errorf("answer %s, want %d", a, code)
				}
				if got := a.header.Get("Content-Type"); got != "application/json" {
					t.Errorf("content type %q", got)
				}
				if e.a.got(path) != nil || e.b.got(path) != nil {
					t.Errorf("an engine got the request")
				}
			}
		}
	})
}

// TestLargeBodies sends bodies of up to 8 MiB, all of which the picker reads, and one of 12 MiB, of which it reads the first 64 KiB.
func TestLargeBodies(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(to(e.b.address))
		for _, size := range []int{63 << 10, 1 << 20, 8 << 20, 12 << 20} {
			body := strings.Repeat("0123456789abcde\n", size/16)
			a, path := e.post(body, "X-Sim", "echo")
			wantServed(t, a, e.b)
			if got := string(e.b.got(path).body); got != body {
				t.Errorf("%d bytes: the engine got %d", len(body), len(got))
			}
			if a.body != body {
				t.Errorf("%d bytes: the client got %d back", len(body), len(a.body))
			}
			got := e.picker.of(path).request.Body
			if size <= 8<<20 && string(got) != body || size > 8<<20 && (len(got) > 64<<10 || !strings.HasPrefix(body, string(got))) {
				t.Errorf("%d bytes: the picker got %d", len(body), len(got))
			}
		}
	})
}

// TestPieces sends a body in 10,000 chunks, each in a segment of its own as far as the kernel lets it.
func TestPieces(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(to(e.b.address))
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		path := e.path()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: test\r\nX-Sim: echo\r\nTransfer-Encoding: chunked\r\n\r\n", path)
		var body strings.Builder
		for i := range 10_000 {
			piece := fmt.Sprintf("%d,", i)
			body.WriteString(piece)
			if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", len(piece), piece); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprint(conn, "0\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if err != nil || string(got) != body.String() || string(e.picker.of(path).request.Body) != body.String() {
			t.Errorf("of %d bytes the picker got %d, the client %d: %v", body.Len(), len(e.picker.of(path).request.Body), len(got), err)
		}
	})
}

// TestManyAtOnce has 200 streams under way at the same time: no engine goes on before all have come.
func TestManyAtOnce(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		var came sync.WaitGroup
		came.Add(200)
		e.picker.follow(func(r *pick.Request) (*pick.Choice, error) {
			came.Done()
			came.Wait()
			at := e.a
			if len(r.Body)%2 == 0 {
				at = e.b
			}
			return &pick.Choice{Endpoints: []string{at.address}}, nil
		})
		var clients sync.WaitGroup
		for i := range 200 {
			clients.Go(func() {
				body := strings.Repeat("x", i*100+i%2)
				a, path := e.post(body+"y", "X-Sim", "stream")
				want := e.a
				if (len(body)+1)%2 == 0 {
					want = e.b
				}
				wantServed(t, a, want)
				if !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
					t.Errorf("answer %s", a)
				}
				e.wantTold(path, "answered "+want.address+" 200, first token, usage 64 48, end")
			})
		}
		clients.Wait()
	})
}

// TestStream sees that each token passes when it comes, and that the picker learns of the first one then.
func TestStream(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		path := e.path()
		done := make(chan *http.Response, 1)
		go func() {
			response, err := e.client.Do(e.newRequest(t.Context(), path, strings.NewReader("{}"), "X-Sim", "steps"))
			if err != nil {
				t.Error(err)
			}
			done <- response
		}()
		e.a.proceed <- struct{}{}
		response := <-done
		if response == nil {
			return
		}
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		for i := range 3 {
			for lines.Scan() && lines.Text() == "" {
			}
			if want := fmt.Sprintf("token %d", i); !strings.Contains(lines.Text(), want) {
				t.Fatalf("%q, want %s", lines.Text(), want)
			}
			if i < 2 {
				e.wantTold(path, "answered "+e.a.address+" 200, first token")
				e.a.proceed <- struct{}{}
			}
		}
		for lines.Scan() {
		}
		if err := lines.Err(); err != nil {
			t.Error(err)
		}
		e.wantTold(path, "answered "+e.a.address+" 200, first token, usage 64 48, end")
	})
}

// TestTrailers does without retries, because Envoy up to 1.40 sends the body of a request with trailers twice if it has to keep it for
// a retry: https://github.com/envoyproxy/envoy/issues/45470.
func TestTrailers(t *testing.T) {
	s := settings{edit: func(b bootstrap) {
		delete(at(b.manager(), "route_config", "virtual_hosts", 0, "routes", 0, "route").(map[string]any), "retry_policy")
	}}
	forEach(t, s, func(t *testing.T, e *env) {
		path := e.path()
		r := e.newRequest(t.Context(), path, io.NopCloser(strings.NewReader("body")), "X-Sim", "trailers")
		r.Trailer = http.Header{"X-Sum": {"7"}}
		a := e.do(r)
		wantServed(t, a, e.a)
		got := e.a.got(path)
		if string(got.body) != "body" || got.trailer.Get("X-Sum") != "7" || got.err != nil {
			t.Errorf("the engine got %q and trailers %v: %v", got.body, got.trailer, got.err)
		}
		if a.body != "body" || a.trailer.Get("X-Took") != "3" {
			t.Errorf("the client got %s and trailers %v", a, a.trailer)
		}
		if string(e.picker.of(path).request.Body) != "body" {
			t.Errorf("the picker got %q", e.picker.of(path).request.Body)
		}
	})
}

// TestForeignHeaders has a client that claims to be the picker.
func TestForeignHeaders(t *testing.T) {
	// All that extproc knows. In full duplex only the picker removes them.
	own := []string{
		"x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served",
		"x-conductor-picker", "x-conductor-picker-debug", "x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports",
		"x-data-parallel-host-port", "x-data-parallel-rank",
	}
	forEach(t, settings{}, func(t *testing.T, e *env) {
		var outside []string
		for _, name := range append(own, own[0]) { // one of them twice
			outside = append(outside, name, e.b.address)
		}
		outside = append(outside, "x-conductor-picker-debug", "1", "x-other", "stays")
		for _, body := range []string{"", "{}"} {
			a, path := e.post(body, outside...)
			wantServed(t, a, e.a)
			got := e.a.got(path).header
			for _, name := range own {
				var want []string
				if name == "x-gateway-destination-endpoint" {
					want = []string{e.a.address}
				}
				if v := got.Values(name); !slices.Equal(v, want) {
					t.Errorf("the engine got %s: %q, want %q", name, v, want)
				}
			}
			if v := got.Get("x-other"); v != "stays" {
				t.Errorf("the engine got x-other: %q", v)
			}
			if why := a.header.Values("x-conductor-picker"); len(why) > 0 {
				t.Errorf("the client got the reason %q, which the operator does not allow", why)
			}
		}
	})
}

func TestDebug(t *testing.T) {
	forEach(t, settings{picker: extproc.Options{Debug: true}}, func(t *testing.T, e *env) {
		a, _ := e.post("{}", "x-conductor-picker-debug", "1")
		if why := a.header.Get("x-conductor-picker"); why != "the test says so" {
			t.Errorf("the client got the reason %q", why)
		}
		if a, _ := e.post("{}"); a.header.Get("x-conductor-picker") != "" {
			t.Error("the client got a reason that it did not ask for")
		}
	})
}

// TestEngineErrors has engines that answer with an error, or reset the connection.
func TestEngineErrors(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(to(e.a.address, e.b.address))
		for _, code := range []string{"400", "500"} { // nothing that another engine would do better
			a, path := e.post("{}", "X-Sim", code)
			if fmt.Sprint(a.status) != code || !strings.Contains(a.body, "simulated") {
				t.Errorf("answer %s, want %s", a, code)
			}
			e.wantTold(path, "answered "+e.a.address+" "+code+", first token, end")
		}
		path := e.path()
		response, err := e.client.Do(e.newRequest(t.Context(), path, strings.NewReader("{}"), "X-Sim", "reset after a token"))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.ReadFull(response.Body, make([]byte, 10)); err != nil {
			t.Error(err)
		}
		e.a.proceed <- struct{}{} // the client has a token
		if rest, err := io.ReadAll(response.Body); err == nil {
			t.Errorf("the answer of an engine that was reset ended well with %q", rest)
		}
		e.wantTold(path, "answered "+e.a.address+" 200, first token, end")

		e.a.mode.Store("reset")
		a, path := e.post("{}")
		wantServed(t, a, e.b)
		e.wantTold(path, "answered "+e.b.address+" 200, first token, usage 64 48, end")
	})
}

// TestEngineHangs has an engine that never answers, and an Envoy that does not wait for it forever.
func TestEngineHangs(t *testing.T) {
	s := settings{edit: func(b bootstrap) {
		at(b.manager(), "route_config", "virtual_hosts", 0, "routes", 0, "route").(map[string]any)["timeout"] = "0.05s"
	}}
	forEach(t, s, func(t *testing.T, e *env) {
		a, path := e.post("{}", "X-Sim", "hang")
		if a.status != 504 {
			t.Errorf("answer %s, want 504 of Envoy", a)
		}
		until(t, func() string {
			if told := e.picker.of(path).told(); told != "answered "+e.a.address+" 504, first token, end" {
				return "told " + told
			}
			return ""
		})
	})
}

// TestClientLeaves has clients that leave while the engine thinks, while it streams, and while they send.
func TestClientLeaves(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		ctx, leave := context.WithCancel(t.Context())
		path, left := e.path(), make(chan answer, 1)
		go func() { left <- e.do(e.newRequest(ctx, path, strings.NewReader("{}"), "X-Sim", "hang")) }()
		until(t, func() string {
			if e.a.hanging.Load() != 1 {
				return "the engine has not got the request"
			}
			return ""
		})
		leave()
		<-left
		e.wantTold(path, "end")
		until(t, func() string {
			if e.a.hanging.Load() != 0 {
				return "the engine still works for a client that has left"
			}
			return ""
		})

		ctx, leave = context.WithCancel(t.Context())
		path = e.path()
		go func() { left <- e.do(e.newRequest(ctx, path, strings.NewReader("{}"), "X-Sim", "steps")) }()
		e.a.proceed <- struct{}{}
		e.wantTold(path, "answered "+e.a.address+" 200, first token")
		leave()
		<-left
		e.wantTold(path, "answered "+e.a.address+" 200, first token, end")

		ctx, leave = context.WithCancel(t.Context())
		path = e.path()
		body, write := io.Pipe()
		go func() { left <- e.do(e.newRequest(ctx, path, body)) }()
		if _, err := write.Write([]byte("{")); err != nil {
			t.Error(err)
		}
		leave()
		write.CloseWithError(context.Canceled) // Go's client waits for a body that it reads
		<-left
		if a, _ := e.post("{}"); e.picker.of(path) != nil || a.status != 200 {
			t.Errorf("the picker chose for an incomplete request; the next one got %s", a)
		}
		until(t, func() string { return e.activeStreams(0) })
	})
}

// activeStreams returns "" if Envoy has n streams to the picker.
func (e *env) activeStreams(n int) string {
	return e.stat("cluster.picker.upstream_rq_active", n)
}

// stat returns "" if a statistic of Envoy's is n.
func (e *env) stat(name string, n int) string {
	body, err := e.fromAdmin("/stats?filter=^" + name + "$")
	if err != nil || strings.TrimSpace(body) != fmt.Sprintf("%s: %d", name, n) {
		return fmt.Sprintf("want %s: %d, got %q (%v)", name, n, body, err)
	}
	return ""
}

// TestEngineKilled kills an engine while 8 clients send requests to it first: those whose answer had begun may fail, none after.
func TestEngineKilled(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(to(e.a.address, e.b.address))
		var killed atomic.Bool
		var before, after, cut atomic.Int64
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for range 1000 {
					if after.Load() > 200 {
						return
					}
					late := killed.Load() // before the request was sent
					a, _ := e.post("{}", "X-Sim", "stream")
					switch {
					case a.err == nil && a.status == 200 && strings.HasSuffix(a.body, "[DONE]\n\n"):
						if late {
							after.Add(1)
						} else {
							before.Add(1)
						}
					case late:
						t.Errorf("after the engine was killed: %s", a)
						return
					default:
						cut.Add(1)
					}
				}
			})
		}
		until(t, func() string {
			if before.Load() < 50 {
				return "no requests"
			}
			return ""
		})
		e.a.kill()
		killed.Store(true)
		clients.Wait()
		t.Logf("%d requests before, %d after, %d cut", before.Load(), after.Load(), cut.Load())
		if after.Load() < 200 {
			t.Errorf("%d requests after the engine was killed", after.Load())
		}
		// The engine comes back, and with it its requests, once Envoy lets it.
		e.a.listen(t, e.a.address)
		until(t, func() string {
			a, _ := e.post("{}")
			if a.status != 200 || a.header.Get("X-Engine") != e.a.name {
				return fmt.Sprintf("answer %s of %s", a, a.header.Get("X-Engine"))
			}
			return ""
		})
	})
}

// TestPickerKilled sees requests go on by Envoy's own balancing, not where a client says, and by the picker's choice when it is back.
func TestPickerKilled(t *testing.T) {
	// Of a gateway that goes by the header nothing but the picker protects that header.
	const unprotected = "full duplex and header"
	all := append(slices.Clone(variants), variant{"buffered and header", byHeader})
	for _, v := range all {
		t.Run(v.name, func(t *testing.T) {
			e := start(t, v, settings{})
			a, _ := e.post("{}")
			wantServed(t, a, e.a)
			e.stop()
			if e.fullDuplex {
				// Envoy sends the body to the picker and keeps no copy. So it goes on alone only if it knows beforehand that the picker
				// is down.
				until(t, func() string { return e.stat("cluster.picker.membership_healthy", 0) })
			}
			headers := []string{"X-Sim", "echo"}
			if v.name != unprotected {
				for _, name := range protected {
					headers = append(headers, name, e.b.address)
				}
			}
			served := map[string]int{}
			for range 50 {
				a, path := e.post(`{"prompt":"x"}`, headers...)
				if a.err != nil || a.status != 200 || a.body != `{"prompt":"x"}` || e.picker.of(path) != nil {
					t.Fatalf("without a picker: %s", a)
				}
				by := a.header.Get("X-Engine")
				served[by]++
				for _, name := range protected {
					got := map[string]*engine{"a": e.a, "b": e.b}[by].got(path).header.Values(name)
					if !e.fullDuplex && len(got) > 0 { // there gateways have rules of their own
						t.Errorf("without a picker the engine got %s: %q", name, got)
					}
				}
			}
			if len(served) != 2 {
				t.Errorf("without a picker all went to %v", served)
			}
			e.startPicker(settings{})
			e.picker.follow(to(e.b.address))
			until(t, func() string {
				a, path := e.post("{}")
				if a.status != 200 || e.picker.of(path) == nil {
					return fmt.Sprintf("the picker that is back was not asked: %s", a)
				}
				wantServed(t, a, e.b)
				return ""
			})
		})
	}
}

// protected are the headers that envoy.yaml removes, because the picker may be down.
var protected = []string{"x-gateway-destination-endpoint", "x-data-parallel-rank", "x-prefiller-host-port"}

// TestPickerKilledMidAnswer sees what becomes of an answer under way. In FULL_DUPLEX_STREAMED Envoy cuts it, because parts of it may be
// lost with the picker. In STREAMED it goes on.
func TestPickerKilledMidAnswer(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		path := e.path()
		done := make(chan answer, 1)
		go func() { done <- e.do(e.newRequest(t.Context(), path, strings.NewReader("{}"), "X-Sim", "steps")) }()
		e.a.proceed <- struct{}{}
		e.wantTold(path, "answered "+e.a.address+" 200, first token")
		e.stop()
		until(t, func() string { return e.activeStreams(0) })
		var a answer
		for ended := false; !ended; {
			select {
			case e.a.proceed <- struct{}{}:
			case a = <-done:
				ended = true
			}
		}
		if whole := a.err == nil && strings.HasSuffix(a.body, "[DONE]\n\n"); !strings.Contains(a.body, "token 0") || whole == e.fullDuplex {
			t.Errorf("answer %s", a)
		}
	})
}

// TestPickerPanics sees a defect cost nothing but the choice.
func TestPickerPanics(t *testing.T) {
	forEach(t, settings{}, func(t *testing.T, e *env) {
		e.picker.follow(func(*pick.Request) (*pick.Choice, error) { panic("a defect") })
		want := 200
		if e.fullDuplex { // Envoy has sent the body to the picker and kept no copy
			want = 500
		}
		if a, _ := e.post("{}"); a.status != want {
			t.Errorf("the request whose stream failed: %s, want %d", a, want)
		}
		e.picker.follow(to(e.b.address))
		a, _ := e.post("{}")
		wantServed(t, a, e.b)
	})
}

// TestTrace has Envoy trace requests, and sees picker and engine in the same trace. Where the spans go does not matter here.
func TestTrace(t *testing.T) {
	s := settings{edit: func(b bootstrap) {
		tracer := map[string]any{
			"@type":        "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
			"grpc_service": map[string]any{"envoy_grpc": map[string]any{"cluster_name": "picker"}},
		}
		b.manager()["tracing"] = map[string]any{
			"provider": map[string]any{"name": "envoy.tracers.opentelemetry", "typed_config": tracer},
		}
	}}
	forEach(t, s, func(t *testing.T, e *env) {
		_, path := e.post("{}", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		asked := strings.Split(e.picker.of(path).request.Traceparent, "-")
		engine := strings.Split(e.a.got(path).header.Get("Traceparent"), "-")
		const trace, client = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		if len(asked) != 4 || len(engine) != 4 || asked[1] != trace || engine[1] != trace || asked[2] == client {
			t.Errorf("the picker got %q, the engine %q", asked, engine)
		}
	})
}

// TestHealthAndTLS has Envoy check the picker's health over TLS, and leave it alone while it is not ready.
func TestHealthAndTLS(t *testing.T) {
	config, err := server.SelfSignedTLS()
	if err != nil {
		t.Fatal(err)
	}
	s := settings{server: server.Options{TLS: config}, edit: func(b bootstrap) {
		c := b.cluster("picker")
		c["transport_socket"] = map[string]any{"name": "envoy.transport_sockets.tls", "typed_config": map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"sni":   "conductor-picker",
		}}
	}}
	forEach(t, s, func(t *testing.T, e *env) {
		asked := func(want bool) {
			t.Helper()
			until(t, func() string {
				a, path := e.post("{}")
				if a.status != 200 || (e.picker.of(path) != nil) != want {
					return fmt.Sprintf("answer %s, the picker was asked: %t, want %t", a, e.picker.of(path) != nil, want)
				}
				return ""
			})
		}
		asked(true)
		e.ready.Store(false)
		asked(false)
		e.ready.Store(true)
		asked(true)
	})
}

// TestServices asks the picker for its health and its services as kubelet and grpcurl do.
func TestServices(t *testing.T) {
	e := start(t, variants[0], settings{})
	conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	e.ready.Store(false)
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_NOT_SERVING, "liveness": healthpb.HealthCheckResponse_SERVING,
		"readiness": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		got, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != want {
			t.Errorf("%q: %s (%v), want %s", service, got.GetStatus(), err, want)
		}
	}
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
	r, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "envoy.service.ext_proc.v3.ExternalProcessor",
	}}); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Recv(); err != nil || len(m.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection: %v (%v)", m, err)
	}
}
