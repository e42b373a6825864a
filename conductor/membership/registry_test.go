package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// peer is a replica with a Conductor, which beats when the test says so.
type peer struct {
	t         *testing.T
	members   *Group
	conductor *conductor.Conductor
	registry  *Registry
	clients   conductor.View
	now       time.Time
	log       strings.Builder
}

// newPeer starts a replica. change may change its options.
func newPeer(t *testing.T, url, id string, change ...func(*conductor.Options)) *peer {
	t.Helper()
	return peerOf(t, member(t, url, id), change...)
}

// peerOf is newPeer for a membership that is made.
func peerOf(t *testing.T, members *Group, change ...func(*conductor.Options)) *peer {
	t.Helper()
	p := &peer{t: t, members: members, now: time.Unix(1_800_000_000, 0)}
	members.cfg.Now = func() time.Time { return p.now }
	opts := conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: zmq.Transport{}}}
	for _, f := range change {
		f(&opts)
	}
	p.conductor = conductor.New(opts)
	t.Cleanup(p.conductor.Close)
	targets := discovery.New(discovery.Options{Registry: p.conductor.Sources(), Bounds: p.conductor.Sources().Places.Bounds,
		TooMany: p.conductor.Sources().Places.TooMany, Log: zerolog.Nop()})
	t.Cleanup(targets.Close)
	p.registry = NewRegistry(RegistryConfig{Group: p.members, Conductor: p.conductor, Targets: targets, Log: zerolog.New(&p.log)})
	p.clients = p.conductor.For(conductor.Reader{Secrets: true, Causes: true})
	return p
}

// beat beats and syncs, twice: the second beat sees what the first wrote.
func beat(peers ...*peer) {
	for range 2 {
		for _, p := range peers {
			p.now = p.now.Add(time.Second)
			p.members.Beat(p.t.Context())
			p.registry.Sync(p.t.Context())
		}
	}
}

// later moves the clock on, past the next confirmation.
func (p *peer) later() { p.now = p.now.Add(confirmEvery) }

// source returns a registration.
func source(instance, model string) registration.Registration {
	return registration.Registration{Instance: instance, Endpoint: "tcp://127.0.0.1:1", Type: registration.TypeVLLM, Model: model,
		BlockSize: 16}
}

func (p *peer) register(r registration.Registration) {
	p.t.Helper()
	must.Succeed(p.t, p.clients.Register(r, ingest.RegisterOptions{Replace: true}))
}

func (p *peer) unregister(instance string) {
	p.t.Helper()
	_, err := p.clients.Unregister(registration.Key{Instance: instance})
	must.Succeed(p.t, err)
}

// configure registers a source of the configuration.
func (p *peer) configure(r registration.Registration) {
	p.t.Helper()
	must.Succeed(p.t, p.conductor.Register(r, ingest.RegisterOptions{Static: true, AnyEndpoint: true, Replace: true}))
	p.registry.Configured(Source{Registration: r})
}

// unconfigure takes one away.
func (p *peer) unconfigure(instance string) {
	s := Source{Registration: source(instance, "m")}
	p.conductor.Unregister(s.Key())
	p.registry.Unconfigured(s.Name())
}

// followed returns the source of an instance, the zero value for none.
func (p *peer) followed(instance string) registration.Registration {
	for _, r := range p.conductor.Registrations() {
		if r.Instance == instance {
			return r
		}
	}
	return registration.Registration{}
}

// holds compares what replicas follow with "instance:model" words in order.
func holds(t *testing.T, want string, peers ...*peer) {
	t.Helper()
	for _, p := range peers {
		var got []string
		for _, r := range p.conductor.Registrations() {
			got = append(got, r.Instance+":"+r.Model)
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("replica %s follows %q, not %q\n%s", p.members.ID(), text, want, p.log.String())
		}
	}
}

func TestRegistrySharesWhatClientsRegister(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	beat(a, b)
	full := source("x", "m")
	full.Tenant, full.Rank, full.Lora, full.Salt, full.TTL, full.MediaTTL = "blue|0", 3, "l", "s", time.Minute,
		map[string]time.Duration{"DISK": time.Hour}
	full.Copies, full.Owned, full.Clear, full.ReplayEndpoint = registration.CopiesSet, registration.OwnedDrop, registration.ClearDevice,
		"tcp://10.0.0.1:1"
	a.register(full)
	a.register(source("y", "m"))
	beat(a, b)
	holds(t, "x:m y:m", a, b)
	had, has := a.followed("x"), b.followed("x")
	if fmt.Sprintf("%+v", had) != fmt.Sprintf("%+v", has) {
		t.Errorf("registered as %+v, taken over as %+v", had, has)
	}
	b.unregister("y")
	beat(b, a)
	holds(t, "x:m", a, b)
	b.register(source("y", "again"))
	beat(b, a)
	holds(t, "x:m y:again", a, b)

	c := newPeer(t, url, "c")
	beat(c)
	holds(t, "x:m y:again", c)
}

