package scope

import (
	"slices"
	"strings"
)

// Tenants are the tenants that a client may name. nil is every tenant.
type Tenants []string

// All reports whether t has every tenant.
func (t Tenants) All() bool { return t == nil }

// Key returns a text that tells scopes apart.
func (t Tenants) Key() string {
	if t.All() {
		return "*"
	}
	names := slices.Clone(t)
	slices.Sort(names)
	return "\x00" + strings.Join(slices.Compact(names), "\x00")
}

// Covers reports whether t has every tenant of another scope.
func (t Tenants) Covers(o Tenants) bool {
	return t.All() || !o.All() && !slices.ContainsFunc(o, func(name string) bool { return !t.Has(name) })
}

// Has reports whether t has a tenant.
func (t Tenants) Has(tenant string) bool { return t == nil || slices.Contains(t, tenant) }
