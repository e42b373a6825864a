package catalog

import (
	"slices"
	"sync"
	"time"

	"example.com/conductor/conductor/scope"
)

const (
	// maxUnregistered bounds what is remembered of queries about nothing, whose names clients choose.
	maxUnregistered = 32
	// maxUnregisteredName is in bytes.
	maxUnregisteredName = 256
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
		if len(u.all) >= maxUnregistered {
			var oldest *Unregistered
			for _, other := range u.all {
				if oldest == nil || other.At.Before(oldest.At) {
					oldest = other
				}
			}
			delete(u.all, oldest.Deployment)
		}
		one = &Unregistered{Deployment: of}
		u.all[of] = one
	}
	one.Queries++
	one.At = now
}

// NoteUnregistered notes a query about a deployment that does not exist.
func (c *Catalog) NoteUnregistered(of scope.Deployment, now time.Time) { c.unregistered.note(of, now) }

// Unregistered returns what queries of the last ten minutes asked for and no engine is registered for, the most often asked
// for first.
func (c *Catalog) Unregistered(now time.Time) (all []Unregistered) {
	c.unregistered.mu.Lock()
	for _, one := range c.unregistered.all {
		if now.Sub(one.At) < unregisteredAge {
			all = append(all, *one)
		}
	}
	c.unregistered.mu.Unlock()
	all = slices.DeleteFunc(all, func(u Unregistered) bool { return c.Models().Unregistered(u.Tenant, u.Model, u.BlockSize) == "" })
	slices.SortFunc(all, func(a, b Unregistered) int {
		if a.Queries != b.Queries {
			return int(int64(b.Queries) - int64(a.Queries))
		}
		return a.Deployment.Compare(b.Deployment)
	})
	return all
}
