package admin_test

import (
	"bufio"
	"context"
	"encoding/json"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"

	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"

	conductorserver "example.com/conductor/conductor/server"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// streamed runs f with the routes of a Conductor with one engine, its publisher and the Hub.
func streamed(t *testing.T, opts admin.Options,
	f func(routes nethttp.Handler, engine *streamtest.Publisher, c *conductor.Conductor, hub *watch.Hub)) {
	n := new(streamtest.Network)
	c := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: n}})
	defer c.Close()
	must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "e",
		BlockSize: 2}, ingest.RegisterOptions{}))
	hub := watch.New(watch.Config{Conductor: c, Version: "test", Viewers: 2, KeepQueries: true})
	defer hub.Close()
	opts.Dialect.MaxBody, opts.Dialect.MaxTokens, opts.Gatherer, opts.Log, opts.Watch = 1<<10, 64, prometheus.NewRegistry(), zerolog.Nop(),
		hub
	f(admin.New(c, opts), n.PublisherAt("tcp://e:1"), c, hub)
}

// TestLiveStream reads a stream for a minute: each event fits the document, comments keep it alive,
// and it ends within 30 seconds of the client's permission.
func TestLiveStream(t *testing.T) {
	doc := apitest.Load(t)
	synctest.Test(t, func(t *testing.T) {
		var allowed atomic.Bool
		allowed.Store(true)
		streamed(t, admin.Options{Again: func(*gin.Context) bool { return allowed.Load() }},
			func(routes nethttp.Handler, engine *streamtest.Publisher, c *conductor.Conductor, _ *watch.Hub) {
				rec, ended := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(ended)
					routes.ServeHTTP(rec, httptest.NewRequest("GET", "/admin/live?feed=1", nil))
				}()
				time.Sleep(2500 * time.Millisecond) // between two collections, which begin a new second of the feed
				for i := range 60 {
					engine.Publish(streamtest.EncodeBatch(0.5, 0, map[string]any{
						"type": "BlockStored", "block_hashes": []int{i}, "parent_block_hash": nil, "token_ids": []int{i, i},
						"block_size": 2,
						"lora_id":    nil, "medium": "GPU",
					}))
				}
				synctest.Wait()
				c.Answer(&match.Query{Model: "m", BlockSize: 2, Tokens: []uint32{1, 1}}, func(*match.Answer) {})
				time.Sleep(time.Minute)
				select {
				case <-ended:
					t.Fatal("the stream has ended")
				default:
				}
				allowed.Store(false)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				select {
				case <-ended:
				default:
					t.Fatal("the stream goes on without permission")
				}
				if h := rec.Header(); rec.Code != 200 || h.Get("Content-Type") != "text/event-stream" ||
					h.Get("Cache-Control") != "no-store" {
					t.Errorf("%d %v", rec.Code, h)
				}
				counts := make(map[string]int)
				for _, event := range strings.Split(strings.TrimSuffix(rec.Body.String(), "\n\n"), "\n\n") {
					name, data, found := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
					if !found {
						counts[event]++
						continue
					}
					if name == "stats" && counts[name] > 0 {
						name = "change"
					}
					var v any
					must.Succeed(t, json.Unmarshal([]byte(data), &v))
					schema := doc.OpenAPI.Components.Schemas[map[string]string{"stats": "FleetStats", "change": "FleetChange",
						"feed":  "LiveBatch",
						"query": "LiveQuery"}[name]]
					if err := schema.Value.VisitJSON(v); err != nil {
						t.Errorf("%s: %v: %s", name, err, data)
					}
					counts[name]++
				}
				if counts["stats"] != 1 || counts["change"] < 85 || counts["feed"] != 51 || counts["query"] != 1 || counts[": alive"] < 5 {
					t.Errorf("%v", counts)
				}
			})
	})
}

// TestLiveStreamOverHTTP2 holds that pacing ends no stream, that a stream of either version of HTTP
// ends with the Hub, and that a client that has gone gives its place back.
func TestLiveStreamOverHTTP2(t *testing.T) {
	streamed(t, admin.Options{}, func(routes nethttp.Handler, _ *streamtest.Publisher, _ *conductor.Conductor, hub *watch.Hub) {
		srv := httptest.NewUnstartedServer(nil)
		srv.Config = conductorserver.NewServer(routes, conductorserver.Timeouts{Read: time.Minute, Idle: 800 * time.Millisecond})
		srv.Listener = conductorserver.Joined(srv.Listener)
		srv.Start()
		defer srv.Close()
		open := func(ctx context.Context, http2 bool) (*bufio.Reader, int) {
			protocols := new(nethttp.Protocols)
			protocols.SetHTTP1(!http2)
			protocols.SetUnencryptedHTTP2(http2)
			req, err := nethttp.NewRequestWithContext(ctx, "GET", srv.URL+"/admin/live", nil)
			must.Succeed(t, err)
			resp, err := (&nethttp.Client{Transport: &nethttp.Transport{Protocols: protocols}}).Do(req)
			must.Succeed(t, err)
			t.Cleanup(func() { resp.Body.Close() })
			if want := map[bool]int{true: 2, false: 1}[http2]; resp.ProtoMajor != want {
				t.Errorf("HTTP/%d, want %d", resp.ProtoMajor, want)
			}
			return bufio.NewReader(resp.Body), resp.StatusCode
		}
		all, end := context.WithTimeout(t.Context(), 2*time.Minute)
		defer end()
		ctx, leave := context.WithCancel(all)
		defer leave()
		open(ctx, true)
		one, _ := open(all, false)
		if _, status := open(all, true); status != 503 {
			t.Errorf("one too many: %d", status)
		}
		leave()
		var two *bufio.Reader
		for status := 503; status == 503; {
			two, status = open(all, true)
		}
		for _, body := range []*bufio.Reader{one, two} {
			for events := 0; events < 3; { // more than two seconds
				line, err := body.ReadString('\n')
				must.Succeed(t, err)
				if strings.HasPrefix(line, "data: ") {
					events++
				}
			}
		}
		hub.Close()
		for _, body := range []*bufio.Reader{one, two} {
			for {
				if _, err := body.ReadString('\n'); err != nil {
					break
				}
			}
		}
		if _, status := open(all, false); status != 503 {
			t.Errorf("after the end: %d", status)
		}
	})
}
