package scope

import "slices"

// Tenants are the tenants that a client may name. nil is every tenant.
type Tenants []string

// All reports whether t has every tenant.
func (t Tenants) All() bool { return t == nil }

// Has reports whether t has a tenant.
func (t Tenants) Has(tenant string) bool { return t == nil || slices.Contains(t, tenant) }
