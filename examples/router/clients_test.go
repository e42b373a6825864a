package router

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// frontOf returns a router in front of two workers that answer with a handler, and its server.
func frontOf(t *testing.T, answer http.HandlerFunc) (*Router, *httptest.Server) {
	t.Helper()
	r := &Router{Patience: time.Minute, BodyTimeout: time.Minute}
	for _, name := range []string{"a", "b"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != "/health" {
				answer(w, req)
			}
		}))
		s.Config.MaxHeaderBytes = 8 << 10
		s.Start()
		t.Cleanup(s.Close)
		r.Workers = append(r.Workers, workerAt(t, name, 0, s))
	}
	front := httptest.NewServer(r)
	t.Cleanup(front.Close)
	return r, front
}

// sendText sends the text of a request, and returns the status of the answer, 0 if there is none.
func sendText(t *testing.T, front *httptest.Server, text string) int {
	t.Helper()
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	must.Succeed(t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, text) // the server may have refused it halfway
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (r *Router) allHealthy(t *testing.T, after string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for worker := range r.Workers {
		if r.down != nil && r.down[worker] {
			t.Errorf("after %s %s counts as down", after, r.Workers[worker])
		}
	}
}

// allStayHealthy lets the requests and the checks that they caused end before it looks.
func (r *Router) allStayHealthy(t *testing.T, front *httptest.Server, after string) {
	t.Helper()
	front.Close() // waits for the handlers
	r.Wait()
	r.allHealthy(t, after)
}

// TestClientsCostNoWorker holds that nothing that a client sends counts against a worker.
func TestClientsCostNoWorker(t *testing.T) {
	const prompt, post = `{"prompt":[1,2,3]}`, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
	sized := fmt.Sprintf("Content-Length: %d\r\n", len(prompt))
	for name, c := range map[string]struct {
		request string
		status  int // 0: any
	}{
		"a strange Upgrade":         {post + sized + "Connection: Upgrade\r\nUpgrade: \x80\xff\r\n\r\n" + prompt, 200},
		"an Upgrade":                {post + sized + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + prompt, 200},
		"an Expect":                 {post + sized + "Expect: 100-continue\r\n\r\n" + prompt, 100},
		"TE":                        {post + sized + "Connection: TE\r\nTE: trailers, gzip\r\n\r\n" + prompt, 200},
		"headers between neighbors": {post + sized + "Connection: Host, X-A\r\nX-A: 1\r\nKeep-Alive: x\r\n\r\n" + prompt, 200},
		"a header of odd bytes":     {post + sized + "X-A: \xff\xfe\tb\r\n\r\n" + prompt, 200},
		"a header of control bytes": {post + sized + "X-A: \x01\r\n\r\n" + prompt, 400},
		"a large header":            {post + sized + "X-A: " + strings.Repeat("x", 256<<10) + "\r\n\r\n" + prompt, 0},
		"a trailer": {post + "Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n12\r\n" + prompt +
			"\r\n0\r\nX-A: \x01\r\n\r\n", 0},
		"a chunk that is none":             {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"a tunnel":                         {"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 405},
		"a target that is no path":         {"GET http:x HTTP/1.1\r\nHost: x\r\n\r\n", 0},
		"a target of another server":       {"GET http://u:p@other.example/%zz?a=%zz;b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"a query that cannot be read":      {"GET /v1/models?a=%zz;b HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		"a method that nobody knows":       {"BREW /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		"a prompt that the worker refuses": {post + "X-Answer: 400\r\n" + sized + "\r\n" + prompt, 400},
		"a prompt that breaks the answer":  {post + "X-Answer: none\r\n" + sized + "\r\n" + prompt, 502},
	} {
		t.Run(name, func(t *testing.T) {
			r, front := frontOf(t, func(w http.ResponseWriter, req *http.Request) {
				switch req.Header.Get("X-Answer") {
				case "400":
					http.Error(w, "no", http.StatusBadRequest)
				case "none":
					panic(http.ErrAbortHandler)
				}
			})
			if status := sendText(t, front, c.request); status != c.status && c.status != 0 {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if status, _, text := call(t, http.MethodPost, front.URL, prompt); status != 200 {
				t.Errorf("the next client gets %d %s", status, text)
			}
			r.allStayHealthy(t, front, name)
		})
	}
}

// TestClientLeaves holds that a client that goes away, or does not read its answer, counts against no worker.
func TestClientLeaves(t *testing.T) {
	arrived, left := make(chan bool, 2), make(chan bool, 2)
	streams := false
	r, front := frontOf(t, func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		arrived <- true
		for streams && req.Context().Err() == nil {
			w.Write(make([]byte, 64<<10))
			http.NewResponseController(w).Flush()
		}
		<-req.Context().Done()
		left <- true
	})
	for _, streams = range []bool{false, true} {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-arrived
			leave()
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL, strings.NewReader(`{"prompt":[1]}`))
		must.Succeed(t, err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			<-ctx.Done() // without a look at the answer
			resp.Body.Close()
		}
		<-left
	}
	r.allStayHealthy(t, front, "clients that left")
}

// TestBodiesAreBounded holds that a body is bounded in bytes and time, and all bodies together in bytes.
func TestBodiesAreBounded(t *testing.T) {
	r, front := frontOf(t, func(http.ResponseWriter, *http.Request) {})
	if status, _, _ := call(t, http.MethodPost, front.URL, strings.Repeat(" ", maxBody+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large: %d", status)
	}
	r.bodies.Add(maxBodies)
	if status, _, _ := call(t, http.MethodPost, front.URL, `{"prompt":[1]}`); status != http.StatusServiceUnavailable {
		t.Errorf("a body that is one too many: %d", status)
	}
	r.bodies.Add(-maxBodies)
	r.BodyTimeout = time.Millisecond
	if status := sendText(t, front, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"); status != http.StatusRequestTimeout {
		t.Errorf("a body that does not end: %d", status)
	}
	r.BodyTimeout = time.Minute
	if status, _, _ := call(t, http.MethodPost, front.URL, `{"prompt":[1]}`); status != 200 {
		t.Errorf("the next client gets %d", status)
	}
	r.allStayHealthy(t, front, "bodies that were refused")
	if n := r.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// TestHungWorkerHoldsNoRequest has a worker that fails requests, and whose check does not end before they have all been answered. The
// other one answers them. A worker that turns out to be healthy does not count as down at any time.
func TestHungWorkerHoldsNoRequest(t *testing.T) {
	served, checks := make(chan bool), new(atomic.Int32)
	endChecks := sync.OnceFunc(func() { close(served) })
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/health" {
			checks.Add(1)
			<-served
			return
		}
		panic(http.ErrAbortHandler)
	}))
	defer busy.Close()
	good := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer good.Close()
	r := &Router{Workers: []Worker{workerAt(t, "busy", 0, busy), workerAt(t, "good", 0, good)}, Patience: time.Minute,
		HealthTimeout: time.Hour}
	r.Conductor = conductor(t, map[string]reach{"busy/0": {3, 3, 3, 3}, "good/0": {}})
	front := httptest.NewServer(r)
	defer front.Close()
	defer endChecks() // the worker waits for it
	for range 3 {
		status, routed, text := call(t, http.MethodPost, front.URL+"/v1/completions", `{"prompt":[1,2,3]}`)
		if status != http.StatusOK || routed != "good/0" {
			t.Errorf("the request ends with %d from %q: %s", status, routed, text)
		}
		r.allHealthy(t, "a request")
	}
	endChecks()
	if r.allStayHealthy(t, front, "its check"); checks.Load() != 1 {
		t.Errorf("%d checks of one worker at once", checks.Load())
	}
}
