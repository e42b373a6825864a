package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"

	kvconductor "example.com/conductor"
	"example.com/conductor/bounds"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// dialects are the queries of each dialect, and how it tells of an error.
var dialects = []struct {
	path, contentType, body string
	refused                 string // in an answer to a body that is too large
}{
	{"/query", "application/json", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`, `"reason":"too_large"`},
	{"/query_by_hash", "application/json", `{"model":"m","block_size":4,"seq_hashes":[1]}`, `"reason":"too_large"`},
	{"/query_batch", "application/json", `{"queries":[{"model":"m","block_size":4,"token_ids":[1,2,3,4]}]}`, `"reason":"too_large"`},
	{"/query?dialect=v2", "application/json", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`, `"reason":"too_large"`},
	{"/query", "application/msgpack", packed(map[string]any{"model": "m", "block_size": 4, "token_ids": []int{1, 2, 3, 4}}), "too_large"},
	{"/query_by_hash", "application/msgpack", packed(map[string]any{"model": "m", "block_size": 4, "seq_hashes": []int{1}}), "too_large"},
	{"/dynamo/v1/query", "application/json", `{"model_name":"m","token_ids":[1,2,3,4]}`, "length limit exceeded"},
	{"/dynamo/v1/query_by_hash", "application/json", `{"model_name":"m","block_hashes":[1]}`, "length limit exceeded"},
	{"/dynamo/v1/query_tiered_by_hash", "application/json", `{"model_name":"m","block_hashes":[1]}`, "length limit exceeded"},
	{"/conductor/v1/query", "application/json", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`, `"reason":"too_large"`},
}

func packed(v any) string {
	b, err := msgpack.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// everything is the handler of a listener, with a Conductor without sources.
func everything(t testing.TB, a *server.Admission) (http.Handler, *conductor.Conductor) {
	t.Helper()
	c := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: zmq.Transport{}}})
	t.Cleanup(c.Close)
	d := dynamo.New(dynamo.Config{Conductor: c, MaxTokens: 1 << 20, Admission: a, Log: zerolog.Nop()})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.Meter(), d)
	if a != nil {
		registry.MustRegister(a)
	}
	return dialectHandler(config.Conductor, c, d, admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 20, Admission: a, Version: "test"},
		OpenAPI: kvconductor.OpenAPI, Gatherer: registry, Log: zerolog.Nop(),
	}), c
}

func ask(h http.Handler, path, contentType, coding string, body io.Reader) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, path, body)
	req.Header.Set("Content-Type", contentType)
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

// TestCodingsOfEveryDialect holds that each dialect reads compressed bodies as plain
// ones, and reports bad ones in its own words.
func TestCodingsOfEveryDialect(t *testing.T) {
	t.Parallel()
	h, _ := everything(t, nil)
	compress := map[string]func(io.Writer) io.WriteCloser{
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser { e, _ := zstd.NewWriter(w); return e },
	}
	in := func(coding, text string) []byte {
		var b bytes.Buffer
		w := compress[coding](&b)
		io.WriteString(w, text)
		w.Close()
		return b.Bytes()
	}
	bombs := map[string][]byte{"gzip": in("gzip", strings.Repeat(" ", 9<<20)), "zstd": in("zstd", strings.Repeat(" ", 9<<20))}
	for _, d := range dialects {
		plain := ask(h, d.path, d.contentType, "", strings.NewReader(d.body))
		for coding, bomb := range bombs {
			whole := in(coding, d.body)
			f := func(body []byte, status int, says string) {
				t.Helper()
				rec := ask(h, d.path, d.contentType, coding, bytes.NewReader(body))
				if rec.Code != status || !strings.Contains(rec.Body.String(), says) {
					t.Errorf("%s as %s in %s: %d %q, want %d %q", d.path, d.contentType, coding, rec.Code, rec.Body, status, says)
				}
				if kind := rec.Header().Get("Content-Type"); strings.Contains(says, `"`) && !strings.HasPrefix(kind, "application/json") {
					t.Errorf("%s: an error as %q", d.path, kind)
				}
			}
			f(whole, plain.Code, plain.Body.String())
			f(whole[:len(whole)-2], http.StatusBadRequest, "")
			f(bomb, http.StatusRequestEntityTooLarge, d.refused)
		}
		rec := ask(h, d.path, d.contentType, "br", strings.NewReader(d.body))
		if rec.Code != http.StatusUnsupportedMediaType || rec.Header().Get("Accept-Encoding") != "gzip, zstd" ||
			!strings.Contains(rec.Body.String(), "gzip and zstd") {
			t.Errorf("%s as %s in br: %d %v %q", d.path, d.contentType, rec.Code, rec.Header(), rec.Body)
		}
		if rec := ask(h, d.path, d.contentType, "gzip, gzip", strings.NewReader(d.body)); rec.Code != http.StatusBadRequest ||
			!strings.Contains(rec.Body.String(), "several codings") {
			t.Errorf("%s as %s in two codings: %d %q", d.path, d.contentType, rec.Code, rec.Body)
		}
	}
}

