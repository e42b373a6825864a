package conductor

import (
	"kvconductor/events/objectkey"

	"kvconductor/conductor/scope"
)

// Objects of a hybrid model are of one attention group each. Which groups count only the
// engines say, maybe after the objects have come: until then group 0 does, as with
// engines. All objects are bound; blocks of a group enter and leave the index with what
// is said of it.

// groupOf is an attention group of a deployment.
type groupOf struct {
	deployment scope.Deployment
	group      int
}

// counts reports whether blocks of a group are indexed. What it has said once of a group
// is so until regroup.
func (p *shelf) counts(dk scope.Deployment, group int32) bool {
	at := groupOf{dk, max(int(group), 0)}
	main, known := p.main[at]
	if !known {
		main = p.source.conductor.mainGroup(at)
		if len(p.main) < maxGroups {
			p.main[at] = main
		}
	}
	return main
}

// regroup looks again at a group of which an engine has said something.
func (p *shelf) regroup(at groupOf) {
	was, known := p.main[at]
	main := p.source.conductor.mainGroup(at)
	if !known || main == was {
		return
	}
	p.main[at] = main
	turn := p.vanish
	if main {
		turn = p.appear
	}
	p.shards.Blocks(func(b objectkey.Block) {
		if max(int(b.Kind.Group), 0) == at.group && p.names[b.Pool].deployment == at.deployment {
			turn(b.Pool, b.Tier, b.Hash)
		}
	})
	for _, o := range p.objects {
		if o.bare && max(int(o.group), 0) == at.group && p.names[o.scope].deployment == at.deployment {
			turn(o.scope, o.tier, o.hash)
		}
	}
}

// mainGroup reports whether a group counts, as far as engines have said.
func (c *Conductor) mainGroup(at groupOf) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d := c.deployments[at.deployment]; d != nil {
		if kind, known := d.kinds[at.group]; known {
			return mainGroup(kind)
		}
	}
	return at.group == 0
}

// learnGroup notes what kind a group of a deployment is, and reports whether that was
// not known.
func (c *Conductor) learnGroup(at groupOf, kind string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.deployments[at.deployment]
	if d == nil {
		return false
	}
	was, known := d.kinds[at.group]
	if was == kind || !known && len(d.kinds) >= maxGroups {
		return false
	}
	if d.kinds == nil {
		d.kinds = make(map[int]string)
	}
	d.kinds[at.group] = kind
	return true
}

// maxGroups bounds the groups whose kind is noted, of a deployment or a pool's.
const maxGroups = 256

// tellPools lets the pools know of a group. No turn is held.
func (c *Conductor) tellPools(at groupOf) {
	for _, s := range c.registered() {
		if s.reg.pool() {
			s.guard(func() {
				if !s.gone {
					s.shelf.regroup(at)
				}
			})
		}
	}
}
