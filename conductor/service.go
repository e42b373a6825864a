package conductor

import (
	"example.com/conductor/conductor/meter"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Meter returns what reads the numbers of the Conductor, for Prometheus too.
func (c *Conductor) Meter() *meter.Meter { return c.meter }

// Services is Meter.Services.
func (c *Conductor) Services() []status.Source { return c.meter.Services() }

// Ready is Meter.Ready.
func (c *Conductor) Ready() status.Readiness { return c.meter.Ready() }

// Stats is Meter.Stats.
func (c *Conductor) Stats() *status.Stats { return c.meter.Stats() }

// Watermarks returns, in the order of Services, how many batches of its publisher
// each source is past: the last applied sequence plus one, 0 before the first.
func (c *Conductor) Watermarks() []uint64 {
	sources := c.sources.All()
	all := make([]uint64, len(sources))
	for i, s := range sources {
		if st := s.Member.Status(); st.HasSeq {
			all[i] = st.LastSeq + 1
		}
	}
	return all
}

// Check verifies the invariants of every index and returns the first violation
// of each.
func (c *Conductor) Check() []error {
	return c.sources.Check()
}

// Held returns how many blocks of a deployment a rank of an instance holds on devices,
// whatever their adapter and salt.
func (c *Conductor) Held(p scope.Shard, blockSize int, instance string, rank int32) int {
	key := scope.Deployment{Tenant: p.Tenant, Model: p.Model, BlockSize: blockSize}
	d := c.catalog.Deployment(key)
	if d == nil {
		return 0
	}
	v := d.Instances()
	at, found := v.Find(instance)
	if !found {
		return 0
	}
	held := 0
	for _, m := range v.All[at].Members {
		s := c.sources.SourceOf(m)
		if s == nil {
			continue // it has just left
		}
		held += s.HeldOnDevices(key, rank)
	}
	return held
}
