package conductor

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"kvconductor/conductor/scope"
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
// sizes in tokens, ascending. The sizes are not to be changed.
func (c *Conductor) Partitions() map[Partition][]int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.sizes)
}

// Partition is everything of one tenant and model.
type Partition struct{ Tenant, Model string }

// BlockSizes returns the block sizes of a partition, in tokens, ascending; none
// when nothing is known of it. They are not to be changed.
func (c *Conductor) BlockSizes(p Partition) []int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sizes[p]
}

// sized notes that there is a deployment, or no more. What queries have read of the
// sizes stays as it is. c.mu is held.
func (c *Conductor) sized(key scope.Deployment, there bool) {
	p := Partition{Tenant: key.Tenant, Model: key.Model}
	old := c.sizes[p]
	at, _ := slices.BinarySearch(old, key.BlockSize)
	var sizes []int
	if there {
		sizes = slices.Insert(slices.Clone(old), at, key.BlockSize)
	} else {
		sizes = slices.Delete(slices.Clone(old), at, at+1)
	}
	if c.sizes[p] = sizes; len(sizes) == 0 {
		delete(c.sizes, p)
	}
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
			Tenant: dk.Tenant, Model: dk.Model, Lora: x.key.Lora, Salt: x.key.Salt,
			BlockSize: dk.BlockSize, Blocks: x.index.Stats().Blocks,
		})
	}
	return all
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
