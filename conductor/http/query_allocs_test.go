//go:build !race

package http_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	conductorserver "example.com/conductor/conductor/server"
	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/internal/must"
)

// TestQueriesAllocateWhatNetHTTPDoes: over a socket a query allocates no more than a request to a handler of net/http
// that reads its body and sends an answer of the same length with the same headers.
func TestQueriesAllocateWhatNetHTTPDoes(t *testing.T) {
	c, prompt := conductorhttp.NewPromptFleet(t)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16, Admission: conductorserver.NewAdmission(4, time.Second)},
		Budget:  conductorserver.NewBudget(1 << 30), Lists: conductorserver.NewLists(),
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(), Guard: access.New(access.Policy{Anonymous: access.Query},
			zerolog.Nop()).Check,
		Use: []gin.HandlerFunc{telemetry.New(nil, zerolog.Nop()).Middleware},
	}
	engine := admin.New(c, opts)
	conductorserver.Dialects{conductorhttp.Dialect(c, opts.Dialect)}.MountRoot(engine)
	tokens := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(prompt)), ","), "[]")
	text := fmt.Sprintf(`{"model": "m", "block_size": %d, "tenant_id": "default", "token_ids": [%s]}`, conductorhttp.TestBlock, tokens)
	ours, length := requestAllocs(t, engine, text)
	answer, kind, size := make([]byte, length), []string{"application/json"}, []string{fmt.Sprint(length)}
	room := make([]byte, len(text))
	least, _ := requestAllocs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, room)
		r.Body.Close()
		w.Header()["Content-Type"], w.Header()["Content-Length"] = kind, size
		w.Write(answer)
	}), text)
	t.Logf("%.1f allocations, of which net/http makes %.1f", ours, least)
	if ours > least+0.5 {
		t.Errorf("a query makes %.1f allocations, net/http alone %.1f", ours, least)
	}
}

// requestAllocs serves a handler and returns how many allocations a request makes, and how long an answer is.
func requestAllocs(t *testing.T, h http.Handler, text string) (allocs float64, length int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	s := conductorserver.NewServer(h, conductorserver.Timeouts{Read: time.Minute, Idle: time.Minute})
	go s.Serve(conductorserver.Joined(l))
	t.Cleanup(func() { s.Close() })
	req, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String()+"/query", strings.NewReader(text))
	must.Succeed(t, err)
	req.Header.Set("Content-Type", "application/json")
	whole, err := httputil.DumpRequestOut(req, true)
	must.Succeed(t, err)
	c, err := net.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	head, room := 0, make([]byte, 1<<20)
	ask := func() {
		_, err := c.Write(whole)
		must.Succeed(t, err)
		n := 0
		for head == 0 || n < head+length {
			more, err := c.Read(room[n:])
			must.Succeed(t, err)
			n += more
			if end := bytes.Index(room[:n], []byte("\r\n\r\n")); head == 0 && end > 0 {
				head = end + 4
				if _, after, found := bytes.Cut(room[:end], []byte("Content-Length: ")); !bytes.HasPrefix(room, []byte("HTTP/1.1 200")) ||
					!found {
					t.Fatalf("the server answers %q", room[:n])
				} else if _, err := fmt.Sscan(string(after), &length); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for range 100 {
		ask()
	}
	const n = 2000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		ask()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n, length
}
