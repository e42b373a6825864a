package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index/hash"
)

// TestDeploymentProfile holds whose profile an adapter's blocks have, in whatever
// order sources come and go.
func TestDeploymentProfile(t *testing.T) {
	c := New(Options{Log: zerolog.Nop()})
	d := &Deployment{instances: make(map[string]*seenInstance), pooled: make(map[*Member]bool)}
	named := func(name string, rank int, lora, seed string, announced ...string) *Member {
		r := registration.Registration{Instance: name, Tenant: scope.DefaultTenant, Rank: rank, Lora: lora}
		if seed != "" {
			r.Profile = registration.HashProfile{Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmSHA256, PythonHashSeed: seed,
				IndexProjection: hash.ProjectionLow64}
		}
		m := NewMember(r, &doctor.New(doctor.Registered{}, time.Now).Findings, nil)
		m.announced = make(map[string]bool)
		for _, lora := range announced {
			m.announced[lora] = true
		}
		return m
	}
	add := func(m *Member) *Member {
		d.instance(m.Registration.Instance).members[m] = true
		c.publish(d, m)
		return m
	}
	remove := func(m *Member) {
		delete(d.instance(m.Registration.Instance).members, m)
		c.publish(d, m)
	}
	pool := func(name, lora, seed string) *Member {
		m := named(name, 0, lora, seed)
		d.pooled[m] = true
		c.publish(d, m)
		return m
	}
	f := func(lora, seed string) {
		t.Helper()
		p, ok := d.Profile(lora)
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
	c.publish(d, early)
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

	// A pool has a finding as long as its profile is another than the engines'.
	codes := func(m *Member) (all []string) {
		for _, f := range m.Findings.List() {
			all = append(all, f.Code)
		}
		return all
	}
	if got := codes(late); !slices.Equal(got, []string{doctor.FindingProfile}) {
		t.Errorf("findings of the pool: %v", got)
	}
	if got := late.Findings.List()[0].Message; !strings.HasSuffix(got, "the engine b|default|0: another python_hash_seed; "+
		"the engine's counts, register the pool with that") {
		t.Errorf("the finding of the pool says %q", got)
	}
	for _, m := range []*Member{e, a9, a10} {
		remove(m)
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
