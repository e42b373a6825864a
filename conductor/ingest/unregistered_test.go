package ingest

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// What was unregistered is noted while the gate is closed, and forgotten once it is open.
func TestUnregisteredIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		c := newServer(serverOptions{Log: zerolog.Nop(), Gate: gate})
		defer c.Close()
		key := registration.Key{Instance: "e", Tenant: "default"}
		c.Unregister(key)
		c.sources.Unregistered.SetTarget(registration.Key{Instance: "f", Tenant: "default", Rank: registration.AllRanks}, true)
		u := &c.sources.Unregistered
		if u.find(key) != stranger || len(u.targets) != 1 {
			t.Errorf("%v, %v", u.keys, u.targets)
		}
		close(gate)
		if u.find(key) != 0 {
			t.Error("it counts while the gate is open")
		}
		synctest.Wait()
		c.Unregister(key)
		c.sources.Unregistered.SetTarget(key, true)
		if len(u.keys)+len(u.targets)+len(u.strangers) != 0 {
			t.Errorf("%v, %v, %v are kept", u.keys, u.targets, u.strangers)
		}
	})
}

// A source that gives way while the gate is closed does not come back from a snapshot, until it is registered again.
func TestGivingWayIsNoted(t *testing.T) {
	p := newPlacedWith(t, serverOptions{Log: zerolog.Nop(), Gate: make(chan struct{})}, 1, 0)
	must.Succeed(t, p.register("forged", "", RegisterOptions{GivesWay: true}))
	must.Succeed(t, p.register("e", "", RegisterOptions{}))
	key := registration.Key{Instance: "forged", Tenant: "default"}
	if got := p.c.sources.Unregistered.find(key); got != own {
		t.Errorf("the standing is %v", got)
	}
	p.c.sources.Tune(Limits{MaxSources: 2})
	must.Succeed(t, p.register("forged", "", RegisterOptions{}))
	if got := p.c.sources.Unregistered.find(key); got != 0 {
		t.Errorf("registered again, the standing is %v", got)
	}
}

// There is a bound on the names that no source here had, and each tenant leaves room for others. A name that is registered again
// gives its room back, and a name that a source had needs none.
func TestStrangersAreBounded(t *testing.T) {
	c := newServer(serverOptions{Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	u := &c.sources.Unregistered
	of := func(tenant string, n int) registration.Key {
		return registration.Key{Instance: fmt.Sprint(n), Tenant: tenant}
	}
	fill := func(tenant string, l Limits, want int) {
		t.Helper()
		c.sources.Tune(l)
		for n := range 100 {
			u.add(of(tenant, n), stranger)
		}
		if got := u.strangers[tenant]; got != want {
			t.Errorf("tenant %s has %d, want %d", tenant, got, want)
		}
	}
	l := Limits{MaxSources: 16}
	fill("a", l, 8)
	fill("b", l, 4)
	fill("c", l, 2)
	if u.add(of("a", 0), own); u.strangers["a"] != 7 || u.find(of("a", 0)) != own {
		t.Errorf("%v, %v", u.strangers, u.find(of("a", 0)))
	}
	u.add(of("a", 0), stranger) // once more
	for n := range 100 {
		u.add(of("a", n), known)
		u.remove(of("b", n))
	}
	if len(u.keys) != 102 || u.total != 2 || len(u.strangers) != 1 || u.find(of("a", 0)) != own || u.find(of("b", 0)) != 0 {
		t.Errorf("%d keys, %d strangers, %v", len(u.keys), u.total, u.strangers)
	}
	fill("d", Limits{MaxSources: 16, MaxTenantSources: 3}, 3)
	fill("e", Limits{}, 100)
	fill("f", Limits{MaxTenantSources: 5}, 5)
}
