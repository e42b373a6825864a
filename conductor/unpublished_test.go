package conductor_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// unpublished is the registration of an engine that publishes no events.
func unpublished(instance string) registration.Registration {
	return registration.Registration{Instance: instance, Type: registration.TypeStandard, Model: "m", BlockSize: 16,
		Events: registration.EventsNone, CapacityBlocks: 8}
}

// TestUnpublishedIsReady requires that a server waits for no engine that publishes nothing, and counts it among the
// synced ones, whatever is done to it and however long it is asked about.
func TestUnpublishedIsReady(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.conductor
		c.Tune(conductor.Tunables{MaxSources: 10, MinSynced: 2})
		must.Succeed(t, c.Register(unpublished("llama"), ingest.RegisterOptions{Static: true}))
		if r := c.Ready(); r.Ready || r.Synced != 1 || len(r.Waiting)+len(r.GivenUp) > 0 {
			t.Errorf("one of two: %+v", r)
		}
		must.Succeed(t, c.Register(unpublished("tgi"), ingest.RegisterOptions{}))
		ready := func(after string) {
			t.Helper()
			if r := c.Ready(); !r.Ready || r.Synced != 2 || len(r.Waiting)+len(r.GivenUp) > 0 {
				t.Errorf("after %s: %+v", after, r)
			}
			for _, s := range c.Services() {
				if s.State != stream.Approximate || s.Reason != "" || s.LastError != "" || s.Age >= 0 || len(s.Findings) > 0 {
					t.Errorf("after %s: %s is %s, %q, %q, %v", after, s.Key(), s.State, s.Reason, s.LastError, s.Findings)
				}
			}
		}
		ready("both are registered")
		key := registration.Key{Instance: "llama", Tenant: scope.DefaultTenant}
		must.Succeed(t, c.Sources().SetPaused(key, true))
		ready("a pause")
		must.Succeed(t, c.Sources().SetPaused(key, false))
		ready("its end")
		if c.Sources().Resync(key, ingest.ReasonDrift) {
			t.Error("it resyncs")
		}
		for range 8 {
			b.run("query path=a/b")
			<-time.After(5 * time.Minute)
		}
		ready("questions for 40 minutes")
	})
}

// TestUnpublishedIsNotRecovered requires that no peer is asked for the blocks of an engine that publishes nothing, and that
// a peer's snapshot brings no source for it.
func TestUnpublishedIsNotRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		must.Succeed(t, a.conductor.Register(unpublished("llama"), ingest.RegisterOptions{}))
		a.run("register one")
		a.run("store one path=a/b")
		b, open := newReplica(t, a.network)
		b.run("register one")
		must.Succeed(t, b.conductor.Register(unpublished("tgi"), ingest.RegisterOptions{}))
		if n := b.conductor.Sources().Snapshots().Unfilled(); n != 1 {
			t.Errorf("%d sources lack their blocks", n)
		}
		recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
		if n := b.conductor.Sources().Snapshots().Unfilled(); n != 0 {
			t.Errorf("%d sources lack their blocks afterwards", n)
		}
		open()
		synctest.Wait()
		want := "one|default|0 State=synced\ntgi|default|0 State=approximate\n"
		if got := b.run("services show=State"); got != want {
			t.Errorf("there are %s", got)
		}
		if got := a.conductor.Sources().Snapshots().HeldDeployments(); len(got) != 1 || !got[0].Synced {
			t.Errorf("%+v", got)
		}
	})
}

// TestUnpublishedInAnImage requires that the image of a server keeps the registration, and the next server
// registers it again.
func TestUnpublishedInAnImage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		r := unpublished("llama")
		r.Approximate, r.TTL, r.Tenant = registration.ApproximateCount, time.Minute, "blue"
		must.Succeed(t, b.conductor.Register(r, ingest.RegisterOptions{}))
		saved := b.conductor.Sources().Snapshots().KeptSources().Saved()
		if len(saved) != 1 {
			t.Fatalf("%+v", saved)
		}
		m, err := image.ReadSource(saved[0].Fields)
		must.Succeed(t, err)
		next := newBench()
		defer next.conductor.Close()
		if why := next.conductor.Sources().Snapshots().Recover(0).Own(&m); why != "" {
			t.Error(why)
		}
		before, after := b.conductor.Registrations(), next.conductor.Registrations()
		if !slices.EqualFunc(before, after, func(a, b registration.Registration) bool {
			return a.Key() == b.Key() && a.Events == b.Events && a.CapacityBlocks == b.CapacityBlocks && a.Approximate == b.Approximate &&
				a.TTL == b.TTL
		}) || len(after) != 1 || after[0].CapacityBlocks != 8 {
			t.Errorf("%+v\nwas %+v", after, before)
		}
		if got := next.run("services show=State"); !strings.Contains(got, "State=approximate") {
			t.Error(got)
		}
	})
}
