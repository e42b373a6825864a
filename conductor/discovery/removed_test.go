package discovery

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// TestRemovedDuringRecovery removes targets whose engines have not answered while a server recovers. No snapshot brings
// sources that they may have had, under their own name or that of an address, until they are added again.
func TestRemovedDuringRecovery(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	m := New(Options{Registry: c.Sources(), Removed: c.Sources().Unregistered.SetTarget, Log: zerolog.Nop(),
		Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such name") }})
	defer m.Close()
	source := func(instance, tenant string, rank int) registration.Registration {
		return registration.Registration{Instance: instance, Tenant: tenant, Rank: rank, Endpoint: "tcp://10.0.0.1:1",
			Type: registration.TypeVLLM, Model: "m", BlockSize: 16}
	}
	asked := Target{URL: "http://engine:1", Registration: registration.Registration{Instance: "e"}}
	learns := Target{Registration: source("learns", "", 1)}
	learns.BlockSize = 0
	for _, target := range []Target{asked, learns} {
		must.Succeed(t, m.Add(target, false))
		if !m.Remove(target.Name()) {
			t.Errorf("no target %s", target.Name())
		}
	}
	expect := func(want string) {
		t.Helper()
		r := c.Sources().Snapshots().Recover(0)
		for _, reg := range []registration.Registration{
			source("e", "", 0), source("e", "", 3), source("e@10.0.0.1", "", 1), source("e@fd00::1", "", 0), source("e", "t", 0),
			source("e2", "", 0), source("e@node-1", "", 0), source("f@e", "", 0), source("learns", "", 0), source("learns", "", 1),
		} {
			must.Succeed(t, r.Source(image.Source{Registration: reg}))
		}
		var got []string
		for _, s := range c.Services() {
			got = append(got, s.Key().String())
		}
		if all := strings.Join(got, " "); all != want {
			t.Errorf("a snapshot brings %s, want %s", all, want)
		}
		r.Undo()
	}
	expect("e|t|0 e2|default|0 e@node-1|default|0 f@e|default|0 learns|default|0")
	must.Succeed(t, m.Add(asked, false))
	expect("e|default|0 e|default|3 e|t|0 e2|default|0 e@10.0.0.1|default|1 e@fd00::1|default|0 e@node-1|default|0 f@e|default|0 " +
		"learns|default|0")
}

// TestGivingWayIsRemoval: a target that gives way is removed as others are: no snapshot brings its sources back, and the log of
// registrations forgets it.
func TestGivingWayIsRemoval(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	m := New(Options{Registry: c.Sources(), Removed: c.Sources().Unregistered.SetTarget, Log: zerolog.Nop(),
		Bounds:  func() (int, int) { return 1, 0 },
		Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such name") }})
	defer m.Close()
	forged := Target{URL: "http://engine:1", Registration: registration.Registration{Instance: "forged"}, GivesWay: true}
	must.Succeed(t, m.Add(forged, false))
	revision := m.Revision()
	must.Succeed(t, m.Add(Target{URL: "http://engine:1", Registration: registration.Registration{Instance: "e"}}, false))
	changed, known := m.SavedSince(revision)
	name := forged.Name()
	if !known || len(changed) != 2 || changed[0].Name != name.Unique() || changed[0].Fields != nil || changed[1].Fields == nil {
		t.Errorf("changed are %v", changed)
	}
	r := c.Sources().Snapshots().Recover(0)
	must.Succeed(t, r.Source(image.Source{Registration: registration.Registration{Instance: "forged", Endpoint: "tcp://10.0.0.1:1",
		Type: registration.TypeVLLM, Model: "m", BlockSize: 16}}))
	if all := c.Services(); len(all) != 0 {
		t.Errorf("a snapshot brings %s", all[0].Key())
	}
}
