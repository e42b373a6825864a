package ingest

import (
	"testing"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// TestLookAheadsOfNames: blocks known by their hashes alone use the look-aheads that names
// of their deployment may have, also after their source has left.
func TestLookAheadsOfNames(t *testing.T) {
	c := newServer(serverOptions{GhostBytes: 1 << 20})
	defer c.Close()
	at := scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 16}
	source := func(kind, name string) *Source {
		r := registration.Registration{Type: kind, Instance: name, Model: "m", Tenant: scope.DefaultTenant, BlockSize: 16}
		return newUnjoined(c.sources, r)
	}
	d := source(registration.TypeVLLM, "stays").holdings.namespaceIn(at).Deployment
	later := func(name string) catalog.LookAheads {
		pool := source(registration.TypeMooncake, name)
		defer pool.holdings.leaveAll()
		ns := pool.holdings.namespaceIn(at)
		ns.UseAnyLookAhead()
		return ns.LookAheads
	}
	// leave uses a look-ahead, and lets its source go.
	leave := func(ahead int) {
		s := source(registration.TypeVLLM, "eagle")
		s.holdings.namespaceIn(at).UseLookAheads(catalog.LookAhead(ahead))
		if got := d.LookAheads(); got != catalog.LookAhead(ahead) {
			t.Errorf("held: look-aheads %v, want %d", got.List(), ahead)
		}
		s.holdings.leaveAll()
	}
	leave(1)
	if got := later("pool 1"); got != 1<<1|catalog.NoLookAhead {
		t.Errorf("left: look-aheads %v", got.List())
	}
	if got := d.LookAheads(); got != catalog.NoLookAhead {
		t.Errorf("a query then asks for the look-aheads %v", got.List())
	}
	for ahead := range 20 { // a publisher that invents look-aheads
		leave(ahead)
	}
	if n := later("pool 2").Count(); n > normalize.MaxLookAheads+1 {
		t.Errorf("blocks known by their hashes use %d look-aheads", n)
	}
}

// The mark of a source says the look-aheads of blocks that it holds, not of those that it held.
func TestMarkHasHeldLookAheads(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	s := saltedSource(c, 1, 1)
	s.holdings.namespaces[0].UseLookAheads(catalog.LookAhead(1))
	if got := s.snapshotMark().LookAheads; len(got) == 0 {
		t.Error("no look-ahead of blocks that are held")
	}
	change(s, &events.Event{Kind: events.Removed, Hashes: []uint64{1e12, 1e12 + 1, 1e12 + 2, 1e12 + 3}, Medium: "GPU"}, 0)
	if got := s.snapshotMark().LookAheads; len(got) > 0 {
		t.Errorf("look-aheads %d without a block", got)
	}
}
