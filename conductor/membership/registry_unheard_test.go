package membership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// dropMany unregisters sources that no replica knows.
func (p *peer) dropMany(tenant, prefix string, n int) {
	p.t.Helper()
	for i := range n {
		_, err := p.clients.Unregister(registration.Key{Instance: fmt.Sprint(prefix, i), Tenant: tenant})
		if !errors.Is(err, ingest.ErrNotFound) {
			p.t.Errorf("%s%d: %v", prefix, i, err)
		}
	}
}

// entries returns the entries of the store by their fields.
func (p *peer) entries() map[string]string {
	p.t.Helper()
	all, err := p.members.Store().Client().HGetAll(p.t.Context(), p.members.Store().Key("sources")).Result()
	must.Succeed(p.t, err)
	return all
}

// endIn returns in which time an entry of the store ends, 0 for one that does not.
func (p *peer) endIn(field string) time.Duration {
	p.t.Helper()
	client := p.members.Store().Client()
	now, err := client.Time(p.t.Context()).Result()
	must.Succeed(p.t, err)
	end := client.ZScore(p.t.Context(), p.members.Store().Key("ends"), field).Val()
	return max(time.UnixMilli(int64(end)).Sub(now), 0)
}

// endEntries lets the entries of the store end that last no longer than some time.
func (p *peer) endEntries(most time.Duration) {
	p.t.Helper()
	client, ends := p.members.Store().Client(), p.members.Store().Key("ends")
	for field := range p.entries() {
		if p.endIn(field) <= most {
			must.Succeed(p.t, client.ZIncrBy(p.t.Context(), ends, -float64(most.Milliseconds()+1), field).Err())
		}
	}
}

// droppedChanges returns conductor_registry_dropped_total by reason.
func (p *peer) droppedChanges() map[string]float64 {
	p.t.Helper()
	all := prometheus.NewRegistry()
	must.Succeed(p.t, all.Register(p.registry))
	families, err := all.Gather()
	must.Succeed(p.t, err)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "conductor_registry_dropped_total" && len(m.GetLabel()) == 1 && m.GetCounter().GetValue() > 0 {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return got
}

// TestUnheardUnregistrationsAreBrief unregisters sources that no replica knows. Other replicas do not read the registry for that, the
// entries end after a minute, and nothing is left of them.
func TestUnheardUnregistrationsAreBrief(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	step(a, b, a)
	revision, kept := a.members.Status().Revision, b.registry.Revision()
	const n = 1200 // more than one script ends
	b.dropMany("", "x", n)
	pass(between, a, b) // so that the entries are older than a minute for the replicas, when they have ended in the store
	if all := b.registry.Saved(); len(all) > 0 || b.registry.Revision() != kept {
		t.Errorf("%d are on the disk", len(all))
	}
	a.confirmedNow()
	step(b, a)
	all := b.entries()
	if len(all) < n || len(all) > 3*n {
		t.Fatalf("%d entries", len(all))
	}
	for field := range all {
		if in := b.endIn(field); in <= 30*time.Second || in > 2*time.Minute {
			t.Fatalf("%s ends in %s", field, in)
		}
	}
	if st := a.members.Status(); st.Revision != revision || len(a.registry.known) > 0 {
		t.Errorf("revision %d, %d before; the other replica has read %d entries", st.Revision, revision, len(a.registry.known))
	}
	pass(between, a)
	step(a) // reads them at its next confirmation
	b.endEntries(2 * time.Minute)
	for range 2 {
		pass(between, a, b)
		step(a, b)
	}
	if all := b.entries(); len(all) > 0 {
		t.Errorf("%d entries stay", len(all))
	}
	for _, p := range []*peer{a, b} {
		if len(p.registry.known) > 0 || len(p.registry.pending) > 0 {
			t.Errorf("replica %s: %d known, %d wait", p.members.ID(), len(p.registry.known), len(p.registry.pending))
		}
	}
}

// confirmedNow lets the next confirmation of a replica be a minute away.
func (p *peer) confirmedNow() { p.registry.confirmed = p.now }

// TestUnheardUnregistrationOfRegistered lasts as long as any other, if the store had the source: a replica that comes back
// with it on its disk does not register it again. Neither does one that had registered it before and writes it later.
func TestUnheardUnregistrationOfRegistered(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	step(a, b, a)
	a.register(source("written", "m"))
	step(a)
	a.register(source("waits", "m"))
	pass(between, a, b)
	b.drop("written")
	b.drop("waits")
	pass(between, a, b)
	st := b.members.Status()
	b.registry.writePending(t.Context(), &st) // before it reads
	const field = `["written","default",0]`
	if text, in := b.entries()[field], b.endIn(field); in < graveFor-time.Hour || !strings.Contains(text, `"gone":true,"by":"b"`) {
		t.Errorf("it ends in %s: %s", in, text)
	}
	if in := b.endIn(`["waits","default",0]`); in <= 0 || in > 2*time.Minute {
		t.Errorf("the entry of a source that the store does not have ends in %s", in)
	}
	step(a, b, a, b)
	holds(t, "", a, b)
	b.endEntries(2 * time.Minute)
	for range 2 {
		pass(between, a, b)
		step(a, b)
	}
	c := newPeer(t, url, "c")
	must.Succeed(t, c.conductor.Register(source("written", "m"), ingest.RegisterOptions{})) // from its disk
	step(c, a, b, c)
	holds(t, "", a, b, c)
}

// TestUnheardUnregistrationAgain of an entry that is gone keeps its longer life, and that of a source which is known here does
// not become a brief one while it waits.
func TestUnheardUnregistrationAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newPeer(t, server.URL(), "a"), newPeer(t, server.URL(), "b")
	a.register(source("x", "m"))
	step(a, b, a)
	server.Kill()
	step(a, b)
	a.unregister("x")
	a.drop("x")
	if n := len(a.registry.Saved()); n != 1 {
		t.Errorf("%d changes are on the disk", n)
	}
	server.Run()
	for range 2 {
		step(a, b)
	}
	a.drop("x")
	b.drop("x")
	step(a, b, a)
	const field = `["x","default",0]`
	if text, in := b.entries()[field], b.endIn(field); in < graveFor-time.Hour || strings.Contains(text, "unheard") {
		t.Errorf("it ends in %s: %s", in, text)
	}
	holds(t, "", a, b)
}

