package dynamo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/history"
	"example.com/conductor/history/peer"
)

// pipes is a network for HTTP without sockets, so that a fake clock can run while
// a client waits: listeners by host and port.
type pipes map[string]chan net.Conn

// serve answers at an address until the test ends.
func (p pipes) serve(t testing.TB, address string, h http.Handler) {
	p[address] = make(chan net.Conn)
	web := &http.Server{Handler: h}
	go web.Serve(pipeListener{p[address], make(chan struct{}), address})
	t.Cleanup(func() { web.Close() })
}

// client returns one that connects through the pipes. Other addresses refuse connections. Its
// transport goes on connecting when the request has been given up.
func (p pipes) client(t testing.TB) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			l, known := p[address]
			if !known {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			near, far := net.Pipe()
			select {
			case l <- far:
				return near, nil
			case <-t.Context().Done():
				return nil, t.Context().Err()
			}
		}}}
}

type pipeListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	address  string
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error   { close(l.closed); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: l.address, Net: "pipe"} }

// says answers everything with a status and a text of a type.
func says(status int, kind, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	})
}

// slowly sends the parts of an answer with a pause before each but the first, and
// goes on listening for as long as it is listened to if it does not end.
func slowly(pause time.Duration, ends bool, parts ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i, part := range parts {
			if i > 0 {
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
					return
				}
			}
			fmt.Fprint(w, part)
			w.(http.Flusher).Flush()
		}
		if !ends {
			<-r.Context().Done()
		}
	})
}

// breaks sends a text and closes the connection in the middle of the answer.
func breaks(kind, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, text)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
}