// TestQueriesAreRefused holds that, while all places are taken, queries of every dialect
// wait and are refused, and that nothing else waits for them.
func TestQueriesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 100 * time.Millisecond
		a := server.NewAdmission(1, wait)
		h, _ := everything(t, a)
		for _, d := range dialects {
			free := ask(h, d.path, d.contentType, "", strings.NewReader(d.body))
			if free.Code != http.StatusOK && free.Code != http.StatusNotFound {
				t.Errorf("%s with a free place: %d %s", d.path, free.Code, free.Body)
			}
			must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
			start := time.Now()
			rec := ask(h, d.path, d.contentType, "", strings.NewReader(d.body))
			if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") != "1" ||
				!strings.Contains(rec.Body.String(), "too many queries at once") {
				t.Errorf("%s as %s: %d %v %q", d.path, d.contentType, rec.Code, rec.Header(), rec.Body)
			}
			if waited := time.Since(start); waited != wait {
				t.Errorf("%s waited for %s", d.path, waited)
			}
			a.Leave(bounds.Flow{})
		}

		must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
		start := time.Now()
		f := func(method, path, body string, status int) string {
			t.Helper()
			req := httptest.NewRequest(method, path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != status {
				t.Errorf("%s %s: %d %s", method, path, rec.Code, rec.Body)
			}
			return rec.Body.String()
		}
		f("GET", "/health", "", 200)
		f("GET", "/ready", "", 200)
		metrics := f("GET", "/metrics", "", 200)
		for _, want := range []string{
			"conductor_queries_in_flight 1\n", "conductor_queries_waiting 0\n",
			fmt.Sprintf("conductor_queries_refused_total %d\n", len(dialects)),
		} {
			if !strings.Contains(metrics, want) {
				t.Errorf("metrics lack %q", want)
			}
		}
		f("GET", "/services", "", 200)
		f("POST", "/unregister", `{"instance_id":"a","dp_rank":0}`, 404)
		f("GET", "/dynamo/v1/health", "", 200)
		f("GET", "/dynamo/v1/workers", "", 200)
		f("POST", "/dynamo/v1/unregister", `{"instance_id":1,"model_name":"m"}`, 404)
		if waited := time.Since(start); waited != 0 {
			t.Errorf("what is no query waited for %s", waited)
		}
		a.Leave(bounds.Flow{})
	})
}

// slowWriter is a client that takes its answer late.
type slowWriter struct {
	*httptest.ResponseRecorder
	begun, taken chan struct{}
	once         sync.Once
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.begun) })
	<-w.taken
	return w.ResponseRecorder.Write(p)
}

