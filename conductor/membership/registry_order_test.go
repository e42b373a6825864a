package membership

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// between is the time between two changes of these tests, and much longer than the tests take.
const between = 10 * time.Minute

// step lets replicas beat and sync once, in order, without moving their clocks.
func step(peers ...*peer) {
	for _, p := range peers {
		p.members.Beat(p.t.Context())
		p.registry.Sync(p.t.Context())
	}
}

// pass moves the clocks of replicas.
func pass(d time.Duration, peers ...*peer) {
	for _, p := range peers {
		p.now = p.now.Add(d)
	}
}

// drop unregisters a source, of which the replica need not have heard.
func (p *peer) drop(instance string) {
	p.t.Helper()
	if _, err := p.clients.Unregister(registration.Key{Instance: instance}); err != nil && !errors.Is(err, ingest.ErrNotFound) {
		p.t.Error(err)
	}
}

// TestRegistryKeepsTheLaterChange makes every sequence of three changes of a source at two replicas that do not hear of
// each other meanwhile: one registers, registers with another model, or unregisters. The last
// change counts at both, in whichever order they reach the store.
func TestRegistryKeepsTheLaterChange(t *testing.T) {
	t.Parallel()
	changes := [...]string{"a+m", "a+n", "a-", "b+m", "b+n", "b-"}
	for _, order := range []string{"ab", "ba"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			url := redistest.Start(t).URL()
			a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
			of := map[byte]*peer{'a': a, 'b': b}
			model := make(map[string]string)
			var all []string
			for _, before := range []string{"a+m", "b-"} {
				for i := range len(changes) * len(changes) * len(changes) {
					name := fmt.Sprintf("%s,%s,%s,%s", before, changes[i/36], changes[i/6%6], changes[i%6])
					all = append(all, name)
					if before == "a+m" {
						a.register(source(name, "m"))
					}
				}
			}
			pass(5*between, a, b)
			step(a, b)
			for i := 1; i <= 3; i++ {
				for _, name := range all {
					change := strings.Split(name, ",")[i]
					p := of[change[0]]
					if model[name] = change[2:]; change[1] == '+' {
						p.register(source(name, model[name]))
					} else {
						p.drop(name)
					}
				}
				pass(between, a, b)
			}
			for _, p := range order {
				step(of[byte(p)])
			}
			for range 3 {
				step(a, b)
			}
			var want []string
			for name, model := range model {
				if model != "" {
					want = append(want, name+":"+model)
				}
			}
			slices.Sort(want)
			for _, p := range []*peer{a, b} {
				var got []string
				for _, r := range p.conductor.Registrations() {
					got = append(got, r.Instance+":"+r.Model)
				}
				slices.Sort(got)
				for _, w := range want {
					if !slices.Contains(got, w) {
						t.Errorf("replica %s does not follow %s", p.members.ID(), w)
					}
				}
				for _, g := range got {
					if !slices.Contains(want, g) {
						t.Errorf("replica %s follows %s", p.members.ID(), g)
					}
				}
			}
		})
	}
}

// TestRegistryKeepsTheLaterChangeOfEngines is the same for an engine that is asked where it publishes, by its key alone.
func TestRegistryKeepsTheLaterChangeOfEngines(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	s := Source{Registration: registration.Registration{Instance: "e"}, Discover: "http://127.0.0.1:1"}
	ask := func(p *peer) {
		must.Succeed(t, p.registry.cfg.Targets.Add(discovery.Target{Registration: s.Registration, URL: s.Discover}, true))
		p.registry.Registered(s)
	}
	stop := func(p *peer) {
		if p.registry.cfg.Targets.Remove(s.Name().Key) {
			p.registry.Unregistered(s.Name())
		} else {
			p.drop("e")
		}
	}
	asked := func(when string, want int) {
		t.Helper()
		for _, p := range []*peer{a, b} {
			if n := len(p.registry.cfg.Targets.List()); n != want {
				t.Errorf("%s: replica %s asks %d engines, not %d", when, p.members.ID(), n, want)
			}
		}
	}
	round := func(first, second func(*peer)) {
		pass(between, a, b)
		first(a)
		pass(between, a, b)
		second(b)
		pass(between, a, b)
		step(b, a, b, a, b)
	}
	round(ask, stop)
	asked("registered, and unregistered where it was not heard of", 0)
	pass(between, a, b)
	ask(a)
	step(a, b, a)
	asked("registered", 1)
}

