package conductor

import (
	"fmt"
	"iter"
	"slices"

	"kvconductor/tiers"
)

// Registrations returns what is registered, in no particular order, without what
// only a peer has told of. Unlike Services it looks at no stream and no index.
func (c *Conductor) Registrations() []Registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(c.registrations())
}

// registrations walks the registry. c.mu is held meanwhile.
func (c *Conductor) registrations() iter.Seq[Registration] {
	return func(yield func(Registration) bool) {
		for _, s := range c.sources {
			if !s.recovered && !yield(s.reg) {
				return
			}
		}
	}
}

// registrationCount returns how many there are. c.mu is held.
func (c *Conductor) registrationCount() (n int) {
	for range c.registrations() {
		n++
	}
	return n
}

// Partitions returns the tenants and models there is anything of, with their block
// sizes in tokens, ascending.
func (c *Conductor) Partitions() map[Partition][]int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[Partition][]int)
	for dk := range c.deployments {
		p := Partition{Tenant: dk.tenant, Model: dk.model}
		all[p] = append(all[p], dk.blockSize)
	}
	for _, sizes := range all {
		slices.Sort(sizes)
	}
	return all
}

// Partition is everything of one tenant and model.
type Partition struct{ Tenant, Model string }

// BlockSizes returns the block sizes of a partition, in tokens, ascending; none
// when nothing is known of it.
func (c *Conductor) BlockSizes(p Partition) []int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var sizes []int
	for dk := range c.deployments {
		if dk.tenant == p.Tenant && dk.model == p.Model {
			sizes = append(sizes, dk.blockSize)
		}
	}
	slices.Sort(sizes)
	return sizes
}

// ContextBlocks is one context and how many blocks somebody holds in it.
type ContextBlocks struct {
	Tenant, Model, Lora, Salt string
	BlockSize                 int // tokens
	Blocks                    int
}

// Contexts returns every context there is, in no particular order. It walks no blocks.
func (c *Conductor) Contexts() []ContextBlocks {
	var all []ContextBlocks
	for _, x := range c.contexts() {
		dk := x.deployment.key
		all = append(all, ContextBlocks{
			Tenant: dk.tenant, Model: dk.model, Lora: x.key.lora, Salt: x.key.salt,
			BlockSize: dk.blockSize, Blocks: x.index.Stats().Blocks,
		})
	}
	return all
}

// Held returns how many blocks of a deployment each rank of an instance holds on
// devices, whatever their adapter and salt.
func (c *Conductor) Held(p Partition, blockSize int, instance string) map[int32]int {
	c.mu.RLock()
	d := c.deployments[deploymentKey{tenant: p.Tenant, model: p.Model, blockSize: blockSize}]
	c.mu.RUnlock()
	held := make(map[int32]int)
	if d == nil {
		return held
	}
	v := d.view.Load()
	if i, found := v.find(instance); found {
		for _, s := range v.rows[i].sources {
			s.held(d, held)
		}
	}
	return held
}

// held adds the source's blocks on devices to what its ranks hold.
func (s *source) held(d *deployment, held map[int32]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.spaces {
		if ns.context.deployment != d {
			continue
		}
		for key, h := range ns.owners {
			if key.medium != tiers.NameDevice {
				continue
			}
			held[key.rank] += ns.context.index.Blocks(h.current)
			if h.hasOld {
				held[key.rank] += ns.context.index.Blocks(h.old)
			}
		}
	}
}

// pauser is a feed that can let its publisher alone for a while.
type pauser interface {
	Pause()
	Unpause()
}

// Pause closes the connections of a source and keeps what is known of it, until
// Unpause. ErrNotFound, ErrPast.
func (c *Conductor) Pause(key Key) error {
	return c.withFeed(key, pauser.Pause)
}

// Unpause undoes Pause: what was published meanwhile shows as a gap and is
// replayed. A source that had failed tries its endpoint again. ErrNotFound,
// ErrPast.
func (c *Conductor) Unpause(key Key) error {
	return c.withFeed(key, pauser.Unpause)
}

func (c *Conductor) withFeed(key Key, do func(pauser)) error {
	if c.past {
		return ErrPast
	}
	c.mu.RLock()
	s := c.sources[key]
	c.mu.RUnlock()
	if s == nil {
		return fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	if p, ok := s.stream.(pauser); ok {
		do(p)
	}
	return nil
}
