package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// listener has connections to engines that have told no block size yet.
type listener struct {
	mu   sync.Mutex
	open map[string]chan int // by endpoint: the size that its first events tell
}

func (l *listener) learn(ctx context.Context, _ *Target, r Rank, _ bool) (int, error) {
	size := make(chan int)
	l.mu.Lock()
	l.open[r.Endpoint] = size
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, r.Endpoint)
	}()
	select {
	case n := <-size:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// endpoints returns where connections are open.
func (l *listener) endpoints() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for endpoint := range l.open {
		all = append(all, endpoint)
	}
	return all
}

// newMuteFleet returns a fleet of engines that tell no block size, and what listens to them. It looks at its targets when look is
// called; sources is limits.max_sources.
func newMuteFleet(t *testing.T, engines, sources int) (f *fleet, l *listener, look func(time.Duration)) {
	l = &listener{open: make(map[string]chan int)}
	var addresses []string
	for i := range engines {
		addresses = append(addresses, fmt.Sprintf("127.0.0.%d", i+1))
	}
	f = newFleet(t, func(o *Options) { o.Learn = l.learn }, addresses...)
	f.c.Tune(conductor.Tunables{MaxSources: sources})
	for _, a := range addresses {
		f.answer(a, "/v1/models", `{"data":[{"id":"llama"}]}`)
		f.names = append(f.names, netip.MustParseAddr(a))
	}
	look = func(d time.Duration) {
		f.m.mu.Lock()
		targets := slices.Collect(maps.Values(f.m.targets))
		f.m.mu.Unlock()
		for _, target := range targets {
			target.mu.Lock() // nothing else works on it
			f.now = f.now.Add(d)
			target.mu.Unlock()
			f.m.updateTarget(target)
		}
	}
	return f, l, look
}

// addMute adds a target whose engines are asked at once.
func (f *fleet) addMute(name string, givesWay bool) {
	f.t.Helper()
	must.Succeed(f.t, f.m.Add(Target{URL: "http://engines:" + f.port, GivesWay: givesWay,
		Registration: registration.Registration{Instance: name}}, false))
	until(f.t, func() bool {
		f.m.mu.Lock()
		defer f.m.mu.Unlock()
		for _, target := range f.m.targets {
			if !target.seen.Load() {
				return false
			}
		}
		return true
	})
}

// register registers a source of a client.
func (f *fleet) register(name string) error {
	return f.c.Register(registration.Registration{Endpoint: "tcp://127.0.0.1:1", Type: "vLLM", Model: "llama", Instance: name,
		BlockSize: 16}, ingest.RegisterOptions{})
}

// TestLearningTakesPlaces: a name with more addresses than there may be sources opens no more connections than that. The target says
// why, no client can register beyond them, and an engine that tells its block size has its source in its place.
func TestLearningTakesPlaces(t *testing.T) {
	f, l, look := newMuteFleet(t, 4, 2)
	f.addMute("e", false)
	until(t, func() bool { return len(l.endpoints()) >= 2 })
	look(time.Minute)
	if open, state := l.endpoints(), f.m.List()[0]; len(open) != 2 || state.Learning ||
		!strings.Contains(state.Error, ingest.ErrTooManySources.Error()) {
		t.Fatalf("connected to %v, state %+v", open, state)
	}
	if err := f.register("client"); !errors.Is(err, ingest.ErrTooManySources) {
		t.Errorf("a client's source: %v", err)
	}
	first := l.endpoints()[0]
	l.mu.Lock()
	tell := l.open[first]
	l.mu.Unlock()
	tell <- 32
	until(t, func() bool {
		if err := f.register("client"); !errors.Is(err, ingest.ErrTooManySources) {
			t.Fatalf("the place of an engine that has told its block size is lost: %v", err)
		}
		return len(f.c.Services()) > 0
	})
	if s := f.c.Services(); len(s) != 1 || s[0].Endpoint != first || s[0].BlockSize != 32 {
		t.Errorf("the sources are %v", s)
	}
	look(time.Minute)
	if open := l.endpoints(); len(open) != 1 {
		t.Errorf("connected to %v beside a source", open)
	}
	// The place of an engine that is gone is free, after the grace time.
	gone := netip.MustParseAddrPort(strings.TrimPrefix(l.endpoints()[0], "tcp://")).Addr()
	f.names = slices.DeleteFunc(f.names, func(a netip.Addr) bool { return a == gone })
	until(t, func() bool {
		look(graceTime)
		open := l.endpoints()
		return len(open) == 1 && !strings.Contains(open[0], gone.String())
	})
	f.m.Remove(f.m.List()[0].Name())
	until(t, func() bool { return len(l.endpoints()) == 0 && len(f.c.Services()) == 0 })
	must.Succeed(t, f.register("client"))
	must.Succeed(t, f.register("another"))
}