// at answers one path and no other.
func at(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// told writes a status out.
func told(r peer.Status) string {
	return fmt.Sprintf("%s %s, %d blocks, %d bytes, %vs, skipped %v, errors %q", r.State, r.Peer, r.Blocks, r.Bytes, r.Seconds, r.Skipped,
		r.Errors)
}

// asks returns a replica that asks peers for dumps through pipes.
func (p pipes) asks(t testing.TB, peers ...string) *peer.Peers {
	return peer.New(peer.Config{Peers: peers, Client: p.client(t), Formats: []peer.Format{Dumps(zerolog.Nop())}, Log: zerolog.Nop()})
}

// Peers are asked in order, until one gives a whole dump; nothing is left of what
// another gave before it failed.
func TestRecoverFromFirstWholeDump(t *testing.T) {
	last := slotText("last:default", event(`:7,`, `:99,`))
	whole := "{" + slotText("m:default", event()) + "," + last + "}"
	const one = "m default 7/0 device -/1001"
	f := func(peers map[string]http.Handler, asked string, want peer.Status, holds ...string) {
		t.Helper()
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				web := pipes{"hangs:80": make(chan net.Conn)} // takes no connection, and refuses none
				for name, h := range peers {
					web.serve(t, name+":80", h)
				}
				cfg := Config{Replica: web.asks(t, strings.Fields(asked)...)}
				s := newServerOn(t, cfg, newNetwork(), make(chan struct{}))
				s.register(1, 0, "")
				start := time.Now()
				got := s.restore(t.Context(), time.Hour)
				if took := time.Since(start).Seconds(); got.Seconds != took {
					t.Errorf("%v s, it took %v", got.Seconds, took)
				}
				if want.State != peer.Done {
					got.Bytes = 0
					if left := s.blocks(); len(left) > 0 || len(s.conductor.Sources().Snapshots().Take().Sources) != 1 {
						t.Errorf("%s: left %v", asked, left)
					}
				} else {
					s.holds(holds...)
				}
				if told(got) != told(want) {
					t.Errorf("%s\n got %s\nwant %s", asked, told(got), told(want))
				}
				if again := s.dialect.replica.Status(); want.State == peer.Done && told(again) != told(want) {
					t.Errorf("%s\nthen %s\nwant %s", asked, told(again), told(want))
				}
				peers := `["` + strings.Join(strings.Fields(asked), `","`) + `"]`
				if asked == "" {
					peers = "[]"
				}
				s.do("GET", "/peers", "", 200, peers)
			})
		})
	}
	ok := says(200, "application/json", whole)
	done := func(url string, seconds float64, errors ...string) peer.Status {
		return peer.Status{State: peer.Done, Peer: url, Blocks: 2, Bytes: int64(len(whole)), Errors: errors, Seconds: seconds}
	}
	f(nil, "", peer.Status{State: peer.None})
	f(map[string]http.Handler{"a": ok}, "http://a", done("http://a", 1), one)
	f(map[string]http.Handler{"a": at("/dump", ok)}, "http://a/", done("http://a/", 1), one)
	f(map[string]http.Handler{"a": at("/dump", ok)}, "http://a// http://b", done("http://a//", 1), one)
	f(map[string]http.Handler{"a": at("/x/dump", ok)}, "http://a/x/", done("http://a/x/", 1), one)
	f(map[string]http.Handler{"a": says(200, "text/plain", whole)}, "http://a", done("http://a", 1), one)
	f(map[string]http.Handler{"a": slowly(9*time.Second, true, whole[:1], whole[1:100], whole[100:101], whole[101:])}, "http://a",
		done("http://a", 28), one)

	// Parts that are left out are counted, and an empty index is whole.
	text := "{" + slotText("m:default", event(`"worker"`, "null"), event()) + `,"x:y":{"error":"z"},` + last + "}"
	partly := done("http://a", 1)
	partly.Skipped, partly.Bytes = map[string]int{skipError: 1, skipOther: 1}, int64(len(text))
	f(map[string]http.Handler{"a": says(200, "application/json", text)}, "http://a", partly, one)
	line := `{"key":"last:default","block_size":4,"event":` + event(`:7,`, `:99,`) + "}\n"
	lines := peer.Status{State: peer.Done, Peer: "http://a", Blocks: 1, Bytes: int64(len(line)), Seconds: 1}
	f(map[string]http.Handler{"a": says(200, "application/x-ndjson; charset=utf-8", line)}, "http://a", lines)
	synctest.Test(t, func(t *testing.T) {
		web := pipes{}
		web.serve(t, "a:80", says(200, "application/json", "{}"))
		s := newServer(t, Config{Replica: web.asks(t, "http://a")})
		if got := s.restore(t.Context(), 0); got.State != peer.Done || got.Blocks != 0 {
			t.Errorf("%s", told(got))
		}
	})

	// A peer that is of no use, before one that is.
	bad := func(url string, h http.Handler, seconds float64, err string) {
		t.Helper()
		peers := map[string]http.Handler{"a": ok}
		if h != nil {
			peers["b"] = h
		}
		f(peers, url+" http://a http://c", done("http://a", 1+seconds, url+": "+err), one)
		delete(peers, "a")
		f(peers, url, peer.Status{
			State: peer.Failed, Peer: url, Errors: []string{url + ": " + err}, Seconds: 1 + seconds,
		})
	}
	bad("http://b/", says(500, "application/json", whole), 0, "it answers 500 Internal Server Error")
	bad("http://b/", says(404, "application/json", whole), 0, "it answers 404 Not Found")
	bad("http://b/", says(501, "application/json", `{"error":"no"}`), 0, "it answers 501 Not Implemented")
	bad("http://b", says(204, "application/json", ""), 0, "it answers 204 No Content")
	bad("http://b", says(200, "application/json", ""), 0, "unexpected EOF")
	bad("http://b", says(200, "application/json", "[]"), 0, "the dump has [ where { is expected")
	bad("http://b", says(200, "text/html", "<html>not here</html>"), 0, "invalid character '<' looking for beginning of value")
	bad("http://b", says(200, "application/json", whole[:len(whole)-1]), 0, "unexpected EOF")
	bad("http://b", says(200, "application/json", whole[:len(whole)-20]), 0, "unexpected EOF")
	bad("http://b", breaks("application/json", whole[:len(whole)-1]), 0, "unexpected EOF")
	bad("http://b", breaks(ndjson, line+line), 0, "unexpected EOF")
	bad("http://d", nil, 0, `Get "http://d/dump": dial tcp: connection refused`)
	bad("http://hangs", nil, 30, "it gave less than 16384 bytes in 30s")
	bad("http://b", slowly(0, false), 30, "it gave less than 16384 bytes in 30s")
	bad("http://b", slowly(0, false, ""), 30, "it gave less than 16384 bytes in 30s")
	bad("http://b", slowly(5*time.Second, false, whole[:1], whole[1:200], whole[200:210]), 30, "it gave less than 16384 bytes in 30s")
	bad("http://b", slowly(31*time.Second, true, whole[:300], whole[300:]), 30, "it gave less than 16384 bytes in 30s")
	bad("10.0.0.1:80", nil, 0, `parse "10.0.0.1:80/dump": first path segment in URL cannot contain colon`)
	bad("ftp://b", nil, 0, `Get "ftp://b/dump": unsupported protocol scheme "ftp"`)
	bad("/", nil, 0, `Get "/dump": unsupported protocol scheme ""`)
}