// TestRegistryAgreesOnTheLastChange registers one name at two replicas that do not hear of each other.
func TestRegistryAgreesOnTheLastChange(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	paced(t, func(p *pace) (check func()) {
		must.Succeed(t, connected(t, url).Client().FlushAll(t.Context()).Err())
		a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
		a.members.cfg.Now, b.members.cfg.Now = time.Now, time.Now
		p.step(a, b, a, b)
		a.register(source("x", "first")) // a writes an older change late
		p.apart(a)
		b.register(source("x", "second"))
		b.register(source("y", "m"))
		p.step(b, b)
		b.unregister("y")
		p.apart(a)
		a.register(source("y", "late")) // and a newer one
		p.step(b, a, b, b, a, b)
		return func() { holds(t, "x:second y:late", a, b) }
	})
}

// TestRegistryWaitsForTheStore changes sources while the store is away, and empties it.
func TestRegistryWaitsForTheStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newPeer(t, server.URL(), "a"), newPeer(t, server.URL(), "b")
	a.register(source("x", "m"))
	a.register(source("y", "m"))
	a.register(source("z", "m"))
	beat(a, b)
	a.unregister("z")
	beat(a, b)
	server.Kill()
	beat(a, b)
	a.register(source("new", "m"))
	b.unregister("y")
	beat(a, b)
	holds(t, "new:m x:m y:m", a)
	holds(t, "x:m", b)
	server.Run()
	beat(a, b)
	holds(t, "new:m x:m", a, b)
	c := newPeer(t, server.URL(), "c")
	beat(c)
	holds(t, "new:m x:m", c)

	must.Succeed(t, a.members.Store().Client().FlushAll(t.Context()).Err())
	beat(a, b, c)
	holds(t, "new:m x:m", a, b, c)
	d := newPeer(t, server.URL(), "d")
	must.Succeed(t, d.conductor.Register(source("z", "m"), ingest.RegisterOptions{})) // from its disk
	beat(d)
	holds(t, "new:m x:m", d) // what was unregistered stays so
}

// TestRegistryRemembersDisks begins with an empty store and a replica that has sources on its disk.
func TestRegistryRemembersDisks(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	must.Succeed(t, a.conductor.Register(source("x", "m"), ingest.RegisterOptions{}))
	beat(a, b)
	holds(t, "x:m", a, b)
}

func TestRegistryHasConfiguredSources(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	a.configure(source("x", "m"))
	beat(a, b)
	holds(t, "x:m", a, b)
	if rows, _ := b.registry.List(t.Context()); len(rows) != 1 || !rows[0].Configured || rows[0].By != "a" || len(rows[0].Followers) != 2 {
		t.Errorf("%+v", rows)
	}
	// The configuration of b differs: it counts there.
	b.configure(source("x", "other"))
	beat(b, a)
	holds(t, "x:m", a)
	holds(t, "x:other", b)
	if n := strings.Count(b.log.String()+a.log.String(), "which count here"); n != 1 {
		t.Errorf("%d lines: %s%s", n, a.log.String(), b.log.String())
	}
	b.configure(source("x", "m"))
	beat(b, a)
	holds(t, "x:m", a, b)

	// It stays until none has it.
	client, key := a.members.Store().Client(), a.members.Store().Key
	ended := func() {
		t.Helper()
		for _, p := range []*peer{a, b} { // as if the times had passed
			for _, z := range client.ZRangeWithScores(t.Context(), key("ends"), 0, -1).Val() {
				client.ZIncrBy(t.Context(), key("ends"), -float64((droppedFor + confirmEvery).Milliseconds()), z.Member.(string))
			}
			p.later()
			beat(p)
		}
		beat(a, b)
	}
	a.unconfigure("x")
	beat(a, b)
	holds(t, "", a)
	for range 4 {
		ended()
	}
	holds(t, "x:m", a, b) // b has it, so a follows it again
	b.unconfigure("x")
	for range 4 {
		ended()
	}
	holds(t, "", a, b)
}