// TestLearningGivesWay: engines of a target that gives way take no place from a registration, which ends their connections.
func TestLearningGivesWay(t *testing.T) {
	f, l, look := newMuteFleet(t, 2, 2)
	f.addMute("forged", true)
	until(t, func() bool { return len(l.endpoints()) == 2 })
	must.Succeed(t, f.register("client"))
	until(t, func() bool { return len(l.endpoints()) == 1 })
	must.Succeed(t, f.register("another"))
	until(t, func() bool { return len(l.endpoints()) == 0 })
	until(t, func() bool {
		look(time.Minute)
		return strings.Contains(f.m.List()[0].Error, ingest.ErrTooManySources.Error())
	})
	if open := l.endpoints(); len(open) != 0 {
		t.Errorf("connected to %v", open)
	}
}

// tell lets the only engine that is listened to tell a block size, and requires the source that follows from it.
func (l *listener) tell(f *fleet, look func(time.Duration), size int) {
	f.t.Helper()
	until(f.t, func() bool { return len(l.endpoints()) == 1 })
	endpoint := l.endpoints()[0]
	l.mu.Lock()
	told := l.open[endpoint]
	l.mu.Unlock()
	told <- size
	until(f.t, func() bool {
		look(0)
		return slices.ContainsFunc(f.c.Services(), func(s status.Source) bool { return s.BlockSize == size })
	})
}

// restart starts the publisher of the only source again, and waits until the source has noticed that.
func (f *fleet) restart() {
	f.t.Helper()
	r := f.c.Registrations()[0]
	p := f.net.PublisherAt(r.Endpoint)
	_, before, _ := f.c.Sources().Health(r.Key())
	f.publish(p)
	p.RestartAs(events.PublisherID{p.ID[0] + 1})
	f.publish(p)
	until(f.t, func() bool {
		_, n, _ := f.c.Sources().Health(r.Key())
		return n == before+1
	})
}

// publish publishes a batch once one connection is open.
func (f *fleet) publish(p *streamtest.Publisher) {
	f.t.Helper()
	until(f.t, func() bool {
		p.Mu.Lock()
		defer p.Mu.Unlock()
		maps.DeleteFunc(p.Live, func(c *streamtest.Conn, _ bool) bool { return c.IsClosed() })
		return len(p.Live) == 1
	})
	p.Publish(streamtest.EncodeBatch(1.5, 0))
}

