package conductor

import (
	"iter"
	"maps"
	"slices"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Registrations returns the registrations in any order, without sources that only a peer
// has named. Unlike Services it looks at no stream and no index.
func (c *Conductor) Registrations() []registration.Registration {
	c.registry.mu.RLock()
	defer c.registry.mu.RUnlock()
	return slices.Collect(c.registry.registrations())
}

// registrations walks the registry. c.mu is held meanwhile.
func (c *registry) registrations() iter.Seq[registration.Registration] {
	return func(yield func(registration.Registration) bool) {
		for _, s := range c.sources {
			if !s.recovered && !yield(s.registration()) {
				return
			}
		}
	}
}

// registrationCount returns how many there are. c.mu is held.
func (c *registry) registrationCount() int { return len(c.sources) - c.recovered }

// registeredFor returns how many sources of a tenant clients have registered. c.mu is held.
func (c *registry) registeredFor(tenant string) (n int) {
	for _, s := range c.sources {
		if !s.recovered && !s.static && s.reg.Tenant == tenant {
			n++
		}
	}
	return n
}

// Partitions returns the tenants and models there is anything of, with their block
// sizes in tokens, ascending. The sizes are not to be changed.
func (c *Conductor) Partitions() map[scope.Shard][]int {
	c.registry.mu.RLock()
	defer c.registry.mu.RUnlock()
	return maps.Clone(c.registry.sizes)
}

// BlockSizes returns the block sizes of a partition, in tokens, ascending; none
// when nothing is known of it. They are not to be changed.
func (c *Conductor) BlockSizes(p scope.Shard) []int {
	c.registry.mu.RLock()
	defer c.registry.mu.RUnlock()
	return c.registry.sizes[p]
}

// ContextBlocks is one adapter and salt of a deployment, and how many blocks sources hold under it.
type ContextBlocks struct {
	Tenant, Model, Lora, Salt string
	BlockSize                 int // tokens
	Blocks                    int
}

// Contexts returns every adapter and salt that has blocks, in no particular order. It walks no blocks.
func (c *Conductor) Contexts() (all []ContextBlocks) {
	for _, d := range c.registry.indexed() {
		counts := d.index.IdentityBlocks(nil)
		for _, id := range d.names.All() {
			blocks := 0
			if int(id.Number) < len(counts) {
				blocks = counts[id.Number]
			}
			if blocks > 0 {
				all = append(all, ContextBlocks{Tenant: d.key.Tenant, Model: d.key.Model, Lora: id.Lora, Salt: id.Salt,
					BlockSize: d.key.BlockSize, Blocks: blocks})
			}
		}
	}
	return all
}
