package conductor

import "kvconductor/conductor/scope"

// notice is what a step of one source changes for other sources.
type notice struct {
	resolved  []resolved
	regrouped []scope.Group // attention groups whose kind was announced
}

// resolved are engine hashes that have got a meaning while sources wait for them in a
// context.
type resolved struct {
	in     *indexContext
	hashes []uint64
}

// notify lets pools ask again about groups, and moves the blocks that waited for hashes.
// No turn is held.
func (c *contexts) notify(n notice) {
	for _, at := range n.regrouped {
		for _, s := range c.registered() {
			s.regroup(at)
		}
	}
	for _, r := range n.resolved {
		if list := r.in.waiting.Load(); list != nil {
			for _, s := range *list {
				s.resolve(r)
			}
		}
	}
}

// regroup lets a pool ask again about a group.
func (s *source) regroup(at scope.Group) {
	if s.pool == nil {
		return
	}
	s.guard(func() {
		if !s.gone {
			s.applyChanges(s.pool.Regroup(at))
		}
	})
}

// resolve moves the blocks of the source that wait for hashes.
func (s *source) resolve(r resolved) {
	s.guard(func() {
		if !s.gone {
			s.moveResolved(r.in, r.hashes)
		}
	})
}
