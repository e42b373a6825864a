package demo

import (
	"fmt"
	"io"
	"testing"

	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/lab/demo"
	"example.com/conductor/lab/sim"
)

// TestBursts plays bursts of equal prompts through small fleets, with the fleet itself in place of a Conductor: one picker and three
// compute about what the oracle computes, and much less than policies that know no cache. Nothing depends on the time that it takes.
func TestBursts(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		d := demo.Router{Requests: 96, Seed: seed}
		_, bursts, err := d.Fleets("http://127.0.0.1:1") // nobody is asked
		if err != nil {
			t.Fatal(err)
		}
		bursts.Instances, bursts.Families = 3, bursts.Families[:3]
		shared := []SharedBy{{Pickers: 1}, {Pickers: 3}}
		report, err := compare(t.Context(), bursts, nil, shared, Baselines(bursts), nil, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		outcomes := make(map[string]*sim.Outcome)
		for _, o := range report.Outcomes {
			outcomes[o.Policy] = o
		}
		for _, s := range shared {
			o := outcomes[s.String()]
			if *o.Beyond > 5 || 2*o.Computed > outcomes["round robin"].Computed || o.Alone > 0 {
				t.Errorf("seed %d: %s computes %d tokens, %.1f %% beyond the oracle, with %d choices by load alone; round robin %d",
					seed, o.Policy, o.Computed, *o.Beyond, o.Alone, outcomes["round robin"].Computed)
			}
		}
	}
}

// TestBaselines holds what the policies without a picker choose.
func TestBaselines(t *testing.T) {
	one, other := []uint32{1, 2, 3}, []uint32{4}
	choose := func(p sim.Policy, prompt []uint32) int {
		rank, _ := p.Choose(t.Context(), prompt)
		return rank
	}

	all := leastOfAll(3, 1)
	seen := make(map[int]bool)
	for range 3 {
		seen[choose(all, one)] = true
	}
	if len(seen) != 3 {
		t.Errorf("least request takes %v of three ranks", seen)
	}

	hash := prefixHash(8, false)
	first := choose(hash, one)
	for range 20 {
		if got := choose(hash, one); got != first {
			t.Fatalf("equal prompts go to %d and %d", first, got)
		}
	}
	long := make([]uint32, PrefixTokens)
	if a, b := choose(hash, append(long, 1)), choose(hash, append(long, 2)); a != b {
		t.Errorf("prompts with one prefix go to %d and %d", a, b)
	}

	bounded, active := prefixHash(8, true), make([]int, 8)
	for n := range 80 {
		active[choose(bounded, one)]++
		for rank, have := range active {
			if allowed := ((n+1)*balance/100 + 8) / 8; have > allowed {
				t.Fatalf("rank %d has %d of %d requests", rank, have, n+1)
			}
		}
	}
	if p := leastRequest(2, 1); choose(p, other) < 0 {
		t.Error("least request takes no rank")
	}
}

// TestNames holds that policies can be told apart.
func TestNames(t *testing.T) {
	got := fmt.Sprint(SharedBy{Pickers: 1}, "; ", SharedBy{Pickers: 3, Weights: pick.Weights{Compute: 1, Wait: 0.5}}, "; ",
		SharedBy{Pickers: 3, Blind: true})
	if want := "picker; 3 pickers {1 0.5 0}; 3 pickers, blind to others"; got != want {
		t.Errorf("the names are %q, want %q", got, want)
	}
}
