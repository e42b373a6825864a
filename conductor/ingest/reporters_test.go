package ingest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// listed is a Conductor with a clock that instances of LMCache report to.
type listed struct {
	t   *testing.T
	c   *server
	now time.Time
	seq uint64
}

func newListed(t *testing.T) *listed {
	l := &listed{t: t, now: time.Unix(1e9, 0)}
	l.c = newServer(serverOptions{Log: zerolog.Nop(), Now: func() time.Time { return l.now },
		Stream: stream.Config{Transport: new(streamtest.Network)}})
	t.Cleanup(l.c.Close)
	return l
}

func (l *listed) register(tenant, instance string) {
	l.t.Helper()
	must.Succeed(l.t, l.c.Register(registration.Registration{Endpoint: registration.EndpointPush, Type: registration.TypeLMCache,
		Model: "m", Tenant: tenant, Instance: instance, BlockSize: 4}, RegisterOptions{}))
}

// report reports an entry of each model with the credentials of some tenants.
func (l *listed) report(by scope.Tenants, instance, backend string, models ...string) {
	l.t.Helper()
	l.seq++
	b := lmcache.Batch{Instance: instance, Incarnation: 7, Seq: l.seq, Type: lmcache.Store, Tier: "l1", Backend: "dram"}
	if backend != "" {
		b.Tier, b.Backend, b.Shared = "l2", backend, true
	}
	for i, m := range models {
		b.Entries = append(b.Entries, lmcache.Entry{Model: m, Hash: fmt.Sprint("hash", i), Tokens: make([]uint32, 4), World: 1})
	}
	_, err := l.c.sources.Pushes().Push(l.t.Context(), by, &b)
	must.Succeed(l.t, err)
}

// want compares what a client of some tenants sees.
func (l *listed) want(tenants scope.Tenants, rows ...string) {
	l.t.Helper()
	var got []string
	for _, r := range l.c.sources.Pushes().Reporters() {
		r, seen := r.For(tenants)
		if !seen {
			continue
		}
		got = append(got, fmt.Sprint(r.Instance, " ", r.State(), " ", r.Seq, " ", r.FollowedBy, " ", r.Unclaimed))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(rows, "\n"); g != w {
		l.t.Errorf("%v: got\n%s\nwant\n%s", tenants, g, w)
	}
}

// What no source takes is named until there is a source, or until it is old.
func TestReportersName(t *testing.T) {
	l := newListed(t)
	l.want(nil)
	l.report(nil, "a", "", "m", "m", "other")
	l.report(nil, "a", "s3", "m")
	l.report(nil, "quiet", "")
	l.want(nil, "a unclaimed 2 [] [{a m 2} {a other 1} {pool:s3 m 1}]", "quiet heard 3 [] []")
	l.register("", "a")
	l.want(nil, "a unclaimed 2 [default] [{a other 1} {pool:s3 m 1}]", "quiet heard 3 [] []")
	l.now = l.now.Add(UnclaimedAge - 1)
	l.report(nil, "a", "s3", "m")
	l.now = l.now.Add(1)
	l.want(nil, "a unclaimed 4 [default] [{pool:s3 m 2}]", "quiet heard 3 [] []")
	l.register("", "pool:s3")
	l.report(nil, "b", "s3", "m")
	l.want(nil, "a followed 4 [default] []", "b followed 5 [] []", "quiet heard 3 [] []")
	l.seq = 0 // a number that was there
	l.report(nil, "a", "", "m")
	if r := l.c.Sources().Pushes().Reporters()[0]; r.Outcome != lmcache.Duplicate || r.Seq != 4 || r.Incarnation != 7 {
		t.Errorf("after a duplicate: %+v", r)
	}
	l.now = l.now.Add(reporterAge)
	l.want(nil)
}

// A client sees the instances that its sources follow, and those that report for its tenants alone.
func TestReportersOfTenants(t *testing.T) {
	l := newListed(t)
	blue, red, both := scope.Tenants{"blue"}, scope.Tenants{"red"}, scope.Tenants{"red", "blue"}
	l.register("blue", "shared")
	l.register("red", "shared")
	l.report(nil, "shared", "", "m", "secret")
	l.report(blue, "of-blue", "", "m")
	l.report(both, "of-both", "", "m")
	l.want(nil, "of-blue unclaimed 2 [] [{of-blue m 1}]", "of-both unclaimed 3 [] [{of-both m 1}]",
		"shared unclaimed 1 [blue red] [{shared secret 1}]")
	l.want(blue, "of-blue unclaimed 2 [] [{of-blue m 1}]", "shared followed 1 [blue] []")
	l.want(red, "shared followed 1 [red] []")
	l.want(both, "of-blue unclaimed 2 [] [{of-blue m 1}]", "of-both unclaimed 3 [] [{of-both m 1}]", "shared followed 1 [blue red] []")
	l.want(scope.Tenants{"green"})
	l.want(scope.Tenants{})

	// A source of another tenant takes nothing of blue's.
	l.register("red", "of-blue")
	l.want(blue, "of-blue unclaimed 2 [] [{of-blue m 1}]", "shared followed 1 [blue] []")
}

// Names that clients make up take bounded memory.
func TestReportersAreBounded(t *testing.T) {
	l := newListed(t)
	models := make([]string, maxUnclaimed+5)
	for i := range models {
		models[i] = fmt.Sprint("model-", i)
	}
	for i := range maxReporters + 5 {
		l.now = l.now.Add(time.Millisecond)
		l.report(nil, fmt.Sprintf("%05d", i), "", models...)
	}
	all := l.c.Sources().Pushes().Reporters()
	if len(all) != maxReporters || all[0].Instance != "00005" || len(all[0].Unclaimed) != maxUnclaimed {
		t.Errorf("%d instances, the first is %+v", len(all), all[0])
	}
}
