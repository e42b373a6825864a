package conductor

import (
	"math"
	"testing"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/index"
)

// TestLookAheadsFade: blocks known by their hashes alone use the look-aheads that names
// of their context may have. Those go with the names.
func TestLookAheadsFade(t *testing.T) {
	c := New(Options{RecallBytes: 1 << 20})
	defer c.Close()
	at := scope.Context{Deployment: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}, Variant: scope.Variant{}}
	source := func(kind, name string) *source {
		return c.unjoined(Registration{Type: kind, Instance: name, Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	}
	stays := c.enterContext(source(TypeVLLM, "stays"), at)
	x := stays.context
	x.deployment.tokenless.Store(true)
	later := func(name string) lookAheads {
		pool := source(TypeMooncake, name)
		ns := c.enterContext(pool, at)
		defer c.exitContext(pool, ns)
		ns.useAnyLookAhead(&c.contexts)
		return ns.lookAheads
	}
	expect := func(when string, got, want lookAheads) {
		t.Helper()
		if got != want {
			t.Errorf("%s: look-aheads %v, want %v", when, got.list(), want.list())
		}
	}
	// leave stores names under a look-ahead, and lets their source go.
	leave := func(ahead int, engine uint64) {
		s := source(TypeVLLM, "eagle")
		ns := c.enterContext(s, at)
		ns.useLookAheads(&c.contexts, oneLookAhead(ahead))
		x.index.Store(&index.Store{Owner: x.index.NewOwner(ns.source), Engine: []uint64{engine}, Local: []uint64{engine}})
		expect("held", x.lookAheads.load(), oneLookAhead(ahead))
		c.exitContext(s, ns)
	}
	leave(1, 101)
	expect("left", later("pool 1"), 1<<1|noLookAhead)
	expect("a query then", x.lookAheads.load(), noLookAhead)
	for engine := range uint64(2) {
		x.index.Compact()
		c.recallForgotten(x)
		leave(2, 102+engine) // something to forget the next time
	}
	expect("its names are forgotten", later("pool 2"), 1<<2|noLookAhead)
	m, known := c.meaningOf(at.Deployment, 101, scope.Variant{}, func(scope.Variant) bool { return true }, math.MaxInt)
	if !known || m.lookAheads&(1<<1) == 0 {
		t.Errorf("the name is known: %v, with look-aheads %v", known, m.lookAheads.list())
	}
	// A publisher that invents look-aheads.
	for ahead := range 20 {
		leave(ahead, uint64(200+ahead))
	}
	if n := later("pool 3").count(); n > 2*normalize.MaxLookAheads {
		t.Errorf("blocks known by their hashes use %d look-aheads", n)
	}
	if n := x.deployment.lookAheads.ofNames().count(); n > 2*normalize.MaxLookAheads {
		t.Errorf("digests are computed for %d look-aheads", n)
	}
}
