package conductor

import (
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index/hash"
)

// TestDeploymentProfile holds whose profile an adapter's blocks have, in whatever
// order sources come and go.
func TestDeploymentProfile(t *testing.T) {
	c := New(Options{Log: zerolog.Nop()})
	defer c.Close()
	d := &deployment{instances: make(map[string]*instance), pooled: make(map[*source]bool)}
	named := func(name string, rank int, lora, seed string, announced ...string) *source {
		r := Registration{Instance: name, Tenant: DefaultTenant, Rank: rank, Lora: lora}
		if seed != "" {
			r.Profile = HashProfile{Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmSHA256, PythonHashSeed: seed, IndexProjection: hash.ProjectionLow64}
		}
		return &source{conductor: c, reg: r, profile: r.profile(), announced: announced}
	}
	add := func(s *source) *source {
		d.instance(s.reg.Instance).sources[s] = true
		d.publish()
		return s
	}
	remove := func(s *source) {
		delete(d.instance(s.reg.Instance).sources, s)
		d.publish()
	}
	pool := func(name, lora, seed string) *source {
		s := named(name, 0, lora, seed)
		d.pooled[s] = true
		d.publish()
		return s
	}
	f := func(lora, seed string) {
		t.Helper()
		p, ok := d.profile(lora)
		if got := p.Settings().PythonHashSeed; got != seed || ok != (seed != "") {
			t.Errorf("%q has the seed %q %t, want %q", lora, got, ok, seed)
		}
	}

	f("", "")
	if d.profiles.Load() != nil {
		t.Error("a table without a profile")
	}
	add(named("none", 0, "", ""))
	if d.profiles.Load() != nil {
		t.Error("a table for a source without a profile")
	}
	late, early := pool("p2", "", "2"), pool("p1", "", "1")
	f("", "1")
	delete(d.pooled, early)
	d.publish()
	f("", "2")
	b := add(named("b", 0, "sql", "20", "", "chat"))
	f("", "20") // an engine that announces it, before a pool
	f("sql", "20")
	f("chat", "20")
	a10 := add(named("a", 10, "x", "10", "chat"))
	a9 := add(named("a", 9, "y", "9", "chat"))
	f("chat", "9") // ranks are numbers
	e := add(named("z", 0, "", "30", "sql"))
	f("", "30") // the one registered for it
	f("sql", "20")
	f("nobody", "")

	// A pool is told of the engines' profile as long as it has another.
	codes := func(s *source) (all []string) {
		for _, f := range s.doctor.list() {
			all = append(all, f.Code)
		}
		return all
	}
	if got := codes(late); !slices.Equal(got, []string{FindingProfile}) {
		t.Errorf("findings of the pool: %v", got)
	}
	for _, s := range []*source{e, a9, a10} {
		remove(s)
	}
	f("chat", "20")
	table := d.profiles.Load()
	add(named("c", 0, "sql", "20"))
	if d.profiles.Load() != table {
		t.Error("another table that says the same")
	}
	remove(b)
	f("", "2")
	f("chat", "")
	if got := codes(late); len(got) > 0 {
		t.Errorf("findings of a pool without engines: %v", got)
	}
}

// TestProfileCheckEnds holds that comparing costs nothing where there is no profile,
// and nothing any more once enough was compared.
func TestProfileCheckEnds(t *testing.T) {
	c := New(Options{Log: zerolog.Nop()})
	defer c.Close()
	d := &deployment{key: scope.Deployment{BlockSize: 16}, instances: make(map[string]*instance), pooled: make(map[*source]bool)}
	p, err := hash.NewProfile(HashProfile{Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmSHA256, PythonHashSeed: "0", IndexProjection: hash.ProjectionLow64})
	if err != nil {
		t.Fatal(err)
	}
	s := &source{conductor: c}
	ns := &namespace{context: &indexContext{deployment: d}}
	e := &events.Event{Kind: events.Stored, Tokens: make([]uint32, 10*16)}
	chain, err := p.Chain("", "")
	if err != nil {
		t.Fatal(err)
	}
	chain.Reset(e.Tokens, 16)
	for i := range chain.Len() {
		e.Hashes = append(e.Hashes, chain.At(i))
	}
	free := func(when string) {
		t.Helper()
		if n := testing.AllocsPerRun(100, func() { s.lookAtProfile(ns, e, 1) }); n != 0 {
			t.Errorf("%s: %v allocations", when, n)
		}
	}
	free("without a profile")
	d.instance("a").sources[&source{conductor: c, profile: p}] = true
	d.publish()
	for i := range 10 {
		if n := s.doctor.profile.compared; n != 10*i {
			t.Errorf("%d blocks were compared, want %d", n, 10*i)
		}
		s.lookAtProfile(ns, e, 1)
	}
	free("after a hundred blocks")
	if got := &s.doctor.profile; got.compared != doctorBlocks || got.digests != nil || got.chain.Len() != 0 {
		t.Errorf("after a hundred blocks: %d compared, %d kept", got.compared, len(got.digests))
	}
	e.Hashes[0]++
	s.lookAtProfile(ns, e, 1)
	if got := s.doctor.list(); len(got) > 0 {
		t.Errorf("found after a hundred blocks: %v", got)
	}
}