// TestRestartedEngineLearnsLater: an engine that was started again while there was no place keeps its source, says that its block size
// is not learned, and tells it once there is a place.
func TestRestartedEngineLearnsLater(t *testing.T) {
	for name, add := range map[string]func(*fleet){
		"discover": func(f *fleet) { f.addMute("e", false) },
		"block_size: auto": func(f *fleet) {
			must.Succeed(f.t, f.m.Add(Target{Registration: registration.Registration{Instance: "e", Type: "vLLM", Model: "llama",
				Endpoint: "tcp://127.0.0.1:5557"}}, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, l, look := newMuteFleet(t, 1, 1)
			add(f)
			l.tell(f, look, 32)
			f.restart()
			for _, pause := range []time.Duration{interval, minRefresh, maxRefresh, maxSilence, maxSilence} {
				look(pause)
				if s := f.m.List()[0]; len(l.endpoints()) != 0 || len(f.c.Services()) != 1 || s.Sources != 1 ||
					!strings.Contains(s.Error, ingest.ErrTooManySources.Error()) {
					t.Errorf("connected to %v, sources %v, state %+v", l.endpoints(), f.c.Services(), s)
				}
			}
			f.c.Tune(conductor.Tunables{MaxSources: 2})
			look(maxPause)
			l.tell(f, look, 64)
			until(t, func() bool {
				look(interval)
				return f.m.List()[0].Word() == "found"
			})
		})
	}
}

// TestRestartedEngineLearnsOnce: a publisher that is started again has its block size learned once, though the source that is replaced
// because of it has seen no restart.
func TestRestartedEngineLearnsOnce(t *testing.T) {
	f, l, look := newMuteFleet(t, 1, 2)
	f.addMute("e", false)
	l.tell(f, look, 32)
	f.restart()
	look(interval)
	l.tell(f, look, 64)
	f.awaitLive()
	for range 3 {
		look(interval)
		f.m.tasks.Wait() // returns if nothing listens
	}
}

// TestRestartedEngineLosesItsPlace: an engine that was started again, and whose second place goes to a registration, says so, and
// learns its block size once there is a place. Learning the same size as before ends the wait, too.
func TestRestartedEngineLosesItsPlace(t *testing.T) {
	f, l, look := newMuteFleet(t, 1, 2)
	f.addMute("forged", true)
	l.tell(f, look, 32)
	f.restart()
	look(interval)
	until(t, func() bool { return len(l.endpoints()) == 1 })
	if s := f.m.List()[0]; s.Word() != "found" {
		t.Errorf("while it learns the state is %+v", s)
	}
	must.Succeed(t, f.register("client"))
	until(t, func() bool {
		look(interval)
		return len(l.endpoints()) == 0 && strings.Contains(f.m.List()[0].Error, ingest.ErrTooManySources.Error())
	})
	f.c.Tune(conductor.Tunables{MaxSources: 3})
	look(maxPause)
	l.tell(f, look, 32)
	until(t, func() bool {
		look(maxSilence)
		return f.m.List()[0].Word() == "found" && len(l.endpoints()) == 0
	})
}

// TestEngineTellsBlockSizeLater: an engine that is listened to, and then tells its block size itself, has its source in the only place,
// and nothing listens to it any more.
func TestEngineTellsBlockSizeLater(t *testing.T) {
	f, l, look := newMuteFleet(t, 1, 1)
	f.addMute("e", false)
	until(t, func() bool { return slices.Equal(l.endpoints(), []string{"tcp://127.0.0.1:5557"}) })
	f.answer("127.0.0.1", "/server_info", `{"served_model_name":"q","kv_events":{"endpoint_host":"*","endpoint_port_base":6000,`+
		`"block_size":64,"dp_size":1}}`)
	look(maxPause)
	f.want("e|default|0 tcp://127.0.0.1:6000 SGLang q 64 ")
	until(t, func() bool { return len(l.endpoints()) == 0 })
	if s := f.m.List()[0]; s.Word() != "found" {
		t.Errorf("the state is %+v", s)
	}
	f.c.Tune(conductor.Tunables{MaxSources: 2})
	must.Succeed(t, f.register("client"))
}

// TestWithdrawnEngineIsNotHeard: nothing listens to an engine all of whose sources were unregistered.
func TestWithdrawnEngineIsNotHeard(t *testing.T) {
	f, l, look := newMuteFleet(t, 1, 2)
	f.addMute("e", false)
	l.tell(f, look, 32)
	f.restart()
	look(interval)
	until(t, func() bool { return len(l.endpoints()) == 1 })
	gone, err := f.c.Unregister(registration.Key{Instance: "e"})
	must.Succeed(t, err)
	f.m.Withdrawn(gone)
	until(t, func() bool {
		look(maxSilence)
		return len(l.endpoints()) == 0
	})
	if s := f.m.List()[0]; s.Error != "" || s.Sources != 0 {
		t.Errorf("the state is %+v", s)
	}
}

// TestSilentEngineGivesItsPlaceBack: an engine that has told its block size, and then does not answer, keeps no place.
func TestSilentEngineGivesItsPlaceBack(t *testing.T) {
	f, l, _ := newMuteFleet(t, 1, 1)
	f.addMute("e", false)
	until(t, func() bool { return len(l.endpoints()) == 1 })
	f.answer("127.0.0.1", "/kv_event_sources", "no JSON")
	l.mu.Lock()
	told := l.open["tcp://127.0.0.1:5557"]
	l.mu.Unlock()
	told <- 32
	until(t, func() bool { return f.register("client") == nil })
}
