package scope

import (
	"slices"
	"strconv"
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

// shownTenants is how many tenants a text names.
const shownTenants = 8

// Text names the tenants in a sentence, such as the tenants "a" and "b".
func (t Tenants) Text() string {
	switch {
	case t.All():
		return "all tenants"
	case len(t) == 0:
		return "no tenant"
	case len(t) == 1:
		return "the tenant " + strconv.Quote(t[0])
	}
	var names []string
	for i, name := range t {
		if i == shownTenants {
			names = append(names, "others")
			break
		}
		names = append(names, strconv.Quote(name))
	}
	last := len(names) - 1
	return "the tenants " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// Has reports whether t has a tenant.
func (t Tenants) Has(tenant string) bool { return t == nil || slices.Contains(t, tenant) }
