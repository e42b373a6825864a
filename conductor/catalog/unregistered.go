package catalog

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"example.com/conductor/conductor/scope"
)

const (
	// maxUnregistered bounds what is remembered of queries about nothing, whose names clients choose.
	maxUnregistered = 32
	// maxUnregisteredOf bounds those of one tenant, so that it leaves room to others.
	maxUnregisteredOf = 16
	// maxUnregisteredName is in bytes.
	maxUnregisteredName = 256
	// unregisteredLeast leaves the typing mistakes of people out.
	unregisteredLeast = 3
	// unregisteredAge is how long after its last query one is remembered.
	unregisteredAge = 10 * time.Minute
)

// Unregistered is a tenant, model and block size that queries ask for and no source is registered for.
type Unregistered struct {
	scope.Deployment
	Queries uint64
	At      time.Time // of the last one
}

// unregistered remembers the last of them.
type unregistered struct {
	mu  sync.Mutex
	all map[scope.Deployment]*Unregistered // guarded by mu
}

// note counts a query. If there are too many, the one that was asked for longest ago is forgotten.
func (u *unregistered) note(of scope.Deployment, now time.Time) {
	if len(of.Tenant) > maxUnregisteredName || len(of.Model) > maxUnregisteredName {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.all[of]
	if one == nil {
		if u.all == nil {
			u.all = make(map[scope.Deployment]*Unregistered)
		}
		u.makeRoom(of.Tenant)
		one = &Unregistered{Deployment: of}
		u.all[of] = one
	}
	if now.Sub(one.At) >= unregisteredAge {
		one.Queries = 0 // a mistake of long ago and one of now are no habit
	}
	one.Queries++
	one.At = now
}

// makeRoom forgets the one that was asked for longest ago, of the tenant or of all, if that has too many. mu is held.
func (u *unregistered) makeRoom(tenant string) {
	var oldest, own *Unregistered
	owned := 0
	for _, one := range u.all {
		if oldest == nil || one.At.Before(oldest.At) {
			oldest = one
		}
		if one.Tenant == tenant {
			if owned++; own == nil || one.At.Before(own.At) {
				own = one
			}
		}
	}
	switch {
	case owned >= maxUnregisteredOf:
		delete(u.all, own.Deployment)
	case len(u.all) >= maxUnregistered:
		delete(u.all, oldest.Deployment)
	}
}

// NoteUnregistered notes a query about a deployment that does not exist.
func (c *Catalog) NoteUnregistered(of scope.Deployment, now time.Time) { c.unregistered.note(of, now) }

// Unregistered returns what queries of the last ten minutes asked for and no engine is registered for, the most often asked
// for first.
func (c *Catalog) Unregistered(now time.Time) (all []Unregistered) {
	c.unregistered.mu.Lock()
	for _, one := range c.unregistered.all {
		if now.Sub(one.At) < unregisteredAge && one.Queries >= unregisteredLeast {
			all = append(all, *one)
		}
	}
	c.unregistered.mu.Unlock()
	all = slices.DeleteFunc(all, func(u Unregistered) bool { return c.Models().Unregistered(u.Tenant, u.Model, u.BlockSize) == "" })
	slices.SortFunc(all, func(a, b Unregistered) int {
		return cmp.Or(cmp.Compare(b.Queries, a.Queries), a.Deployment.Compare(b.Deployment))
	})
	return all
}