// TestUnheardUnregistrationsAreBounded unregisters more sources that no replica knows than a tenant, and than all tenants, may have.
// The bounds hold while the store is away and while it is there. Known sources can be unregistered beyond them, and a minute later
// there is room again.
func TestUnheardUnregistrationsAreBounded(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	b.conductor.Tune(conductor.Tunables{MaxSources: 5, MaxTenantSources: 2})
	for _, instance := range []string{"one", "two"} {
		a.register(source(instance, "m"))
	}
	step(a, b, a, b)
	waits := func(when string, keys int, dropped map[string]float64) {
		t.Helper()
		n := 0
		for name, c := range b.registry.pending {
			if c.source == nil && !name.Asked {
				n++
			}
		}
		if got := b.droppedChanges(); n != keys || fmt.Sprint(got) != fmt.Sprint(dropped) {
			t.Errorf("%s: %d keys wait, not %d; not written are %v, not %v", when, n, keys, got, dropped)
		}
	}
	b.dropMany("blue", "x", 4)
	waits("a tenant", 2, map[string]float64{"tenant": 2})
	b.dropMany("red", "x", 2)
	b.dropMany("green", "x", 2)
	waits("all", 5, map[string]float64{"tenant": 2, "max_sources": 1})
	b.dropMany("blue", "x", 2)
	waits("again", 5, map[string]float64{"tenant": 2, "max_sources": 1})
	b.unregister("one")
	waits("for real", 6, map[string]float64{"tenant": 2, "max_sources": 1})
	step(b, a)
	holds(t, "two:m", a, b)
	b.dropMany("blue", "y", 1)
	b.dropMany("black", "y", 1)
	waits("written", 0, map[string]float64{"tenant": 3, "max_sources": 2})
	b.dropMany("blue", "x", 1)
	waits("written, again", 1, map[string]float64{"tenant": 3, "max_sources": 2})
	pass(2*time.Minute, a, b)
	b.dropMany("green", "y", 2)
	waits("later", 3, map[string]float64{"tenant": 3, "max_sources": 2})
	b.unregister("two")
	step(b, a)
	holds(t, "", a, b)
}

// TestUnheardUnregistrationsOfOneReplica leave nothing in the store, on the disk and in memory, unless another replica has
// come since the last beat.
func TestUnheardUnregistrationsOfOneReplica(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a := newPeer(t, url, "a")
	step(a)
	pass(a.members.cfg.Lease, a)
	step(a)
	revision, kept := a.members.Status().Revision, a.registry.Revision()
	a.dropMany("", "x", 10)
	step(a, a)
	if n := len(a.entries()); n > 0 || a.members.Status().Revision != revision || a.registry.Revision() != kept {
		t.Errorf("%d entries, revision %d of the store and %d of the disk, %d and %d before", n, a.members.Status().Revision,
			a.registry.Revision(), revision, kept)
	}
	if len(a.registry.known) > 0 || len(a.registry.pending) > 0 {
		t.Errorf("%d known, %d wait", len(a.registry.known), len(a.registry.pending))
	}
	b := newPeer(t, url, "b")
	step(b)
	b.register(source("x", "m"))
	pass(between, a, b)
	a.drop("x")
	a.registry.Sync(t.Context())
	step(b, a, b)
	holds(t, "", a, b)
}
