package access

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
)

// TestCounts counts credentials by role and tenant, and follows a change of the policy.
func TestCounts(t *testing.T) {
	guard := New(Policy{Anonymous: Query | Register, Loopback: Admin}, zerolog.Nop())
	if got := guard.Counts(); got.Tokens != 0 || !reflect.DeepEqual(got.Anonymous, []string{"query", "register"}) ||
		!reflect.DeepEqual(got.Loopback, []string{"admin"}) {
		t.Errorf("without credentials: %+v", got)
	}
	read := func(text string) *Credentials {
		t.Helper()
		all, err := ParseCredentials("c.yaml", []byte(text))
		must.Succeed(t, err)
		return all
	}
	entry := func(name, roles, tenants string) string {
		return fmt.Sprintf("  - {name: %s, sha256: %s, roles: [%s], tenants: [%s]}\n", name, digest(name), roles, tenants)
	}
	guard.Use(Policy{Credentials: read("tokens:\n" + entry("operator", "admin", "'*'") + entry("router", "query", "x") +
		entry("both", "query, register", "x, y") + "certificates:\n  - {name: engines, subject: s, roles: [register], tenants: [y]}\n")})
	want := &Counts{Tokens: 3, Certificates: 1, Roles: map[string]int{"admin": 1, "query": 2, "register": 2},
		Tenants: map[string]int{"*": 1, "x": 2, "y": 2}, Anonymous: []string{}, Loopback: []string{}}
	if got := guard.Counts(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	many := "tokens:\n" + entry("twice", "query", "zz")
	for i := range maxCountedTenants + 5 {
		many += entry(fmt.Sprint("t", i), "query", "zz, "+fmt.Sprintf("t%02d", i))
	}
	guard.Use(Policy{Credentials: read(many)})
	if got := guard.Counts(); len(got.Tenants) != maxCountedTenants || got.Others != 6 || got.Tenants["zz"] != maxCountedTenants+6 {
		t.Errorf("many tenants: %d, %d others, %+v", len(got.Tenants), got.Others, got.Tenants)
	}
}
