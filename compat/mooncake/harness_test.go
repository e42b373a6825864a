package mooncake

import (
	"bytes"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/body"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
)

// Media types.
var msgpackType, jsonType = body.Msgpack.ContentType(), body.JSON.ContentType()

// testServer is a Conductor whose publishers are in this process, with a listener of the
// dialect in each form, and one of the published dialect that knows this one too.
type testServer struct {
	t                   testing.TB
	conductor           *conductor.Conductor
	slots               *server.Admission
	alone, plain, mixed *gin.Engine // in msgpack, in JSON, next to the published one
	network             *streamtest.Network
}

func newServer(t testing.TB) *testServer {
	t.Helper()
	n := &streamtest.Network{Prepare: func(_ string, p *streamtest.Publisher) { p.First = 1 }} // as masters count
	c := conductor.New(conductor.Options{
		HashSeed: 1337, MaxSources: 8, MaxOrphans: 1 << 10, Log: zerolog.Nop(), Stream: stream.Config{Transport: n},
	})
	t.Cleanup(c.Close)
	slots := server.NewAdmission(1, time.Minute) // one, so that a slot that is not given back shows
	cfg := Config{Conductor: c, MaxBody: 1 << 14, MaxTokens: 64, Admission: slots, Version: "test"}
	j := New(cfg)
	cfg.Codec = body.Msgpack
	d := New(cfg)
	opts := admin.Options{
		Dialect:  conductorhttp.Options{MaxBody: 1 << 14, MaxTokens: 64, Admission: slots, Version: "test"},
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	s := &testServer{t: t, conductor: c, slots: slots, alone: admin.New(c, opts), plain: admin.New(c, opts), network: n}
	s.mixed = admin.New(c, opts)
	server.Dialects{d}.MountRoot(s.alone)
	server.Dialects{j}.MountRoot(s.plain)
	server.Dialects{conductorhttp.Dialect(c, opts.Dialect), d, j}.MountRoot(s.mixed)
	return s
}

// inBubble runs f with a server whose time is synthetic.
func inBubble(t *testing.T, f func(*testing.T, *testServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newServer(t)) })
}

// send makes a request; headers come in pairs, those without text are left out.
func send(e *gin.Engine, method, path string, body []byte, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, bytes.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, req)
	return rec
}

// publish sends one event of a publisher and waits until it is applied.
func (s *testServer) publish(endpoint string, event map[string]any) {
	s.t.Helper()
	synctest.Wait()
	if n := s.network.PublisherAt(endpoint).Publish(streamtest.EncodeBatch(1.5, nil, event)); n == 0 {
		s.t.Fatalf("nobody listens to %s", endpoint)
	}
	synctest.Wait()
}

const blockSize = 16

// blocks are some of the prompt whose tokens count from 1.
type blocks struct {
	Endpoint, Medium, Salt string
	First, Count           int
}

func (b *blocks) stored() map[string]any {
	e := map[string]any{"type": "BlockStored", "block_size": blockSize, "medium": b.Medium, "parent_block_hash": nil}
	var tokens []int
	for i := range b.Count * blockSize {
		tokens = append(tokens, b.First*blockSize+i+1)
	}
	if b.First > 0 {
		e["parent_block_hash"] = 999 + b.First
	}
	if b.Salt != "" {
		e["extra_keys"] = append([]any{[]any{b.Salt}}, make([]any, b.Count-1)...)
	}
	e["block_hashes"], e["token_ids"] = b.hashes(), tokens
	return e
}

func (b *blocks) removed() map[string]any {
	return map[string]any{"type": "BlockRemoved", "block_hashes": b.hashes(), "medium": b.Medium}
}

func (b *blocks) hashes() []int {
	var all []int
	for i := range b.Count {
		all = append(all, 1000+b.First+i)
	}
	return all
}
