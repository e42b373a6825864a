package conductor

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestStatesOfAllSources: engines, pools and publishers that call us have lines of their states, and
// one that was ended has none.
func TestStatesOfAllSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		n := new(streamtest.Network)
		c := New(Options{HashSeed: 1337, Log: zerolog.New(zerolog.SyncWriter(&log)),
			Stream: stream.Config{Transport: n, StaleAfter: 30 * time.Second}})
		defer c.Close()
		says := func(what string, times int) {
			t.Helper()
			synctest.Wait()
			if got := strings.Count(log.String(), what); got != times {
				t.Errorf("%d lines have %s, want %d:\n%s", got, what, times, log.String())
			}
		}
		must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://h:1", ReplayEndpoint: "tcp://h:2",
			Type: registration.TypeVLLM, Model: "m", Instance: "e", BlockSize: 4}, ingest.RegisterOptions{}))
		must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://p:1", Type: registration.TypeMooncake, Model: "m",
			Instance: "pool", BlockSize: 4}, ingest.RegisterOptions{}))
		must.Succeed(t, c.Register(registration.Registration{Endpoint: registration.EndpointPush, Type: registration.TypeLMCache,
			Model: "m", Instance: "n", BlockSize: 4}, ingest.RegisterOptions{}))
		time.Sleep(time.Minute)
		says(`"to":"synced"`, 1) // that of e; whether replaying was seen before depends on who is faster
		says(`"level":"warn","source":"pool|default|0","from":"connecting","to":"partial","reason":"history_unknown"`, 1)
		says(`"level":"warn","source":"n|default|0","from":"connecting","to":"stale"`, 1)
		n.PublisherAt("tcp://h:1").CutConnections()
		time.Sleep(time.Minute)
		says(`"level":"warn","source":"e|default|0","from":"synced","to":"connecting"`, 1)
		_, err := c.Unregister(registration.Key{Instance: "pool"})
		must.Succeed(t, err)
		n.PublisherAt("tcp://p:1").CutConnections()
		time.Sleep(time.Hour)
		says(`"source":"pool|default|0","from":"partial"`, 0)
	})
}
