package conductor_test

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/clocktest"
	"example.com/conductor/internal/must"
)

// Times to live and ages go on evenly where the wall clock of the server is set: forward they drop nothing, and back they keep
// nothing.
func TestAgesWhenTheClockIsSet(t *testing.T) {
	clocktest.Within(t, func(set func(ahead time.Duration)) {
		c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
		defer c.Close()
		must.Succeed(t, c.Register(registration.Registration{Instance: "publishes", Endpoint: "tcp://engine:5557", Model: "m",
			BlockSize: 16, Type: registration.TypeVLLM}, ingest.RegisterOptions{}))
		must.Succeed(t, c.Register(registration.Registration{Instance: "silent", Model: "m", BlockSize: 16, Type: registration.TypeVLLM,
			Events: registration.EventsNone, CapacityBlocks: 100, TTL: time.Hour}, ingest.RegisterOptions{}))
		must.Succeed(t, c.Register(registration.Registration{Instance: "brief", Model: "m", BlockSize: 16, Type: registration.TypeVLLM,
			Events: registration.EventsNone, CapacityBlocks: 100, TTL: 2 * time.Second}, ingest.RegisterOptions{}))
		prompt := func(first uint32) []uint32 {
			tokens := make([]uint32, 16*8)
			tokens[0] = first
			return tokens
		}
		report := func(instance string, first uint32, ttl time.Duration) {
			t.Helper()
			_, err := c.For(conductor.Reader{}).Routed(&match.Routed{
				Query: match.Query{Model: "m", BlockSize: 16, Tokens: prompt(first)}, Target: instance, TTL: ttl,
			})
			must.Succeed(t, err)
		}
		expected := func(instance string, first uint32) int {
			for _, row := range c.Query(match.Query{Model: "m", BlockSize: 16, Tokens: prompt(first), Expected: true}).Rows {
				if row.Instance == instance {
					return row.Expected
				}
			}
			return 0
		}
		report("publishes", 1, 10*time.Minute)
		report("silent", 1, 0)
		for _, ahead := range []time.Duration{100 * 24 * time.Hour, -100 * 24 * time.Hour} {
			set(ahead)
			for _, instance := range []string{"publishes", "silent"} {
				if n := expected(instance, 1); n != 8 {
					t.Errorf("%v ahead: %d blocks of %s are expected", ahead, n, instance)
				}
			}
		}
		// Now the clock is set back while reports wait for their end.
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		set(0)
		report("publishes", 2, 2*time.Second)
		report("brief", 2, 0)
		set(-24 * time.Hour)
		for _, instance := range []string{"publishes", "brief"} {
			until := time.Now().Add(time.Minute)
			for expected(instance, 2) > 0 && time.Now().Before(until) {
				<-pace.C
			}
			if n := expected(instance, 2); n > 0 {
				t.Errorf("%d blocks of %s are expected after their time", n, instance)
			}
		}

		// What is asked for is known to be asked for.
		d := c.Catalog().Deployment(scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 16})
		d.NoteAsked(time.Now())
		for _, ahead := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
			set(ahead)
			if age := d.SinceAsked(time.Now()); age < 0 || age > time.Hour {
				t.Errorf("%v ahead: asked %v ago", ahead, age)
			}
		}
	})
}