// TestSlowClientsTakeNoPlace holds that a query counts from the last byte of its body to
// the first of its answer.
func TestSlowClientsTakeNoPlace(t *testing.T) {
	a := server.NewAdmission(1, time.Hour)
	h, c := everything(t, a)
	if err := c.Register(registration.Registration{
		Endpoint: "tcp://127.0.0.1:1", Type: registration.TypeVLLM, Model: "m", Instance: "1", BlockSize: 4,
	}, ingest.RegisterOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, d := range dialects {
		outside := func(when string) {
			t.Helper()
			if st := a.Stats(); st != (server.AdmissionStats{}) {
				t.Errorf("%s as %s, %s: %+v", d.path, d.contentType, when, st)
			}
		}
		body, sender := io.Pipe()
		req := httptest.NewRequest(http.MethodPost, d.path, body)
		req.Header.Set("Content-Type", d.contentType)
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), begun: make(chan struct{}), taken: make(chan struct{})}
		done := make(chan struct{})
		go func() {
			h.ServeHTTP(w, req)
			close(done)
		}()
		io.WriteString(sender, d.body[:10]) // returns once it is read
		outside("while a body is still to come")
		if rec := ask(h, d.path, d.contentType, "", strings.NewReader(d.body)); rec.Code != http.StatusOK {
			t.Errorf("%s as %s, beside a body that is still to come: %d %s", d.path, d.contentType, rec.Code, rec.Body)
		}
		// While the only place is taken, it waits behind its last byte.
		must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
		io.WriteString(sender, d.body[10:])
		if st := a.Stats(); st != (server.AdmissionStats{Inside: 1}) {
			t.Errorf("%s as %s, before its last byte: %+v", d.path, d.contentType, st)
		}
		sender.Close()
		a.Leave(bounds.Flow{})
		<-w.begun
		outside("while its answer is taken")
		close(w.taken)
		<-done
		if w.Code != http.StatusOK {
			t.Errorf("%s as %s: %d %s", d.path, d.contentType, w.Code, w.Body)
		}
	}
}

// TestWhoGoesAwayLeavesTheQueue holds that a query leaves the queue with its client.
func TestWhoGoesAwayLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := server.NewAdmission(1, time.Hour)
		h, _ := everything(t, a)
		must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
		for _, d := range dialects {
			ctx, leave := context.WithCancel(t.Context())
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, d.path, strings.NewReader(d.body))
			req.Header.Set("Content-Type", d.contentType)
			done := make(chan struct{})
			go func() {
				h.ServeHTTP(httptest.NewRecorder(), req)
				close(done)
			}()
			synctest.Wait()
			if st := a.Stats(); st != (server.AdmissionStats{Inside: 1, Waiting: 1}) {
				t.Errorf("%s as %s: %+v", d.path, d.contentType, st)
			}
			leave()
			<-done
			if st := a.Stats(); st != (server.AdmissionStats{Inside: 1}) {
				t.Errorf("%s as %s, afterwards: %+v", d.path, d.contentType, st)
			}
		}
		a.Leave(bounds.Flow{})
	})
}

// listen serves a handler on a socket as the listeners are served.
func listen(t *testing.T, h http.Handler, limits config.Limits, state func(net.Conn, http.ConnState)) (*http.Server, string) {
	t.Helper()
	return listenFor(t, h, listenerTimeouts(limits), state)
}

