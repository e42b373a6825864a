package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/internal/must"
)

func instancesOf(t *testing.T, text string) (all []status.Instance) {
	t.Helper()
	var answer struct{ Instances []status.Instance }
	must.Succeed(t, json.Unmarshal([]byte(text), &answer))
	return answer.Instances
}

// TestInstances lists where requests may go.
func TestInstances(t *testing.T) {
	s := newServer(t)
	if rec := s.do("GET", "/instances", ""); rec.Body.String() != `{"instances":[]}` {
		t.Errorf("%s", rec.Body)
	}
	s = newCandidatesServer(t)
	s.do("POST", "/register", `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"10.0.0.7:80","block_size":16,`+
		`"dp_rank":2,"aliases":["z","y"],"tenant_id":"blue"}`)
	want := []status.Instance{
		{Tenant: "blue", Model: "m", BlockSize: 16, Name: "10.0.0.7:80", Address: "http://10.0.0.7:80", State: "connecting",
			Ranks: []int32{2}, Aliases: []string{"y", "z"}},
		{Tenant: "default", Model: "m", BlockSize: 4, Name: "a", Address: "http://a:8000", State: "approximate", Approximate: true,
			Ranks: []int32{0}, Adapters: []string{"sql"}},
		{Tenant: "default", Model: "m", BlockSize: 4, Name: "b", Address: "http://b:8000", State: "approximate", Approximate: true,
			Ranks: []int32{0}, Adapters: []string{"sql"}},
	}
	if got := instancesOf(t, s.do("GET", "/instances", "").Body.String()); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// watching is an open watch of instances.
type watching struct {
	t     *testing.T
	lines *bufio.Scanner
}

// next returns the name and the data of the next event.
func (w *watching) next() (name, data string) {
	w.t.Helper()
	for w.lines.Scan() {
		line := w.lines.Text()
		if text, is := strings.CutPrefix(line, "event: "); is {
			name = text
		}
		if text, is := strings.CutPrefix(line, "data: "); is {
			return name, text
		}
	}
	return "end", fmt.Sprint(w.lines.Err())
}

// TestWatchedInstances follows a fleet that changes, as its client and until the server leaves.
func TestWatchedInstances(t *testing.T) {
	var watches *conductorhttp.Watches
	var c *conductor.Conductor
	var mayWatch atomic.Bool
	mayWatch.Store(true)
	s := newServer(t, func(of *conductor.Conductor, o *admin.Options) {
		c, watches = of, conductorhttp.NewWatches(of, 8)
		conductorhttp.SetAlive(watches, 300*time.Millisecond)
		o.Dialect.Watches = watches
		o.Dialect.Again = func(*gin.Context) bool { return mayWatch.Load() }
	})
	front := httptest.NewServer(s.engine)
	defer front.Close()
	defer watches.Close() // the front waits for its requests
	register := func(instance, address string) {
		t.Helper()
		must.Succeed(t, c.Register(registration.Registration{Type: registration.TypeStandard, Events: registration.EventsNone,
			CapacityBlocks: 9, Model: "m", Instance: instance, BlockSize: 4, Address: address}, ingest.RegisterOptions{}))
	}
	open := func(ctx context.Context) *nethttp.Response {
		t.Helper()
		req, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodGet, front.URL+"/instances", nil)
		must.Succeed(t, err)
		req.Header.Set("Accept", "text/event-stream")
		resp, err := front.Client().Do(req)
		must.Succeed(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	register("a", "http://a")
	first := open(t.Context())
	w := &watching{t, bufio.NewScanner(first.Body)}
	name, data := w.next()
	if all := instancesOf(t, data); first.Header.Get("Content-Type") != "text/event-stream" || name != "instances" || len(all) != 1 ||
		all[0].Name != "a" || all[0].Address != "http://a" {
		t.Errorf("first %s %s", name, data)
	}
	changed := func(want string) {
		t.Helper()
		name, data := w.next()
		var got struct {
			Changed []status.Instance
			Gone    []struct {
				Tenant   string `json:"tenant_id"`
				Model    string
				Block    int    `json:"block_size"`
				Instance string `json:"instance_id"`
			}
		}
		must.Succeed(t, json.Unmarshal([]byte(data), &got))
		text := name
		for _, i := range got.Changed {
			text += fmt.Sprint(" ", i.Name, "=", i.Address)
		}
		for _, i := range got.Gone {
			text += fmt.Sprint(" -", i.Tenant, "|", i.Model, "|", i.Block, "|", i.Instance)
		}
		if text != want {
			t.Errorf("%s, want %s", text, want)
		}
	}
	register("b", "")
	changed("changes b=")
	register("a", "http://c") // the address is taken over
	changed("changes a=http://c")
	_, err := c.Unregister(registration.Key{Instance: "b", Tenant: "default"})
	must.Succeed(t, err)
	changed("changes -default|m|4|b")

	// A client has a quarter of the watches. One that may not watch any more loses its own.
	second := open(t.Context())
	if again := open(t.Context()); again.StatusCode != nethttp.StatusServiceUnavailable {
		t.Errorf("a third watch of eight is %s", again.Status)
	}
	mayWatch.Store(false)
	must.Report(t, drained(second.Body)) // it ends
	if name, why := w.next(); name != "end" || why != "<nil>" {
		t.Errorf("without permission: %s %s", name, why)
	}
	mayWatch.Store(true)
	w = &watching{t, bufio.NewScanner(open(t.Context()).Body)}
	w.next()
	watches.Close()
	if name, why := w.next(); name != "end" || why != "<nil>" {
		t.Errorf("after the end: %s %s", name, why)
	}
	// Without watches there are none, but the list.
	s = newServer(t)
	req := httptest.NewRequest(nethttp.MethodGet, "/instances", nil)
	req.Header.Set("Accept", "text/event-stream")
	rec := httptest.NewRecorder()
	if s.engine.ServeHTTP(rec, req); rec.Code != nethttp.StatusNotFound {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func drained(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// gatedWriter is the connection of a client that takes what it is sent only while its gate is open. It is an http.ResponseWriter with
// deadlines.
type gatedWriter struct {
	header   nethttp.Header
	gate     chan struct{} // closed while it is open
	deadline time.Time
	events   []string
}

func (w *gatedWriter) Header() nethttp.Header              { return w.header }
func (w *gatedWriter) WriteHeader(int)                     {}
func (w *gatedWriter) Flush()                              {}
func (w *gatedWriter) SetWriteDeadline(at time.Time) error { w.deadline = at; return nil }
func (w *gatedWriter) Write(b []byte) (int, error) {
	select {
	case <-w.gate:
	case <-time.After(time.Until(w.deadline)):
		return 0, os.ErrDeadlineExceeded
	}
	w.events = append(w.events, string(b))
	return len(b), nil
}

// TestSlowWatch holds that a client that does not take what it is sent keeps no other one waiting, that nothing is collected for it,
// and that it loses its watch.
func TestSlowWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var watches *conductorhttp.Watches
		var c *conductor.Conductor
		s := newServer(t, func(of *conductor.Conductor, o *admin.Options) {
			c, watches = of, conductorhttp.NewWatches(of, 12)
			o.Dialect.Watches = watches
		})
		registry := prometheus.NewRegistry()
		registry.MustRegister(watches)
		openWatches := func(want float64) {
			t.Helper()
			all, err := registry.Gather()
			must.Succeed(t, err)
			if n := all[0].Metric[0].GetGauge().GetValue(); n != want {
				t.Errorf("%v watches are open, want %v", n, want)
			}
		}
		shut, open := make(chan struct{}), make(chan struct{})
		close(open)
		var over sync.WaitGroup
		watch := func(gate chan struct{}) *gatedWriter {
			w := &gatedWriter{header: make(nethttp.Header), gate: gate}
			req := httptest.NewRequest(nethttp.MethodGet, "/instances", nil)
			req.Header.Set("Accept", "text/event-stream")
			over.Go(func() { s.engine.ServeHTTP(w, req) })
			synctest.Wait()
			return w
		}
		address := func(n int) string { return fmt.Sprintf("http://a%02d", n) }
		move := func(n int) {
			t.Helper()
			must.Succeed(t, c.Register(registration.Registration{Type: registration.TypeStandard, Events: registration.EventsNone,
				CapacityBlocks: 9, Model: "m", Instance: "a", BlockSize: 4, Address: address(n)}, ingest.RegisterOptions{}))
		}
		move(0)
		slow, stuck, fast := watch(shut), watch(make(chan struct{})), watch(open)
		const moves = 50
		for n := 1; n <= moves; n++ {
			move(n)
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if len(fast.events) != 1+n || !strings.Contains(fast.events[n], address(n)+`"`) {
				t.Fatalf("after %d changes the fast client has %d events: %q", n, len(fast.events), fast.events)
			}
		}
		if len(slow.events)+len(stuck.events) != 0 {
			t.Fatal("a client has taken what it is sent")
		}
		close(shut) // the slow client takes the event that waits, and then what differs now
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if e := slow.events; len(e) != 2 || !strings.Contains(e[0], address(0)+`"`) || !strings.Contains(e[1], address(moves)+`"`) ||
			len(e[1]) > 2*len(fast.events[1]) {
			t.Errorf("after %d changes the slow client gets %q", moves, e)
		}
		openWatches(3)
		time.Sleep(10 * time.Second) // more than 30 s since the stuck client was sent anything
		synctest.Wait()
		openWatches(2)
		watches.Close()
		over.Wait()
	})
}
