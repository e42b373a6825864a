package conductor

import (
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
)

// maxGroups bounds the attention groups of a deployment whose kind is noted.
const maxGroups = 256

// countsGroup reports whether blocks of a group are indexed, as far as engines have
// announced its kind. Group 0 counts while its kind is unknown.
func (c *Conductor) countsGroup(at scope.Group) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d := c.deployments[at.Deployment]; d != nil {
		if kind, known := d.kinds[at.Index]; known {
			return normalize.MainGroup(kind)
		}
	}
	return at.Index == 0
}

// learnGroup notes the kind of a group, and reports whether that is new.
func (c *Conductor) learnGroup(at scope.Group, kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.deployments[at.Deployment]
	if d == nil {
		return false
	}
	was, known := d.kinds[at.Index]
	if was == kind || !known && len(d.kinds) >= maxGroups {
		return false
	}
	if d.kinds == nil {
		d.kinds = make(map[int]string)
	}
	d.kinds[at.Index] = kind
	return true
}

// regroupPools lets every pool ask again about a group. No turn is held.
func (c *Conductor) regroupPools(at scope.Group) {
	for _, s := range c.registered() {
		if s.pool == nil {
			continue
		}
		s.guard(func() {
			if !s.gone {
				s.applyChanges(s.pool.Regroup(at))
			}
		})
	}
}
