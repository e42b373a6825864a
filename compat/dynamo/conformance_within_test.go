package dynamo_test

import (
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor"
	"kvconductor/compat/dynamo"
	"kvconductor/conductor"
	conductorhttp "kvconductor/conductor/http"
	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
	"kvconductor/events/zmq"
)

// isWithin reports whether a server with these flags runs in this process: one
// that is about peers or has none, not one that is about flags and files.
func isWithin(flags []string) bool { return len(flags) == 0 || slices.Contains(flags, "--peers") }

// serveWithin starts our server in this process, on a port of its own: what
// conductor serve does, in the same order.
func serveWithin(t *testing.T, flags, env []string) string {
	t.Helper()
	given := make(map[string]string)
	for i := 0; i+1 < len(flags); i += 2 {
		given[flags[i]] = flags[i+1]
	}
	gate := make(chan struct{})
	c := conductor.New(conductor.Options{
		HashSeed: 1337, KeepLocals: true, Gate: gate, Log: zerolog.Nop(),
		Stream: stream.Config{
			Transport:     &zmq.Sockets{Rank: wire.Rank, Transport: zmq.Transport{}},
			Decode:        func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) },
			ReplayTimeout: 5 * time.Second,
			StaleAfter:    30 * time.Second,
			Queue:         1024,
			Replays:       stream.NewLimiter(8),
		},
	})
	t.Cleanup(c.Close)
	d := dynamo.New(dynamo.Config{
		Conductor: c, MaxTokens: 1 << 21, TestEndpoints: !slices.Contains(env, "DYN_KV_INDEXER_TEST_ENDPOINTS=0"),
		Peers: strings.FieldsFunc(given["--peers"], func(r rune) bool { return r == ',' }), Dump: true, Log: zerolog.Nop(),
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(conductor.Collector{Conductor: c}, d)

	workers, err := dynamo.ParseWorkers(given["--workers"])
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		size, err := strconv.Atoi(given["--block-size"])
		if err != nil {
			t.Fatal(err)
		}
		r := conductor.Registration{
			Endpoint: w.Endpoint, Type: conductor.TypeVLLM, Model: given["--model-name"], Tenant: conductor.DefaultTenant,
			Instance: strconv.FormatUint(w.Instance, 10), Rank: int(w.Rank), BlockSize: size,
		}
		if err := c.Register(r, conductor.RegisterOptions{Static: true}); err != nil {
			t.Fatal(err)
		}
	}
	d.Recover(t.Context(), time.Hour)
	close(gate)

	opts := conductorhttp.Options{
		MaxBody: 16 << 20, MaxTokens: 1 << 21, Version: "test", OpenAPI: kvconductor.OpenAPI, Gatherer: registry, Log: zerolog.Nop(),
	}
	r := conductorhttp.New(c, opts)
	d.MountRoot(r)
	conductorhttp.Mount(r.Group("/conductor/v1"), c, opts)
	d.Mount(r.Group("/dynamo/v1"))
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}
