// Package historytest makes servers with blocks for the tests of snapshots. Tests alone may import it.
package historytest

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// At is the time of snapshots in tests.
var At = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// Server returns a Conductor behind a gate.
func Server(t testing.TB, change func(*conductor.Options)) *conductor.Conductor {
	t.Helper()
	opts := conductor.Options{HashSeed: 1337, Gate: make(chan struct{}), Log: zerolog.Nop(),
		Stream: stream.Config{Transport: new(streamtest.Network)}}
	if change != nil {
		change(&opts)
	}
	c := conductor.New(opts)
	t.Cleanup(c.Close)
	return c
}

// Fill gives a Conductor blocks of some instances, in contexts with and without a salt.
func Fill(t testing.TB, c *conductor.Conductor, instances, blocks int) {
	t.Helper()
	r := c.Sources().Snapshots().Recover(0)
	for i := range instances {
		reg := registration.Registration{
			Endpoint: "tcp://engine:5557", Instance: string(rune('a' + i)), Model: "m", BlockSize: 16, Type: registration.TypeVLLM,
			Tenant: "default",
		}
		must.Succeed(t, r.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: uint64(i), Print: 7}}))
		for _, salt := range []string{"", "pepper"} {
			words := make([]uint64, blocks)
			for k := range words {
				words[k] = uint64(i*blocks+k+1)*0x9e3779b97f4a7c15 + uint64(len(salt))
			}
			must.Succeed(t, r.Stored(&ingest.Stored{
				Source: reg, Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16, Salt: salt,
				Stretch: &ingest.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words,
			}))
		}
	}
	r.Done()
}

// Held returns the blocks of each source.
func Held(c *conductor.Conductor) map[string]int {
	all := map[string]int{}
	for _, s := range c.Services() {
		all[s.Instance] = s.Blocks
	}
	return all
}

// Registration is that of an instance of Fill.
func Registration(instance string) registration.Registration {
	return registration.Registration{Endpoint: "tcp://engine:5557", Instance: instance, Model: "m", BlockSize: 16,
		Type:   registration.TypeVLLM,
		Tenant: "default"}
}
