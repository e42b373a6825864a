package http

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/internal/must"
)

// A client sees the engines of its tenants alone, and their URLs if it may see endpoints.
func TestAskedEnginesOfTenants(t *testing.T) {
	c := conductor.New(conductor.Options{})
	defer c.Close()
	m := discovery.New(discovery.Options{
		Registry: c.Sources(), Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, context.Canceled },
	})
	defer m.Close()
	for tenant, name := range map[string]string{"blue": "one", "red": "two"} {
		must.Succeed(t, m.Add(discovery.Target{URL: "http://" + name + ".internal",
			Registration: registration.Registration{Instance: name, Tenant: tenant}}, false))
	}
	m.Settle(t.Context(), 1e10)
	a := &api{conductor: c, opts: Options{Discovery: m}}
	f := func(r conductor.Reader, want ...string) {
		t.Helper()
		var got []string
		for _, row := range a.asked(c.For(r)) {
			got = append(got, row.InstanceID+" "+row.URL+" "+row.LastError)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%+v: got %q, want %q", r, got, want)
		}
	}
	f(conductor.Reader{Tenants: scope.Tenants{"blue"}}, "one  the engine cannot be asked")
	f(conductor.Reader{Tenants: scope.Tenants{"red"}, Secrets: true, Causes: true},
		"two http://two.internal http://two.internal: context canceled")
	f(conductor.Reader{Tenants: scope.Tenants{"green"}, Secrets: true, Causes: true})
}