// TestRegistryUnregistersConfiguredSources by a client, everywhere.
func TestRegistryUnregistersConfiguredSources(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	a.configure(source("x", "m"))
	b.configure(source("x", "m"))
	beat(a, b)
	a.unregister("x")
	beat(a, b)
	holds(t, "", a, b)
	a.later()
	b.later()
	beat(a, b)
	holds(t, "", a, b)
}

// TestRegistryFollowsWhatIsWanted, and asks again when that changes.
func TestRegistryFollowsWhatIsWanted(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	b.registry.SetWanted(func(r registration.Registration) bool { return r.Model == "m" })
	a.register(source("x", "m"))
	a.register(source("y", "n"))
	b.configure(source("z", "n"))
	beat(a, b, a)
	holds(t, "x:m y:n z:n", a)
	holds(t, "x:m", b)
	b.registry.SetWanted(func(r registration.Registration) bool { return r.Model == "n" })
	beat(b)
	holds(t, "y:n z:n", b)
	b.registry.SetWanted(nil)
	beat(b)
	holds(t, "x:m y:n z:n", b)
}

// TestRegistryUnregistersWhatItLooksAt holds that a client may unregister a source that is in the registry
// while a replica decides whether to follow it.
func TestRegistryUnregistersWhatItLooksAt(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	first, again := errors.New("b has not looked"), error(nil)
	b.registry.SetWanted(func(r registration.Registration) bool {
		_, first = b.clients.Unregister(r.Key())
		_, again = b.clients.Unregister(r.Key())
		b.now = b.now.Add(time.Second) // the store hears of it later
		return false
	})
	a.register(source("x", "m"))
	beat(a, b)
	if first != nil || !errors.Is(again, ingest.ErrNotFound) {
		t.Errorf("%v, then %v", first, again)
	}
	beat(b, a)
	holds(t, "", a, b)
}

// TestRegistryLooksAgain holds that Again counts while an entry is looked at: a source that is wanted by
// then is followed.
func TestRegistryLooksAgain(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	wanted := false
	b.registry.SetWanted(func(registration.Registration) bool {
		before := wanted
		if !before {
			wanted = true
			b.registry.Again()
		}
		return before
	})
	a.register(source("x", "m"))
	beat(a, b)
	holds(t, "x:m", b)
}

// TestRegistryLeavesTakeoversAlone holds that a source which is not wanted yet goes on to take the blocks
// of a snapshot.
func TestRegistryLeavesTakeoversAlone(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	b.registry.SetWanted(func(registration.Registration) bool { return false })
	a.register(source("x", "m"))
	beat(a, b)
	r := a.followed("x")
	taken := b.conductor.Sources().Snapshots().Recover(0)
	must.Succeed(t, taken.Source(image.Source{Registration: r}))
	b.registry.Again()
	beat(b)
	if _, err := b.conductor.Unregister(r.Key()); err != nil {
		t.Errorf("a source that is being taken over is gone: %v", err)
	}
}

// TestRegistryFollowsAskedEngines shares an engine that is asked where it publishes.
func TestRegistryFollowsAskedEngines(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	s := Source{Registration: registration.Registration{Instance: "e"}, Discover: "http://127.0.0.1:1"}
	must.Succeed(t, a.registry.cfg.Targets.Add(discovery.Target{Registration: s.Registration, URL: s.Discover}, false))
	a.registry.Registered(s)
	beat(a, b)
	if all := b.registry.cfg.Targets.List(); len(all) != 1 || all[0].URL != s.Discover || all[0].Static {
		t.Errorf("%+v", all)
	}
	b.registry.cfg.Targets.Remove(registration.Key{Instance: "e", Rank: discovery.AllRanks})
	b.registry.Unregistered(s.Name())
	beat(b, a)
	if all := a.registry.cfg.Targets.List(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestRegistryBoundsWhatWaits, and leaves a store alone that was exchanged after the last beat.
func TestRegistryBoundsWhatWaits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newPeer(t, server.URL(), "a")
	beat(a)
	must.Succeed(t, a.members.Store().Client().Set(t.Context(), a.members.Store().Key("run"), "other", 0).Err())
	a.register(source("x", "m"))
	if err := a.registry.Sync(t.Context()); err != errOther {
		t.Errorf("%v", err)
	}
	for i := range mostPending + 10 {
		a.registry.Unregistered(Name{Key: registration.Key{Instance: fmt.Sprint(i), Tenant: "default"}})
	}
	if len(a.registry.pending) != mostPending || a.registry.dropped[reasonPending] != 11 {
		t.Errorf("%d wait, %v dropped", len(a.registry.pending), a.registry.dropped)
	}
}
