package doctor

import (
	"testing"
	"time"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// TestObserveEndsProfileCheck holds that comparing costs nothing without a profile, and
// nothing after enough blocks were compared.
func TestObserveEndsProfileCheck(t *testing.T) {
	p, err := hash.NewProfile(hash.Settings{Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmSHA256, PythonHashSeed: "0",
		IndexProjection: hash.ProjectionLow64})
	must.Succeed(t, err)
	at := scope.Context{Deployment: scope.Deployment{BlockSize: 16}}
	d := New(Registered{Context: at, Expiring: func(string) bool { return false }}, time.Now)
	e := &events.Event{Kind: events.Stored, Tokens: make([]uint32, 10*16)}
	chain, err := p.NewDigestChain("", "")
	must.Succeed(t, err)
	chain.Reset(e.Tokens, 16)
	for i := range chain.Len() {
		e.Hashes = append(e.Hashes, chain.At(i))
	}
	o := Observation{
		Event: e, Cut: e, Medium: tiers.ParseMedium("GPU"), Count: 10, Blocks: true, Counted: true,
		Context: at, Parts: 1, Local: e.Hashes, Seeds: &Seeds{},
	}
	free := func(when string) {
		t.Helper()
		if n := alloctest.PerRun(100, func() { d.Observe(&o) }); n != 0 {
			t.Errorf("%s: %v allocations", when, n)
		}
	}
	d.Observe(&o) // the seed is new
	free("without a profile")
	o.Profiles = &map[string]hash.Profile{"": p}
	for i := range 10 {
		if n := d.profile.compared; n != 10*i {
			t.Errorf("%d blocks were compared, want %d", n, 10*i)
		}
		d.Observe(&o)
	}
	free("after a hundred blocks")
	if got := &d.profile; got.compared != doctorBlocks || got.digests != nil || got.chain.Len() != 0 {
		t.Errorf("after a hundred blocks: %d compared, %d kept", got.compared, len(got.digests))
	}
	changed := append([]uint64{e.Hashes[0] + 1}, e.Hashes[1:]...)
	e.Hashes = changed
	d.profile.searches = 0
	o.Seeds = &Seeds{}
	d.Observe(&o)
	if got := d.Findings.List(); len(got) > 0 {
		t.Errorf("found after a hundred blocks: %v", got)
	}
}
