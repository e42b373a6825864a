package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/spelling"
)

// An engine may serve its model under several names. A registration has one as its model, which says
// to which deployment its blocks belong, and all others as aliases. Adapters of the model have names of their own:
//
//	registrations --NamesOf--> Names
//	query for a name --Models.Resolve--> the model of its tenant that the name means, and the adapter --> deployment
//
// A name means the model that has it as its own, else the only model that has it as an alias, else the only adapter that has it. A name
// that several have means none of them. The order of registrations does not matter.

// SharedNames is what the replicas of a group know together, which is more than what one of them follows.
type SharedNames interface {
	// Names are the aliases and adapters of all registrations of the group, as far as they are known.
	Names() registration.Names
	// Models are the models of a tenant that are registered in the group.
	Models(tenant string) []string
}

// UseSharedNames lets queries find the names that replicas share. Call it before the first query.
func (c *Catalog) UseSharedNames(n SharedNames) { c.shared = n }

// furtherNames are the aliases and adapters of the members of a catalog. The next query after a change gathers them.
type furtherNames struct {
	having   int // sources with any, as a rule none; guarded by Catalog.mu
	outdated atomic.Bool
	names    atomic.Pointer[registration.Names]
}

// SetLive lets a registered source have the live fields of another registration. Its blocks stay.
func (c *Catalog) SetLive(m *Member, of *registration.Registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, changed := registration.WithLive(*m.Registered(), of)
	if !changed {
		return
	}
	c.further.countMember(m, -1)
	m.registered.Store(&now)
	c.further.countMember(m, 1)
	if m.Home != nil {
		c.publish(m.Home, m)
	}
	c.changes.Note(m.Key())
}

// countMember notes that a member came or went. Catalog.mu is held.
func (a *furtherNames) countMember(m *Member, n int) {
	if r := m.Registered(); len(r.Aliases)+len(r.Adapters) > 0 {
		a.having += n
	}
	a.outdated.Store(true)
}

// names returns the aliases and adapters of all sources.
func (m Models) names() registration.Names {
	c, a := m.catalog, &m.catalog.further
	if a.outdated.Load() {
		c.mu.Lock()
		if a.outdated.Load() {
			var n registration.Names
			if a.having > 0 {
				n = registration.NamesOf(func(yield func(registration.Registration) bool) {
					for _, s := range c.members {
						if !yield(*s.Registered()) {
							return
						}
					}
				})
			}
			a.names.Store(&n)
			a.outdated.Store(false)
		}
		c.mu.Unlock()
	}
	if n := a.names.Load(); n != nil {
		return *n
	}
	return nil
}

// Models says what names of models mean.
type Models struct{ catalog *Catalog }

// Models returns what names of models mean.
func (c *Catalog) Models() Models { return Models{c} }

// FindByName returns all that has a name which is an alias or an adapter of some model, nil for other names.
// What the group knows counts before what this replica follows.
func (m Models) FindByName(tenant, name string) []registration.Meaning {
	at := scope.Shard{Tenant: cmp.Or(tenant, scope.DefaultTenant), Model: name}
	if m.catalog.shared != nil {
		if all := m.catalog.shared.Names()[at]; all != nil {
			return all
		}
	}
	return m.names()[at]
}

// Resolve returns what a name means: a model of that name if it is no alias and no adapter, or if several have it.
func (m Models) Resolve(tenant, name string) registration.Meaning {
	all := m.FindByName(tenant, name)
	if len(all) == 1 {
		return all[0]
	}
	var alias registration.Meaning
	aliases := 0
	for _, one := range all {
		if one.Lora == "" {
			alias = one
			aliases++
		}
	}
	if aliases == 1 {
		return alias
	}
	return registration.Meaning{Model: name}
}

// Registered returns the registered models of a tenant, sorted.
func (m Models) Registered(tenant string) []string {
	var all []string
	if m.catalog.shared != nil {
		all = m.catalog.shared.Models(tenant)
	}
	m.catalog.mu.RLock()
	for _, s := range m.catalog.members {
		for _, shard := range s.Registration.Shards() {
			if shard.Tenant == tenant && !s.Registration.IsPool() {
				all = append(all, shard.Model)
			}
		}
	}
	m.catalog.mu.RUnlock()
	slices.Sort(all)
	return slices.Compact(all)
}

