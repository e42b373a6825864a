package conductor_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// Whatever is asked for while a recovery runs and ends, everybody gets an answer, and
// nothing is left behind.
func TestRecoveryBesideEverything(t *testing.T) {
	for range max(times(30), 10) {
		b, open := newReplica(t, new(streamtest.Network))
		newRegistration := func(i int) registration.Registration {
			return registration.Registration{
				Instance: fmt.Sprint(i % 3), Tenant: "default", Model: "m", BlockSize: 4, Type: registration.TypeVLLM,
				Endpoint: "tcp://h:1",
			}
		}
		in := b.conductor.Sources().Snapshots().Recover(time.Minute)
		recovered := make(chan struct{})
		var others sync.WaitGroup
		beside := func(f func(i int)) {
			others.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-recovered:
						return
					default:
						f(i)
					}
				}
			})
		}
		beside(func(i int) {
			must.Report(t, b.conductor.Register(newRegistration(i), ingest.RegisterOptions{}))
		})
		beside(func(i int) {
			if _, err := b.conductor.Unregister(newRegistration(2 * i).Key()); err != nil && !errors.Is(err, ingest.ErrNotFound) {
				t.Error(err)
			}
		})
		beside(func(i int) {
			b.conductor.Sources().Snapshots().Take().Walk(tiers.Device, func(*ingest.Stored) bool { return true })
			b.conductor.Held(scope.Shard{Tenant: "default", Model: "m"}, 4, fmt.Sprint(i%3), 0)
			b.conductor.Query(match.Query{Model: "m", BlockSize: 4, Tokens: []uint32{1, 2, 3, 4}, Detail: true})
			b.conductor.Services()
		})
		for i := range 300 {
			reg := newRegistration(i)
			reg.Endpoint = ""
			if i < 3 {
				must.Report(t, in.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: 5}}))
			}
			hashes := []uint64{uint64(3*i + 1), uint64(3*i + 2), uint64(3*i + 3)}
			if err := in.Stored(&ingest.Stored{
				Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 4, Salt: fmt.Sprint(i % 40), Source: reg,
				Medium:  tiers.ParseMedium("GPU"),
				Stretch: &index.Stretch{Root: true, Engine: hashes, ClientHashes: hashes}, Local: hashes,
			}); err != nil {
				t.Error(err)
			}
		}
		in.Done()
		open()
		close(recovered)
		others.Wait()
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
		for _, s := range b.conductor.Services() {
			if _, err := b.conductor.Unregister(s.Key()); err != nil {
				t.Error(err)
			}
		}
		if views := b.conductor.For(conductor.Reader{}).Inspect().GlobalView(1); len(views) > 0 {
			t.Errorf("contexts left behind: %+v", views)
		}
		b.conductor.Close()
	}
}
