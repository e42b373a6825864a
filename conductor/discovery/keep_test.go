package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// next is a fleet whose server was restarted: it has the sources and targets of the one before.
func (f *fleet) next() *fleet {
	f.t.Helper()
	g := newFleet(f.t, nil)
	g.answers, g.names, g.port, g.now = f.answers, f.names, f.port, f.now
	for _, s := range f.c.Services() {
		must.Succeed(f.t, g.c.Register(s.Registration, ingest.RegisterOptions{AnyEndpoint: true}))
	}
	for _, saved := range f.m.Saved() {
		must.Succeed(f.t, g.m.Restore(saved.Fields))
	}
	g.m.tasks.Wait()
	return g
}

// A restart knows the targets of clients, and which sources are theirs: an engine may have other
// ports and ranks by then.
func TestRestore(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	revision := f.m.Revision()
	f.add("127.0.0.1", func(t *Target) { t.Tenant, t.TTL = "blue", 5e9 })
	f.add("127.0.0.1", func(t *Target) { t.Instance, t.Static = "of-settings", true })
	if len(f.m.Saved()) != 1 || f.m.Revision() == revision {
		t.Errorf("revision %d, saved %v", f.m.Revision(), f.m.Saved())
	}
	_, err := f.c.Unregister(registration.Key{Instance: "of-settings", Tenant: "default", Rank: 0})
	must.Succeed(t, err)
	_, err = f.c.Unregister(registration.Key{Instance: "of-settings", Tenant: "default", Rank: 1})
	must.Succeed(t, err)

	// An engine that has not moved costs its sources nothing.
	if same := f.next(); same.c.Catalog().Changes().Revision() != 2 {
		t.Errorf("two sources came or went %d times", same.c.Catalog().Changes().Revision())
	}

	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:8000"}}`)
	g := f.next()
	g.want("e|blue|0 tcp://127.0.0.1:8000 vLLM llama 16 ")
	if l := g.m.List(); l[0].TTL != 5e9 || l[0].Static || l[0].Error != "" {
		t.Errorf("the target is %+v", l)
	}
	if !g.m.Remove(l0(g).Name()) {
		t.Error("the target cannot be removed")
	}
	g.m.tasks.Wait()
	g.want()
}

func l0(f *fleet) *State { return &f.m.List()[0] }

// An engine that does not answer keeps its sources, and a source that a client has unregistered
// stays away.
func TestRestoreOfSilentEngine(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.add("127.0.0.1", nil)
	_, err := f.c.Unregister(registration.Key{Instance: "e", Tenant: "default", Rank: 1})
	must.Succeed(t, err)
	revision := f.m.Revision()
	f.pass(interval)
	if f.m.Revision() == revision {
		t.Error("a withdrawn source changes nothing")
	}
	f.answer("127.0.0.1", "/kv_event_sources", "no JSON")
	g := f.next()
	g.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ")
	if s := l0(g); s.Sources != 1 || s.Error == "" {
		t.Errorf("the target is %+v", s)
	}
	g.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 8000, 8001))
	g.pass(maxPause)
	g.want("e|default|0 tcp://127.0.0.1:8000 vLLM llama 16 ")
}

// A source that a client has unregistered stays away although its target was not looked at before the end.
func TestRestoreOfWithdrawn(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.add("127.0.0.1", nil)
	revision := f.m.Revision()
	gone, err := f.c.Unregister(registration.Key{Instance: "e", Rank: 1})
	must.Succeed(t, err)
	f.m.Withdrawn(registration.Key{Instance: "e", Tenant: "blue", Rank: 0})           // another's
	f.m.Withdrawn(registration.Key{Instance: "e2", Tenant: "default", Rank: 0})       // likewise
	f.m.Withdrawn(registration.Key{Instance: "e@node-1", Tenant: "default", Rank: 0}) // likewise
	if f.m.Revision() != revision {
		t.Error("a source of others was withdrawn")
	}
	f.m.Withdrawn(gone)
	if f.m.Revision() == revision {
		t.Error("a withdrawn source changes nothing")
	}
	f.next().want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ")
}

// What a client registers in place of a source that it has unregistered is its own, whatever the engine says
// later.
func TestRegisteredInPlaceOfWithdrawn(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.add("127.0.0.1", nil)
	target := f.m.targets[registration.Key{Instance: "e", Tenant: "default", Rank: AllRanks}]
	gone, err := f.c.Unregister(registration.Key{Instance: "e", Rank: 1})
	must.Succeed(t, err)
	f.m.Withdrawn(gone)
	const own = "e|default|1 tcp://127.0.0.1:9000 vLLM mine 16 "
	must.Succeed(t, f.c.Register(registration.Registration{Instance: "e", Rank: 1, Type: "vLLM", Model: "mine", BlockSize: 16,
		Endpoint: "tcp://127.0.0.1:9000"}, ingest.RegisterOptions{}))
	again := func(port int, want ...string) {
		t.Helper()
		f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, port, port+1))
		for _, e := range target.engines {
			e.next = f.now
		}
		f.pass(0)
		f.want(want...)
	}
	again(8000, "e|default|0 tcp://127.0.0.1:8000 vLLM llama 16 ", own)
	if s := l0(f).Sources; s != 1 {
		t.Errorf("the target has %d sources", s)
	}
	if !f.m.Remove(registration.Key{Instance: "e", Rank: AllRanks}) {
		t.Fatal("no target")
	}
	f.m.tasks.Wait()
	f.want(own)
}

