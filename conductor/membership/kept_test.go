package membership

import (
	"testing"
	"time"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// again returns the replica after it was killed: from its disk it has its sources, and the changes that
// waited for the store.
func (p *peer) again(url string) *peer {
	p.t.Helper()
	next := newPeer(p.t, url, p.members.ID()+"'")
	next.now = p.now.Add(time.Second)
	for _, r := range p.conductor.Registrations() {
		must.Succeed(p.t, next.conductor.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
	}
	for _, f := range p.registry.Saved() {
		must.Succeed(p.t, next.registry.Restore(f.Fields))
	}
	return next
}

// Changes that the store had not heard of when a replica was killed count after its next start, for the
// others too, and in the order in which they were made.
func TestChangesOutliveTheReplica(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	for _, instance := range []string{"gone", "moved", "grave", "later"} {
		a.register(source(instance, "m"))
	}
	a.registry.Registered(Source{Registration: registration.Registration{Instance: "asked", BlockSize: 16}, Discover: "http://127.0.0.1:1"})
	must.Succeed(t, a.registry.cfg.Targets.Add(discovery.Target{Registration: registration.Registration{Instance: "asked", BlockSize: 16},
		URL: "http://127.0.0.1:1"}, false))
	beat(a, b)
	a.unregister("grave")
	beat(a, b)
	if all := a.registry.Saved(); len(all) > 0 {
		t.Errorf("the store has all, and %v are kept", all)
	}
	revision := a.registry.Revision()
	a.unregister("gone")
	a.register(source("moved", "n"))
	a.register(source("grave", "n")) // unregistered before
	a.unregister("later")
	salted := source("new", "m")
	salted.Salt = "pepper"
	a.register(salted)
	if !a.registry.cfg.Targets.Remove(registration.Key{Instance: "asked", Rank: -1}) {
		t.Fatal("no target")
	}
	a.registry.Unregistered(Name{Key: registration.Key{Instance: "asked", Tenant: "default", Rank: -1}, Asked: true})
	if all := a.registry.Saved(); len(all) != 6 || a.registry.Revision() == revision {
		t.Errorf("%v are kept", all)
	}
	next := a.again(url)
	b.now = b.now.Add(time.Minute)
	b.register(source("later", "back")) // after all of that
	beat(b, next)
	beat(b, next)
	holds(t, "grave:n later:back moved:n new:m", next, b)
	if l := b.registry.cfg.Targets.List(); len(l) > 0 {
		t.Errorf("%+v is still asked", l)
	}
	if got := b.followed("new").Salt; got != "pepper" {
		t.Errorf("the salt is %q", got)
	}
	if all := next.registry.Saved(); len(all) > 0 {
		t.Errorf("the store has all, and %v are kept", all)
	}

	// The configuration of today counts more.
	a.unregister("new")
	last := newPeer(t, url, "last")
	last.configure(source("new", "m"))
	for _, f := range a.registry.Saved() {
		must.Succeed(t, last.registry.Restore(f.Fields))
	}
	if p := last.registry.pending[Name{Key: registration.Key{Instance: "new", Tenant: "default"}}]; p == nil || p.source == nil ||
		!p.configured {
		t.Errorf("%+v", p)
	}
}

// A change that the configuration takes the place of leaves the disk too: else it would be back once the
// configuration has lost its source.
func TestConfiguredInPlaceOfChange(t *testing.T) {
	t.Parallel()
	p := newPeer(t, "redis://127.0.0.1:1", "a")
	p.register(source("x", "m"))
	revision := p.registry.Revision()
	p.registry.Configured(Source{Registration: source("x", "n")})
	if all := p.registry.Saved(); len(all) > 0 || p.registry.Revision() == revision {
		t.Errorf("revision %d as before, %v are kept", p.registry.Revision(), all)
	}
}

// A field that cannot be read costs its change.
func TestRestoreOfChangesIsChecked(t *testing.T) {
	t.Parallel()
	p := newPeer(t, "redis://127.0.0.1:1", "a")
	good := append(source("x", "m").Fields(), tape.Field{Name: "since", Value: "1"}, tape.Field{Name: "seen", Value: "0"})
	must.Succeed(t, p.registry.Restore(good))
	for _, bad := range []string{"block_size", "since", "seen"} {
		f := append([]tape.Field{{Name: bad, Value: "x"}}, good...)
		if p.registry.Restore(f) == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	if len(p.registry.pending) != 1 {
		t.Errorf("%v wait", p.registry.pending)
	}
}