// TestRegistryMakesEntriesLater holds that a source which clients register again and again stays as it is: replicas
// neither read the registry for that nor take the entry over again, and a configured entry stays configured.
func TestRegistryMakesEntriesLater(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	a.configure(source("x", "m"))
	a.register(source("y", "m"))
	pass(5*between, a, b)
	step(a, b, a)
	before, kept := b.members.Status().Revision, b.registry.Revision()
	at := func(instance string) int64 {
		return b.registry.known[Name{Key: registration.Key{Instance: instance, Tenant: "default"}}].at
	}
	x, y := at("x"), at("y")
	for range 3 {
		pass(between, a, b)
		b.register(source("x", "m"))
		b.register(source("y", "m"))
		step(b, a, b)
	}
	if st := b.members.Status(); st.Revision != before || b.registry.Revision() != kept {
		t.Errorf("revision %d of the store and %d of the disk, %d and %d before", st.Revision, b.registry.Revision(), before, kept)
	}
	if at("x") <= x || at("y") <= y {
		t.Error("the entries are not later")
	}
	rows, _ := a.registry.List(t.Context())
	if len(rows) != 2 || !rows[0].Configured || rows[0].By != "a" || rows[1].Configured || rows[1].By != "a" {
		t.Errorf("%+v", rows)
	}
	for _, e := range b.registry.known {
		if !e.done {
			t.Errorf("%s is to be taken over again", e.text)
		}
	}
}

// TestRegistryKeepsFieldsOfNewerReplicas that this one does not know, while clients register again here what a newer replica
// has written, and when the store has lost it.
func TestRegistryKeepsFieldsOfNewerReplicas(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a := newPeer(t, url, "a")
	step(newPeer(t, url, "newer"), a)
	const field = `["x","default",0]`
	forge(t, a, field, `{"at":5,"by":"newer","newer":"of the entry","source":{"instance_id":"x","modelname":"m","type":"vLLM",`+
		`"block_size":16,"endpoint":"tcp://127.0.0.1:1","newer":"of the source"}}`)
	client, key := a.members.Store().Client(), a.members.Store().Key
	step(a)
	has := func(when string) {
		t.Helper()
		text := client.HGet(t.Context(), key("sources"), field).Val()
		for _, want := range []string{`"newer":"of the entry"`, `"newer":"of the source"`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s", when, text)
			}
		}
	}
	for i := range 2 {
		before := client.HGet(t.Context(), key("sources"), field).Val()
		pass(between, a)
		a.register(source("x", "m"))
		step(a)
		has(fmt.Sprint("registered again ", i))
		if client.HGet(t.Context(), key("sources"), field).Val() == before {
			t.Error("the entry is not later")
		}
	}
	must.Succeed(t, client.FlushAll(t.Context()).Err())
	step(a, a)
	has("written again")
}

// TestRegistryLeavesRoomForChanges while the store is away and clients register again what it has.
func TestRegistryLeavesRoomForChanges(t *testing.T) {
	t.Parallel()
	p := newPeer(t, "redis://127.0.0.1:1", "a")
	for i := range mostPending {
		s := source(fmt.Sprint(i), "m")
		s.Tenant = "default"
		e := &entry{record: record{By: "a", Wire: &s}, at: 1, done: true}
		p.registry.known[(&Source{Registration: s}).Name()] = e
		p.registry.Registered(Source{Registration: s})
	}
	if n := len(p.registry.pending); n != mostPending/2 || p.registry.dropped[reasonPending] != mostPending/2 {
		t.Errorf("%d wait, %v dropped", n, p.registry.dropped)
	}
	p.registry.Registered(Source{Registration: source("new", "m")})
	if n := len(p.registry.pending); n != mostPending/2+1 {
		t.Errorf("%d wait", n)
	}
}

