package conductor

import (
	"sync/atomic"

	"kvconductor/conductor/scope"
)

// What a rank holds on devices is counted while it changes: a source may have a context
// per salt, and who asks does so with every query.

// tallyKey is what blocks of one source are counted by, over adapters and salts.
type tallyKey struct {
	deployment scope.Deployment
	rank       int32
}

// tally returns the number of blocks a rank holds on devices.
func (s *source) tally(of scope.Deployment, rank int32) *atomic.Int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := tallyKey{of, rank}
	n := s.tallies[key]
	if n == nil {
		if s.tallies == nil {
			s.tallies = make(map[tallyKey]*atomic.Int64)
		}
		n = new(atomic.Int64)
		s.tallies[key] = n
	}
	return n
}

// Held returns how many blocks of a deployment a rank of an instance holds on devices,
// whatever their adapter and salt.
func (c *Conductor) Held(p Partition, blockSize int, instance string, rank int32) int {
	key := scope.Deployment{Tenant: p.Tenant, Model: p.Model, BlockSize: blockSize}
	d := c.deployment(key)
	if d == nil {
		return 0
	}
	v := d.view.Load()
	at, found := v.find(instance)
	if !found {
		return 0
	}
	held := 0
	for _, s := range v.rows[at].sources {
		s.mu.Lock()
		if n := s.tallies[tallyKey{key, rank}]; n != nil {
			held += int(n.Load())
		}
		s.mu.Unlock()
	}
	return held
}
