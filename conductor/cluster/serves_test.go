package cluster

import (
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// TestServesInstance asks for engines by the shards that they have blocks of.
func TestServesInstance(t *testing.T) {
	other := []conductor.ReplicaAddress{{ID: "r", URL: "http://r"}}
	row := func(tenant, model string, away bool, sources ...registration.Registration) *Row {
		r := &Row{Shard: scope.Shard{Tenant: tenant, Model: model}}
		for i := range sources {
			r.sources = append(r.sources, &sources[i])
		}
		if away {
			r.away = &conductor.UnservedError{Shard: r.Shard, Serving: other}
		}
		return r
	}
	engine := func(tenant, name string) registration.Registration {
		return registration.Registration{Tenant: tenant, Instance: name, Type: registration.TypeVLLM}
	}
	nowhere := row("default", "nowhere", true, engine("", "b"), engine("", "n"))
	nowhere.away.Serving = nil
	c := new(Cluster)
	c.chart.Store(&chart{})
	if err := c.ServesInstance("default", "a"); err == nil || len(err.Serving) != 0 {
		t.Errorf("before the registry was read: %v", err)
	}
	now := &chart{known: true, rows: make(map[scope.Shard]*Row)}
	for _, r := range []*Row{
		row("default", "here", false, engine("", "a"), engine("default", "both")), row("default", "there", true, engine("", "both"),
			engine("", "b")), nowhere,
		row("t", "there", true, engine("t", "a"), engine("default", "lent")),
		row("default", "pool", true, registration.Registration{Instance: "p", Type: registration.TypeMooncake}),
	} {
		now.rows[r.Shard] = r
	}
	c.chart.Store(now)
	f := func(tenant, instance, want string) {
		t.Helper()
		got := "here"
		if err := c.ServesInstance(tenant, instance); err != nil {
			if got = "nowhere"; len(err.Serving) > 0 {
				got = err.Serving[0].ID
			}
		}
		if got != want {
			t.Errorf("%s of %s: %s, want %s", instance, tenant, got, want)
		}
	}
	for range 10 { // shards come in any order
		f("default", "a", "here")
		f("t", "a", "r")
		f("default", "both", "here")
		f("default", "b", "r")
		f("default", "n", "nowhere")
		f("default", "lent", "r")
		f("default", "p", "here")
		f("default", "unknown", "here")
	}
}
