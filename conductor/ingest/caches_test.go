package ingest

import (
	"fmt"
	"testing"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/tiers"
)

// TestLearnedGroupCosts lets a rank announce a larger window again and again, while it has many owners below the device. The groups of a
// medium are listed once each time, and not once for each owner: that would show in the allocations.
func TestLearnedGroupCosts(t *testing.T) {
	const groups, backends = 8, 64
	s := follow(t, registration.Registration{Endpoint: "tcp://a:1", Type: registration.TypeVLLM, Model: "m", Instance: "a",
		BlockSize: 4}).s
	s.turn.Lock()
	defer s.turn.Unlock()
	h := &s.holdings
	ns := h.namespaceIn(h.deploymentKey())
	for i := range groups {
		h.learnGroup(&normalize.Spec{Group: i, Kind: "sliding_window", Window: 9, Block: 4})
		for n := range backends {
			medium := tiers.ParseMedium("CPU")
			h.holder(ns, normalize.Owner{Medium: medium.Name, Group: i, Backend: fmt.Sprint(n)}, medium)
		}
	}
	spec := normalize.Spec{Group: 1, Kind: "sliding_window", Window: 9, Block: 4}
	if got := alloctest.PerRun(10, func() {
		spec.Window += 4
		h.learnGroup(&spec)
	}); got > backends {
		t.Errorf("%v allocations for %d owners", got, groups*backends)
	}
	for key, holder := range ns.owners {
		o := ns.Deployment.Owners()[holder.owners[0]]
		if o.Cache != ns.caches[cacheKey{medium: key.Medium}] || len(o.Cache.Groups) != groups || int(o.Group) != key.Group {
			t.Fatalf("%+v is group %d of %+v", key, o.Group, o.Cache)
		}
	}
}

// TestChunkDistances: chunks are guessed in the engine's own blocks, and the end of a prompt inside a block says nothing about them.
func TestChunkDistances(t *testing.T) {
	var g chunkGuess
	for range enoughDistances {
		g.addDistance(1, 4)
		g.addDistance(6, 4)
	}
	if g.decided() || g.size != 0 {
		t.Errorf("ends of prompts decided for chunks of %d blocks", g.size)
	}
	for i := range enoughDistances {
		g.addDistance(8*(i+1), 4)
	}
	if !g.decided() || g.size != 2 {
		t.Errorf("chunks have %d blocks, want 2", g.size)
	}
}

// TestSparseGroups: if no event names a kind, group 0 has full attention, so the engine does not count as one without it.
func TestSparseGroups(t *testing.T) {
	for _, c := range []struct {
		specs []normalize.Spec
		want  bool
	}{
		{[]normalize.Spec{{Group: 1}}, false},
		{[]normalize.Spec{{Group: 0, Kind: "full_attention"}, {Group: 1, Kind: "sliding_window"}}, false},
		{[]normalize.Spec{{Group: 0, Kind: "sliding_window"}}, true},
	} {
		if got := isSparse(map[int32][]normalize.Spec{0: c.specs}); got != c.want {
			t.Errorf("%+v: sparse is %v", c.specs, got)
		}
	}
}