// TestChangesAgainOutliveTheReplica kills a replica at which a client registered a source again while the store was away:
// the other one had unregistered it before.
func TestChangesAgainOutliveTheReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newPeer(t, server.URL(), "a"), newPeer(t, server.URL(), "b")
	a.register(source("x", "m"))
	a.register(source("y", "m"))
	pass(5*between, a, b)
	step(a, b, a)
	server.Kill()
	step(a, b)
	a.unregister("x")
	a.register(source("y", "m"))
	pass(between, a, b)
	kept := b.registry.Revision()
	b.register(source("x", "m"))
	b.unregister("y")
	if b.registry.Revision() == kept || len(b.registry.Saved()) != 2 {
		t.Errorf("%d changes are kept", len(b.registry.Saved()))
	}
	pass(between, a, b)
	server.Run()
	b = b.again(server.URL())
	step(b, a, b, a)
	holds(t, "x:m", a, b)
}

// TestStoreClock reads the store's clock by beats of different speeds.
func TestStoreClock(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	var c storeClock
	// beat reads a clock that is ahead of the local one, at a moment between request and answer.
	beat := func(at, takes, until, ahead time.Duration) {
		sent := start.Add(at)
		c = c.read(sent, sent.Add(takes), sent.Add(until).Add(ahead))
	}
	is := func(what string, want time.Duration) {
		t.Helper()
		if got := c.timeOf(start).Sub(start); got != want {
			t.Errorf("%s: the store is %s ahead, not %s", what, got, want)
		}
	}
	beat(0, 10*time.Millisecond, 5*time.Millisecond, time.Hour)
	is("first", time.Hour)
	beat(time.Second, 2*time.Millisecond, time.Millisecond, time.Hour+time.Millisecond)
	is("a faster beat", time.Hour+time.Millisecond)
	beat(2*time.Second, 100*time.Millisecond, 90*time.Millisecond, time.Hour)
	is("a slow one", time.Hour+time.Millisecond)
	beat(time.Hour, 100*time.Millisecond, 50*time.Millisecond, time.Hour+20*time.Millisecond)
	is("a slow one, after an hour in which clocks moved apart", time.Hour+20*time.Millisecond)
	beat(time.Hour+time.Second, time.Millisecond, time.Millisecond/2, time.Hour)
	beat(time.Hour+2*time.Second, 100*time.Millisecond, 50*time.Millisecond, -time.Hour)
	is("a clock that was set", -time.Hour)
}

// TestStoreClockOrdersChanges makes changes at replicas whose beats take different times and whose clocks run at other
// rates than the store's: each is made once the one before is answered, and has a later time.
func TestStoreClockOrdersChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		type replica struct {
			storeClock
			ahead time.Duration
			fast  float64 // parts of the time
		}
		start, now := time.Unix(1_800_000_000, 0), time.Duration(0) // by the store's clock
		replicas := make([]replica, 3)
		for i := range replicas {
			replicas[i].ahead, replicas[i].fast = time.Duration(random.Int64N(int64(time.Hour))), (random.Float64()*2-1)/drift/1.1
		}
		here := func(r *replica, at time.Duration) time.Time {
			return start.Add(at + r.ahead + time.Duration(float64(at)*r.fast))
		}
		last := int64(0)
		for range 1000 {
			r := &replicas[random.IntN(len(replicas))]
			if random.IntN(2) == 0 || r.here.IsZero() {
				out, back := time.Duration(random.Int64N(4e6)), time.Duration(random.Int64N(4e6))
				r.storeClock = r.read(here(r, now), here(r, now+out+back), start.Add((now + out).Truncate(time.Microsecond)))
				now += out + back + time.Duration(random.Int64N(int64(5*time.Second)))
				continue
			}
			made := here(r, now)
			if r.uncertainty(made) > 10*time.Millisecond {
				continue // the wait is bounded
			}
			stamp := r.stamp(made)
			if stamp <= last {
				t.Fatalf("seed %d: a change at %d comes after one at %d", seed, stamp, last)
			}
			last = stamp
			now += r.waitForLaterStamp(made)
		}
	}
}