// listenFor is listen with other timeouts.
func listenFor(
	t *testing.T, h http.Handler, patience server.Timeouts, state func(net.Conn, http.ConnState),
) (*http.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	s := server.NewServer(h, patience)
	s.ConnState = state
	done := make(chan error, 1)
	go func() { done <- s.Serve(server.Joined(l)) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// speaking returns a transport in HTTP/2 from the first byte, or in HTTP/1.1.
func speaking(h2 bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	return &http.Transport{Protocols: protocols}
}

// routerClient returns a client that speaks HTTP/2 from the first byte, or HTTP/1.1.
func routerClient(t *testing.T, h2 bool) *http.Client {
	transport := speaking(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// oneConnection returns a client whose requests all go through one connection, and fail once it is closed.
func oneConnection(t *testing.T, h2 bool, address string) *http.Client {
	t.Helper()
	c, err := speaking(h2).NewClientConn(t.Context(), "http", address)
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	return &http.Client{Transport: c}
}

// TestServeInBothProtocols asks in HTTP/1.1 and in HTTP/2, both on one port, one connection each.
func TestServeInBothProtocols(t *testing.T) {
	t.Parallel()
	h, _ := everything(t, server.NewAdmission(4, time.Minute))
	_, address := listen(t, h, config.Default().Limits, nil)
	for _, h2 := range []bool{false, true} {
		c := oneConnection(t, h2, address)
		send := func(path, contentType, body string) (int, string) {
			t.Helper()
			res, err := c.Post("http://"+address+path, contentType, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			defer res.Body.Close()
			answer, err := io.ReadAll(res.Body)
			must.Report(t, err)
			if (res.ProtoMajor == 2) != h2 {
				t.Errorf("answered in %s", res.Proto)
			}
			return res.StatusCode, string(answer)
		}
		for _, d := range dialects {
			want := ask(h, d.path, d.contentType, "", strings.NewReader(d.body))
			if status, got := send(d.path, d.contentType, d.body); status != want.Code || got != want.Body.String() {
				t.Errorf("%s, HTTP/2 %t: %d %q, want %d %q", d.path, h2, status, got, want.Code, want.Body)
			}
		}
		if !h2 {
			continue
		}
		// Many at once, with bodies beyond the connection's window, still go through that one.
		large := `{"model":"m","block_size":4,"token_ids":[1` + strings.Repeat(",1", 150_000) + `]}`
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if status, got := send("/query", "application/json", large); status != http.StatusOK {
					t.Errorf("%d %s", status, got)
				}
			})
		}
		wg.Wait()
		// A body that is refused half read ends its stream and no other.
		for _, d := range dialects {
			if status, got := send(d.path, d.contentType, strings.Repeat(" ", 9<<20)); status != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: a body that is too large: %d %s", d.path, status, got)
			}
		}
		if status, _ := send("/query", "application/json", large); status != http.StatusOK {
			t.Errorf("after that: %d", status)
		}
	}
}

// TestTimeoutsInBothProtocols holds that a body that does not come costs the read timeout,
// and an idle connection limits.idle_timeout.
func TestTimeoutsInBothProtocols(t *testing.T) {
	t.Parallel()
	patience := server.Timeouts{Read: 50 * time.Millisecond, Idle: 50 * time.Millisecond}
	h, _ := everything(t, nil)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	changed := make(chan struct{}, 1000)
	_, address := listenFor(t, h, patience, func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; state == http.StateClosed {
			delete(open, c)
		}
		changed <- struct{}{}
	})
	for _, h2 := range []bool{false, true} {
		c := routerClient(t, h2)
		body, sender := io.Pipe()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			res, err := c.Post("http://"+address+"/query", "application/json", body)
			if err != nil {
				return // the server was too late to read the header in time
			}
			res.Body.Close()
			if res.StatusCode != http.StatusBadRequest {
				t.Errorf("HTTP/2 %t: a body that does not come: %d", h2, res.StatusCode)
			}
		}()
		for {
			<-changed
			mu.Lock()
			n := len(open)
			mu.Unlock()
			if n == 0 {
				break
			}
		}
		sender.Close() // a client waits for its body, also when the server has closed the connection
		<-asked
	}
}

// TestLengthsThatLie sends in HTTP/2 bodies of another length than they say. No query comes
// of one, and none of the places stays taken.
func TestLengthsThatLie(t *testing.T) {
	t.Parallel()
	places := server.NewAdmission(1, time.Hour)
	h, _ := everything(t, places)
	statuses := make(chan int, 1)
	_, address := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		statuses <- rec.Code
	}), config.Default().Limits, nil)
	for _, d := range dialects {
		for _, said := range []int{0, len(d.body) - 1, len(d.body) + 1, 1 << 19} {
			c, err := net.Dial("tcp", address)
			must.Succeed(t, err)
			var head []byte
			for _, f := range [][2]string{
				{":method", "POST"}, {":scheme", "http"}, {":authority", address}, {":path", d.path},
				{"content-type", d.contentType}, {"content-length", fmt.Sprint(said)},
			} {
				head = append(head, 0, byte(len(f[0]))) // a literal, not indexed
				head = append(append(append(head, f[0]...), byte(len(f[1]))), f[1]...)
			}
			const settings, headers, data, endStream, endHeaders = 4, 1, 0, 1, 4
			frame := func(kind, flags, stream byte, payload []byte) []byte {
				n := len(payload)
				return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, stream}, payload...)
			}
			sent := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			sent = append(sent, frame(settings, 0, 0, nil)...)
			sent = append(sent, frame(headers, endHeaders, 1, head)...)
			sent = append(sent, frame(data, endStream, 1, []byte(d.body))...)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			if status := <-statuses; status != http.StatusBadRequest {
				t.Errorf("%s: %d bytes that are said to be %d: %d", d.path, len(d.body), said, status)
			}
			c.Close()
		}
	}
	if st := places.Stats(); st != (server.AdmissionStats{}) {
		t.Errorf("afterwards: %+v", st)
	}
}