// A source that its engine has brought back while a client was unregistering it goes.
func TestWithdrawnWhileItComesBack(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.add("127.0.0.1", nil)
	f.m.Withdrawn(registration.Key{Instance: "e", Tenant: "default", Rank: 1})
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ")
}

// A target that was removed is waited for until its sources are gone.
func TestAwaitDropped(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.add("127.0.0.1", nil)
	name := registration.Key{Instance: "e", Rank: AllRanks}
	must.Succeed(t, f.m.AwaitDropped(t.Context(), name)) // nothing is to be dropped
	target := f.m.targets[registration.Key{Instance: "e", Tenant: "default", Rank: AllRanks}]
	target.mu.Lock() // its engine is being asked
	if !f.m.Remove(name) {
		t.Fatal("no target")
	}
	impatient, leave := context.WithCancel(t.Context())
	leave()
	if err := f.m.AwaitDropped(impatient, name); err != context.Canceled {
		t.Errorf("%v", err)
	}
	target.mu.Unlock()
	must.Succeed(t, f.m.AwaitDropped(t.Context(), name))
	f.want()
}

// The block size that events told before counts: an engine without work would tell none for long.
func TestRestoreOfLearnedSize(t *testing.T) {
	f := newFleet(t, func(o *Options) {
		o.Learn = func(context.Context, *Target, Rank, bool) (int, error) { return 32, nil }
	}, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"}}`)
	f.add("127.0.0.1", func(t *Target) { t.BlockSize = 0 })
	must.Succeed(t, f.m.Add(Target{Registration: registration.Registration{Instance: "f", Endpoint: "tcp://127.0.0.1:9000", Type: "vLLM",
		Model: "m", Rank: 3}}, false))
	f.m.tasks.Wait()
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 32 ", "f|default|3 tcp://127.0.0.1:9000 vLLM m 32 ")
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:8000"}}`)
	g := f.next()
	g.want("e|default|0 tcp://127.0.0.1:8000 vLLM llama 32 ", "f|default|3 tcp://127.0.0.1:9000 vLLM m 32 ")
	if len(g.m.Saved()) != 2 {
		t.Errorf("saved are %v", g.m.Saved())
	}
}

// A target gives way after a restart, too, until a client adds it.
func TestRestoreOfGivingWay(t *testing.T) {
	f := newFleet(t, nil)
	target := Target{URL: "http://127.0.0.1:1", Registration: registration.Registration{Instance: "e"}, GivesWay: true}
	must.Succeed(t, f.m.Add(target, false))
	f.m.tasks.Wait()
	if !l0(f.next()).GivesWay {
		t.Error("after a restart it does not give way")
	}
	revision := f.m.Revision()
	target.GivesWay = false
	must.Succeed(t, f.m.Add(target, false))
	f.m.tasks.Wait()
	if f.m.Revision() == revision || l0(f.next()).GivesWay {
		t.Error("after a restart it gives way again, though a client has added it")
	}
}

// The instances of a fleet that is gone by the restart lose their sources as ever.
func TestRestoreOfFleet(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1", "127.0.0.2")
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		f.answer(a, "/v1/models", `{"data":[{"id":"llama"}]}`)
	}
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	f.names = []netip.Addr{one, two}
	f.add("engines", nil)
	both := []string{"e@127.0.0.1|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ",
		"e@127.0.0.2|default|0 tcp://127.0.0.2:5557 vLLM llama 16 "}
	f.want(both...)
	f.names = []netip.Addr{two}
	g := f.next()
	g.want(both...) // not at once
	g.pass(graceTime)
	g.want(both[1])
}

// A field that cannot be read costs its target, and is named.
func TestRestoreIsChecked(t *testing.T) {
	f := newFleet(t, nil)
	for _, bad := range []tape.Field{{Name: "engine", Value: "x"}, {Name: "engine", Value: "nowhere 0 1"}, {Name: "engine", Value: "- a 1"},
		{Name: "engine", Value: "- 0 1,x"}, {Name: "withdrawn", Value: "x e"}, {Name: "ttl", Value: "x"},
		{Name: "discover", Value: "file:///etc"}} {
		fields := append(registration.Registration{Instance: "e"}.Fields(), bad, tape.Field{Name: "discover", Value: "http://127.0.0.1:1"})
		if err := f.m.Restore(fields); err == nil || len(f.m.List()) > 0 {
			t.Errorf("%v: %v, %+v", bad, err, f.m.List())
		}
	}
}
