package access

import (
	"cmp"
	"maps"
	"slices"
)

// maxCountedTenants bounds the tenants in Counts.
const maxCountedTenants = 32

// Counts says how many clients a Guard knows and what they may do, without their names.
type Counts struct {
	Tokens, Certificates int
	Roles                map[string]int // clients by role; those with admin count there alone
	Tenants              map[string]int // clients by tenant, "*" for those of every tenant; those with most, at most 32
	Others               int            // further tenants
	Anonymous, Loopback  []string       // roles of clients without credentials, the latter of those on the same machine
}

// Counts returns the counts of the policy in use. They must not be changed.
func (a *Guard) Counts() *Counts { return a.policy.Load().counts }

// countClients counts the clients of a policy.
func (p *policy) countClients() *Counts {
	out := &Counts{Roles: make(map[string]int), Tenants: make(map[string]int), Anonymous: p.anonymous.Roles.shortest(),
		Loopback: p.loopback.Roles.shortest()}
	if p.credentials == nil {
		return out
	}
	count := func(c *Client) {
		for _, role := range c.Roles.shortest() {
			out.Roles[role]++
		}
		if c.Tenants.All() {
			out.Tenants["*"]++
		}
		for _, tenant := range c.Tenants {
			out.Tenants[tenant]++
		}
	}
	for _, t := range p.credentials.tokens {
		count(t.client)
	}
	for _, c := range p.credentials.certificates {
		count(c)
	}
	out.Tokens, out.Certificates = len(p.credentials.tokens), len(p.credentials.certificates)
	most := slices.SortedFunc(maps.Keys(out.Tenants), func(a, b string) int {
		return cmp.Or(cmp.Compare(out.Tenants[b], out.Tenants[a]), cmp.Compare(a, b))
	})
	for _, tenant := range most[min(len(most), maxCountedTenants):] {
		delete(out.Tenants, tenant)
		out.Others++
	}
	return out
}

// shortest returns the names of the roles, admin alone where it is among them. It is never nil.
func (r Roles) shortest() []string {
	if r&Admin != 0 {
		r = Admin
	}
	return r.names()
}
