package ingest

import (
	"errors"
	"testing"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// placed is Sources without connections. It also has the places that a test holds there, and those that gave way.
type placed struct {
	t    *testing.T
	c    *server
	gone []string
}

func newPlaced(t *testing.T, most, ofTenant int) *placed {
	return newPlacedWith(t, serverOptions{}, most, ofTenant)
}

func newPlacedWith(t *testing.T, opts serverOptions, most, ofTenant int) *placed {
	p := &placed{t: t, c: newServer(opts)}
	t.Cleanup(p.c.Close)
	p.c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
		return idle{make(chan struct{})}
	})
	p.c.sources.Tune(Limits{MaxSources: most, MaxTenantSources: ofTenant})
	return p
}

func sourceOf(name, tenant string) registration.Registration {
	return registration.Registration{Endpoint: "tcp://a:1", Type: registration.TypeVLLM, Model: "m", Instance: name, Tenant: tenant,
		BlockSize: 4}
}

func (p *placed) register(name, tenant string, opts RegisterOptions) error {
	return p.c.Register(sourceOf(name, tenant), opts)
}

func (p *placed) hold(name, tenant string, static, givesWay bool) (*Place, error) {
	return p.c.sources.HoldPlace(Holder{Tenant: tenant, Static: static, GivesWay: func() bool { return givesWay },
		GiveWay: func() { p.gone = append(p.gone, name) }})
}

func (p *placed) mustHold(name, tenant string, static, givesWay bool) *Place {
	p.t.Helper()
	place, err := p.hold(name, tenant, static, givesWay)
	must.Succeed(p.t, err)
	return place
}

func (p *placed) refuses(err, want error) {
	p.t.Helper()
	if !errors.Is(err, want) {
		p.t.Errorf("got %v, want %v", err, want)
	}
}

// wantGone requires which holders have given way since the last call.
func (p *placed) wantGone(want ...string) {
	p.t.Helper()
	if len(p.gone) != len(want) || len(want) > 0 && p.gone[0] != want[0] {
		p.t.Errorf("gave way: %v, want %v", p.gone, want)
	}
	p.gone = nil
}

// TestHeldPlaceIsCounted holds places beside sources up to both bounds, and registers a source in a place that it has.
func TestHeldPlaceIsCounted(t *testing.T) {
	p := newPlaced(t, 3, 2)
	one := p.mustHold("one", "a", false, false)
	must.Succeed(t, p.register("s", "a", RegisterOptions{}))
	_, err := p.hold("more of a", "a", false, false)
	p.refuses(err, ErrTenantFull)
	p.refuses(p.register("more of a", "a", RegisterOptions{}), ErrTenantFull)
	static := p.mustHold("of the configuration", "a", true, false)
	_, err = p.hold("more", "b", false, false)
	p.refuses(err, ErrTooManySources)
	p.refuses(p.register("more", "b", RegisterOptions{}), ErrTooManySources)
	must.Succeed(t, p.register("one", "a", RegisterOptions{Place: one}))
	p.wantGone("one") // to its own source
	one.Release()     // is the source's by now
	p.refuses(p.register("another in its place", "b", RegisterOptions{Place: one}), ErrTooManySources)
	static.Release()
	static.Release()
	must.Succeed(t, p.register("after it", "b", RegisterOptions{}))
	p.refuses(p.register("more", "b", RegisterOptions{}), ErrTooManySources)
	(*Place)(nil).Release()
	if n := p.c.sources.Places.Refused(); n[reasonTenant] != 2 || n[reasonMaxSources] != 4 {
		t.Errorf("refused are %v", n)
	}
	p.c.Close()
	_, err = p.hold("late", "a", false, false)
	p.refuses(err, ErrClosed)
}

// TestHeldPlaceGivesWay holds that places give way before sources do, the newest first, and not to what gives way too.
func TestHeldPlaceGivesWay(t *testing.T) {
	p := newPlaced(t, 3, 0)
	must.Succeed(t, p.register("forged", "a", RegisterOptions{GivesWay: true}))
	p.mustHold("older", "a", false, true)
	p.mustHold("newer", "a", false, true)
	p.refuses(p.register("forged too", "a", RegisterOptions{GivesWay: true}), ErrTooManySources)
	_, err := p.hold("forged too", "a", false, true)
	p.refuses(err, ErrTooManySources)
	must.Succeed(t, p.register("s", "a", RegisterOptions{}))
	p.wantGone("newer")
	p.mustHold("an engine", "a", false, false)
	p.wantGone("older")
	p.mustHold("another engine", "a", false, false)
	if all := p.c.Registrations(); len(all) != 1 || all[0].Instance != "s" {
		t.Errorf("the sources are %v: the one that gives way is still there", all)
	}
	p.refuses(p.register("more", "a", RegisterOptions{}), ErrTooManySources)
	p.wantGone()
}

// TestRecoveredSourceHasNoPlace registers what a snapshot named before: it needs a place as any other source does.
func TestRecoveredSourceHasNoPlace(t *testing.T) {
	p := newPlaced(t, 1, 0)
	r := sourceOf("recovered", scope.DefaultTenant)
	c := p.c.sources
	c.mu.Lock()
	s := newRecovered(c, r)
	c.sources[r.Key()] = s
	go c.followSource(s)
	c.mu.Unlock()
	must.Succeed(t, p.register("s", "", RegisterOptions{GivesWay: true}))
	p.refuses(p.c.Register(r, RegisterOptions{GivesWay: true}), ErrTooManySources)
	if c.Find(r.Key()) != s {
		t.Error("a registration that was refused has replaced what was recovered")
	}
	must.Succeed(t, p.c.Register(r, RegisterOptions{}))
	if all := p.c.Registrations(); len(all) != 1 || all[0].Instance != "recovered" {
		t.Errorf("the sources are %v", all)
	}
}

// TestGivingWayIsKept: a source gives way after a restart, too, until a client registers it.
func TestGivingWayIsKept(t *testing.T) {
	p := newPlaced(t, 1, 0)
	kept := p.c.sources.Snapshots().KeptSources()
	restart := func() *placed {
		t.Helper()
		next := newPlaced(t, 1, 0)
		m, err := image.ReadSource(kept.Saved()[0].Fields)
		must.Succeed(t, err)
		if why := next.c.sources.Snapshots().Recover(0).Own(&m); why != "" {
			t.Error(why)
		}
		return next
	}
	must.Succeed(t, p.register("s", "", RegisterOptions{GivesWay: true}))
	must.Succeed(t, restart().register("client", "", RegisterOptions{}))
	revision := kept.Revision()
	must.Succeed(t, p.register("s", "", RegisterOptions{}))
	if changed, known := kept.SavedSince(revision); !known || len(changed) != 1 {
		t.Errorf("changed are %v", changed)
	}
	p.refuses(restart().register("client", "", RegisterOptions{}), ErrTooManySources)
}