// TestClientsThatTakeNothing holds that a client that takes nothing of its answer for
// limits.idle_timeout does not get the rest, so that its handler ends.
func TestClientsThatTakeNothing(t *testing.T) {
	t.Parallel()
	limits := config.Default().Limits
	limits.IdleTimeout = 300 * time.Millisecond
	piece := make([]byte, 1<<20)
	ended := make(chan error, 1)
	_, address := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = w.Write(piece)
		}
		ended <- err
	}), limits, nil)
	for _, h2 := range []bool{false, true} {
		c := routerClient(t, h2)
		res, err := c.Get("http://" + address + "/long")
		must.Succeed(t, err)
		t.Logf("HTTP/2 %t: %v", h2, <-ended)
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Errorf("HTTP/2 %t: a cut answer looks whole", h2)
		}
		res.Body.Close()
	}
}

// TestShutdownInBothProtocols holds that a request in flight is answered, and that idle
// connections do not hold up the end.
func TestShutdownInBothProtocols(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		a := server.NewAdmission(1, time.Minute)
		h, _ := everything(t, a)
		began := make(chan struct{})
		s, address := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/query" {
				close(began)
			}
			h.ServeHTTP(w, r)
		}), config.Default().Limits, nil)
		router, idle := routerClient(t, h2), routerClient(t, h2)
		if res, err := idle.Get("http://" + address + "/health"); err != nil {
			t.Fatal(err)
		} else {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
		answered := make(chan error, 1)
		go func() {
			res, err := router.Post("http://"+address+"/query", "application/json", strings.NewReader(dialects[0].body))
			if err == nil {
				defer res.Body.Close()
				var answer map[string]any
				if err = json.NewDecoder(res.Body).Decode(&answer); err == nil && res.StatusCode != http.StatusOK {
					err = errors.New(res.Status)
				}
			}
			answered <- err
		}()
		<-began
		stopped := make(chan error, 1)
		go func() { stopped <- s.Shutdown(t.Context()) }()
		a.Leave(bounds.Flow{}) // the one that waits is let in, before or after the end began
		if err := <-answered; err != nil {
			t.Errorf("HTTP/2 %t: a request in flight: %v", h2, err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("HTTP/2 %t: %v", h2, err)
		}
	}
}

// TestCurlInEachProtocol asks as curl does in each protocol; that of an upgrade is answered in HTTP/1.1.
func TestCurlInEachProtocol(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	need := "there is no curl"
	if err == nil {
		need = "curl knows no HTTP/2"
		if features, err := exec.Command(curl, "--version").Output(); err == nil && bytes.Contains(features, []byte("HTTP2")) {
			need = ""
		}
	}
	if need != "" {
		must.Skip(t, need)
	}
	h, _ := everything(t, nil)
	_, address := listen(t, h, config.Default().Limits, nil)
	f := func(flag, want string) {
		t.Helper()
		out, err := exec.Command(curl, flag, "--silent", "--show-error", "--noproxy", "*", "--max-time", "60",
			"--write-out", "%{http_version} %{http_code}", "--data", dialects[0].body, "http://"+address+"/query").CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %s, %v, want %s", flag, out, err, want)
		}
	}
	f("--http1.1", "{}1.1 200")
	f("--http2", "{}1.1 200")
	f("--http2-prior-knowledge", "{}2 200")
}