// restore fills the server from its peers.
func (s *testServer) restore(ctx context.Context, ttl time.Duration) peer.Status {
	s.dialect.replica.Restore(ctx, &history.Loader{Conductor: s.conductor, TTL: ttl, Log: zerolog.Nop()})
	return s.dialect.replica.Status()
}

// TestRecoverEnds stops a server during a recovery, which does not wait for the peer.
func TestRecoverEnds(t *testing.T) {
	f := func(after time.Duration, handler http.Handler) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			web := pipes{}
			web.serve(t, "a:80", handler)
			s := newServerOn(t, Config{Replica: web.asks(t, "http://a", "http://a")}, newNetwork(), make(chan struct{}))
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			start := time.Now()
			if got := s.restore(ctx, time.Hour); got.State != peer.Failed || time.Since(start) != after || len(got.Errors) > 1 {
				t.Errorf("%s after %s", told(got), time.Since(start))
			}
			if left := s.conductor.Sources().Snapshots().Take().Sources; len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
	f(500*time.Millisecond, slowly(0, true, "{}"))
	f(3*time.Second, slowly(0, false))
	f(3*time.Second, slowly(0, false, "{"+slotText("m:default", event())))
}

// TestRecoveredExpire requires that blocks of sources without a registration answer for a
// while and go, and that those of registered ones stay.
func TestRecoveredExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := pipes{}
		web.serve(t, "a:80",
			says(200, "application/json", "{"+slotText("m:default", event(), event(`:7,`, `:8,`), event(`:7,`, `:9,`))+"}"))
		gate := make(chan struct{})
		s := newServerOn(t, Config{Replica: web.asks(t, "http://a")}, newNetwork(), gate)
		s.register(7, 0, "")
		if got := s.restore(t.Context(), time.Hour); got.State != peer.Done {
			t.Fatal(got)
		}
		close(gate)
		f := func(ids ...string) {
			t.Helper()
			var scores, sizes, rows []string
			for _, id := range ids {
				scores = append(scores, fmt.Sprintf(`"%s":{"0":4}`, id))
				sizes = append(sizes, fmt.Sprintf(`"%s":{"0":1}`, id))
				rows = append(rows, fmt.Sprintf(`"%s":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}`, id))
			}
			s.do("POST", "/query", ask(promptOf(3), ""), 200,
				fmt.Sprintf(`{"scores":{%s},"frequencies":[],"tree_sizes":{%s},"instances":{%s}}`,
					strings.Join(scores, ","), strings.Join(sizes, ","), strings.Join(rows, ",")))
		}
		f("7", "8", "9")
		if n := len(s.conductor.Registrations()); n != 1 {
			t.Errorf("%d workers are registered", n)
		}
		<-time.After(30 * time.Minute)
		f("7", "8", "9")
		s.register(8, 0, "")
		f("7", "8", "9")
		<-time.After(30*time.Minute - time.Second - 1)
		f("7", "8", "9")
		<-time.After(2 * time.Second)
		f("7", "8")
		s.do("POST", "/unregister", `{"instance_id":9,"model_name":"m"}`, 404, `{"error":"instance 9 not found"}`)
		<-time.After(10 * time.Hour)
		f("7", "8")
		for _, err := range s.conductor.Check() {
			t.Error(err)
		}
	})
}