// hasPool reports whether a pool is registered for a model.
func (m Models) hasPool(of scope.Shard) bool {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	for _, s := range m.catalog.members {
		if s.Registration.IsPool() && slices.Contains(s.Registration.Shards(), of) {
			return true
		}
	}
	return false
}

// maxModelsNamed bounds the models that a text lists.
const maxModelsNamed = 20

// Unregistered says that nothing is registered for a name and a block size in tokens, and lists the models or block sizes that
// are. It returns "" if something is registered.
func (m Models) Unregistered(tenant, name string, blockSize int) string {
	tenant = cmp.Or(tenant, scope.DefaultTenant)
	model := m.Resolve(tenant, name).Model
	sizes := m.BlockSizes(tenant, model)
	models := m.Registered(tenant)
	several := m.FindByName(tenant, name)
	switch {
	case slices.Contains(sizes, blockSize):
		return ""
	case len(sizes) > 0:
		text := strings.Trim(strings.ReplaceAll(fmt.Sprint(sizes), " ", " and "), "[]")
		return fmt.Sprintf("model %q of tenant %q is registered with %s %s, not %d", model, tenant,
			spelling.Agree(len(sizes), "block size", "block sizes"), text, blockSize)
	case m.hasPool(scope.Shard{Tenant: tenant, Model: model}):
		return fmt.Sprintf("model %q of tenant %q has a pool, and no engine that could use its blocks: register the engines; if the pool "+
			"is an engine, register it with its own type", model, tenant)
	case len(several) > 1 && !slices.Contains(models, name) && slices.ContainsFunc(several, isAdapter):
		var asks []string
		for _, one := range several {
			asks = append(asks, fmt.Sprintf("%q with lora_name %q", one.Model, one.Lora))
		}
		return fmt.Sprintf("several models of tenant %q have the adapter %q, so it means none of them: ask for %s", tenant, name,
			strings.Join(asks[:min(len(asks), maxModelsNamed)], " or "))
	case len(several) > 1 && !slices.Contains(models, name):
		return fmt.Sprintf("several models of tenant %q have the alias %q, so it means none of them: ask for %s", tenant, name,
			QuotedList(ModelsOf(several)))
	case len(models) == 0:
		return fmt.Sprintf("model %q is not registered: no model of tenant %q is", name, tenant)
	}
	// The one that was perhaps meant comes first, under the name that is near.
	words := slices.Clone(models)
	for at := range m.furtherOf(tenant) {
		words = append(words, at)
	}
	slices.Sort(words)
	if near := spelling.Closest(name, slices.Compact(words)); near != "" {
		models = slices.DeleteFunc(models, func(model string) bool { return model == near })
		models = slices.Insert(models, 0, near)
	}
	return fmt.Sprintf("model %q is not registered for tenant %q; these models are: %s", name, tenant, QuotedList(models))
}

func isAdapter(m registration.Meaning) bool { return m.Lora != "" }

// furtherOf walks the aliases and adapters of a tenant.
func (m Models) furtherOf(tenant string) iter.Seq[string] {
	return func(yield func(string) bool) {
		all := []registration.Names{m.names()}
		if m.catalog.shared != nil {
			all = append(all, m.catalog.shared.Names())
		}
		for _, names := range all {
			for at := range maps.Keys(names) {
				if at.Tenant == tenant && m.Resolve(tenant, at.Model).Model != at.Model && !yield(at.Model) {
					return
				}
			}
		}
	}
}

// ModelsOf returns the models of meanings, each once.
func ModelsOf(all []registration.Meaning) (models []string) {
	for _, m := range all {
		models = append(models, m.Model)
	}
	return slices.Compact(models)
}

// BlockSizes returns the block sizes for which engines of a model are registered here, ascending.
func (m Models) BlockSizes(tenant, model string) (sizes []int) {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	for _, size := range m.catalog.sizes[scope.Shard{Tenant: tenant, Model: model}] {
		d := m.catalog.byKey[scope.Deployment{Tenant: tenant, Model: model, BlockSize: size}]
		for _, in := range d.instances {
			if len(in.members) > 0 {
				sizes = append(sizes, size)
				break
			}
		}
	}
	return sizes
}

// QuotedList returns names in quotes, the first twenty.
func QuotedList(names []string) string {
	var quoted []string
	for _, n := range names[:min(len(names), maxModelsNamed)] {
		quoted = append(quoted, fmt.Sprintf("%q", n))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - len(quoted); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
