package conductor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestSummary requires that the sentence begins with the worst state, and that nouns and verbs agree with
// numbers.
func TestSummary(t *testing.T) {
	type some struct {
		state  stream.State
		n      int
		erring bool
	}
	f := func(want string, severity doctor.Severity, all ...some) {
		t.Helper()
		r := status.Readiness{}
		for _, s := range all {
			for range s.n {
				r.Count(true, status.SourceState{Key: registration.Key{Tenant: "ann"}, State: s.state, Erring: s.erring})
			}
		}
		if got, how := r.Summary(nil, false); got != want || how != severity {
			t.Errorf("%v: %q, %s; want %q, %s", all, got, how, want, severity)
		}
	}
	f("no source is registered", doctor.Error)
	f("13 of 13 sources are stale", doctor.Error, some{stream.Stale, 13, false})
	f("1 source is stale", doctor.Error, some{stream.Stale, 1, false})
	f("1 of 13 sources is failed", doctor.Error, some{stream.Failed, 1, false}, some{stream.Synced, 12, false})
	f("2 of 13 sources are stale, 1 is replaying", doctor.Error, some{stream.Replaying, 1, false}, some{stream.Synced, 10, false},
		some{stream.Stale, 2, false})
	f("1 of 2 sources is partial, 1 is connecting", doctor.Warning, some{stream.Connecting, 1, false}, some{stream.Partial, 1, false})
	f("1 of 13 sources is partial", doctor.OK, some{stream.Partial, 1, false}, some{stream.Synced, 12, false})
	f("3 of 3 sources are connecting", doctor.Warning, some{stream.Connecting, 3, false})
	f("2 of 3 sources are stale, 1 is paused", doctor.Error, some{stream.Paused, 1, false}, some{stream.Stale, 2, false})
	f("2 of 3 sources are paused", doctor.Warning, some{stream.Paused, 2, false}, some{stream.Approximate, 1, false})
	f("13 sources are synced", doctor.OK, some{stream.Synced, 13, false})
	f("1 source is synced", doctor.OK, some{stream.Synced, 1, false})
	f("2 sources are approximate, 11 are synced", doctor.OK, some{stream.Synced, 11, false}, some{stream.Approximate, 2, false})

	f("1 source has an error finding", doctor.Error, some{stream.Synced, 1, true})
	f("2 of 3 sources have error findings", doctor.Error, some{stream.Synced, 2, true}, some{stream.Approximate, 1, false})
	f("1 of 4 sources is stale, 2 have error findings", doctor.Error, some{stream.Synced, 1, true},
		some{stream.Stale, 1, true}, some{stream.Partial, 1, true}, some{stream.Synced, 1, false})
	f("1 of 2 sources is partial", doctor.OK, some{stream.Partial, 1, false}, some{stream.Synced, 1, false})

	r := status.Readiness{MinSynced: 3}
	r.Count(false, status.SourceState{Key: registration.Key{Tenant: "ann"}, State: stream.Synced})
	r.Count(false, status.SourceState{Key: registration.Key{Tenant: "bob"}, State: stream.Stale})
	says := func(tenants scope.Tenants, draining bool, want string, severity doctor.Severity) {
		t.Helper()
		if got, how := r.Summary(tenants, draining); got != want || how != severity {
			t.Errorf("%v: %q, %s; want %q, %s", tenants, got, how, want, severity)
		}
	}
	says(nil, false, "1 of 2 sources is stale, 3 must be synced", doctor.Error)
	says(scope.Tenants{"ann"}, false, "1 source is synced", doctor.OK)
	says(scope.Tenants{"eve"}, false, `no source is registered for the tenant "eve"`, doctor.Error)
	says(nil, true, "draining", doctor.Warning)
	r.Recovering = true
	says(nil, false, "recovering: nothing that engines send is applied yet", doctor.Warning)
}

// TestStaleIsAFinding requires that every kind of source has the finding stale as long as it is in that state.
func TestStaleIsAFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(streamtest.Network)
		c := New(Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: n, StaleAfter: 30 * time.Second}})
		defer c.Close()
		must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://h:1", ReplayEndpoint: "tcp://h:2",
			Type: registration.TypeVLLM, Model: "m", Instance: "e", BlockSize: 4}, ingest.RegisterOptions{}))
		must.Succeed(t, c.Register(registration.Registration{Endpoint: registration.EndpointPush, Type: registration.TypeLMCache,
			Model: "m", Instance: "n", BlockSize: 4}, ingest.RegisterOptions{}))
		of := func(instance string) (found []doctor.Finding) {
			t.Helper()
			synctest.Wait()
			for _, s := range c.Services() {
				if s.Instance != instance {
					continue
				}
				stale := slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return f.Code == doctor.FindingStale })
				if stale != (s.State == stream.Stale) {
					t.Errorf("%s is %s and has %v", instance, s.State, s.Findings)
				}
				found = s.Findings
			}
			return found
		}
		if found := append(of("e"), of("n")...); len(found) > 0 {
			t.Errorf("at once: %v", found)
		}
		began := time.Now()
		time.Sleep(time.Minute)
		if found := of("n"); len(found) != 1 || found[0].Severity() != doctor.Error || !found[0].Since.Equal(began.Add(30*time.Second)) ||
			!strings.Contains(found[0].Message, "no report has come") {
			t.Errorf("a cache server that never reported: %v", found)
		}
		if found := of("e"); len(found) > 0 {
			t.Errorf("a source with a connection: %v", found)
		}
		cut := time.Now()
		var gone atomic.Bool
		gone.Store(true)
		engine := n.PublisherAt("tcp://h:1")
		engine.Mu.Lock()
		engine.OnSubscribe = func(context.Context) error {
			if gone.Load() {
				return errors.New("connection refused")
			}
			return nil
		}
		engine.Mu.Unlock()
		engine.CutConnections()
		time.Sleep(time.Minute)
		const want = "there has been no connection to the engine since 2000-01-01 00:01:00 UTC: check that it runs, and the network; its " +
			"blocks stay in the answers until it is heard again or unregistered"
		if found := of("e"); len(found) != 1 || !found[0].Since.Equal(cut.Add(30*time.Second)) || found[0].Message != want {
			t.Errorf("a source without a connection: %v", found)
		}
		if got, _ := readiness(c); got != "2 of 2 sources are stale" {
			t.Errorf("the summary is %q", got)
		}
		gone.Store(false)
		time.Sleep(time.Minute)
		if found := of("e"); len(found) > 0 {
			t.Errorf("a source that is heard again: %v", found)
		}
	})
}

// readiness returns the summary for all tenants.
func readiness(c *Conductor) (string, doctor.Severity) {
	r := c.Ready()
	return r.Summary(nil, false)
}
