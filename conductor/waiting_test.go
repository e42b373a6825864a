package conductor

import (
	"fmt"
	"testing"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/tiers"
)

// lowerTier returns an engine whose hash 1 its home knows, in a deployment of some salts, and
// a root event of a lower tier that names hash.
func lowerTier(c *Conductor, salts int, hash uint64) (*source, *events.Event) {
	s := c.unjoined(Registration{Type: TypeVLLM, Instance: "A", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	other := c.unjoined(Registration{Type: TypeVLLM, Instance: "B", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	store := func(ns *namespace, engine uint64) {
		ns.context.index.Store(&index.Store{Owner: ns.context.index.NewOwner(ns.source), Engine: []uint64{engine}, Local: []uint64{engine}})
	}
	store(s.namespaceIn(s.homeContext()), 1)
	for i := range salts {
		store(other.namespaceIn(scope.Context{Deployment: s.deploymentKey(), Variant: scope.Variant{Salt: fmt.Sprint(i)}}), uint64(1000+i))
	}
	return s, &events.Event{Hashes: []uint64{hash}, Tokens: make([]uint32, 16)}
}

// TestContextOfKnownHashAllocatesNothing: an engine repeats on a lower tier what its
// device has announced.
func TestContextOfKnownHashAllocatesNothing(t *testing.T) {
	c := New(Options{RecallBytes: 1 << 20})
	defer c.Close()
	s, e := lowerTier(c, 100, 1)
	medium := tiers.Parse("CPU")
	if n := testing.AllocsPerRun(100, func() {
		s.asked.begin(e, true)
		s.variantOf(e, s.deploymentKey(), medium)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestContextSearchIsBounded: a hash that no context knows costs the search of some
// contexts, however many there are.
func TestContextSearchIsBounded(t *testing.T) {
	c := New(Options{RecallBytes: 1 << 20})
	defer c.Close()
	s, e := lowerTier(c, maxSearched+100, 2)
	asked := 0
	c.meaningOf(s.deploymentKey(), e.Hashes[0], scope.Variant{}, func(scope.Variant) bool { asked++; return true }, searched(e))
	if asked > maxSearched+1 {
		t.Errorf("%d contexts searched", asked)
	}
	if _, sure := s.variantOf(e, s.deploymentKey(), tiers.Parse("CPU")); sure {
		t.Error("an unknown hash is of the base model")
	}
}

// BenchmarkContextOfLowerTier finds the context of a root event below the device.
func BenchmarkContextOfLowerTier(b *testing.B) {
	medium := tiers.Parse("CPU")
	for _, salts := range []int{0, 100, 10_000} {
		for _, hash := range []uint64{1, 2} {
			b.Run(fmt.Sprintf("%d salts/%s", salts, map[uint64]string{1: "known", 2: "unknown"}[hash]), func(b *testing.B) {
				c := New(Options{RecallBytes: 1 << 20})
				defer c.Close()
				s, e := lowerTier(c, salts, hash)
				b.ReportAllocs()
				for b.Loop() {
					s.asked.begin(e, true)
					s.variantOf(e, s.deploymentKey(), medium)
				}
			})
		}
	}
}
