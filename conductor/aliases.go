package conductor

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/spelling"
)

// An engine may serve its model under several names. A registration has one as its model, which says
// to which deployment its blocks belong, and all others as aliases:
//
//	registrations --NamesOf--> Names
//	query for a name --View--> the model of its tenant that the name means --> deployment
//
// A name means a model if that is the only one of the tenant that has it, as its own or as an alias. So
// a model that is registered under the name wins over aliases, and a name that several models have
// as an alias means none of them. The order of registrations does not matter.

// aliases are those of the sources of a registry. The next query after a change gathers them.
type aliases struct {
	having   int // sources with aliases, as a rule none; guarded by registry.mu
	outdated atomic.Bool
	names    atomic.Pointer[registration.Names]
}

// setAliases changes the further names of a registered source's model. Its blocks stay. c.mu is held.
func (c *registry) setAliases(s *source, names []string) {
	c.countAliases(s, -1)
	s.aliases.Store(&names)
	c.countAliases(s, 1)
	c.revision.Add(1)
}

// countAliases notes that a source came or went. c.mu is held.
func (c *registry) countAliases(s *source, n int) {
	if len(*s.aliases.Load()) > 0 {
		c.aliases.having += n
	}
	c.aliases.outdated.Store(true)
}

// registration returns the registration of the source with the aliases that it has now.
func (s *source) registration() registration.Registration {
	r := *s.reg
	r.Aliases = *s.aliases.Load()
	return r
}

// isAlias reports whether a name is an alias of the source's model.
func (s *source) isAlias(name string) bool { return slices.Contains(*s.aliases.Load(), name) }

// aliasNames returns the aliases of all sources.
func (c *registry) aliasNames() registration.Names {
	a := &c.aliases
	if a.outdated.Load() {
		c.mu.Lock()
		if a.outdated.Load() {
			var n registration.Names
			if a.having > 0 {
				n = registration.NamesOf(func(yield func(registration.Registration) bool) {
					for _, s := range c.sources {
						if !yield(s.registration()) {
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

// observeAliases reports an alias that does not mean the source's model.
func (s *source) observeAliases() {
	c, tenant := s.conductor, s.reg.Tenant
	for _, alias := range *s.aliases.Load() {
		models := c.modelsNamed(tenant, alias)
		switch {
		case len(models) < 2:
			continue
		case slices.Contains(models, alias):
			s.doctor.Findings.Report(doctor.FindingAlias,
				"the alias %q is the model of other sources, and queries for it are about those alone: register all engines of one model "+
					"with the same modelname", alias)
		default:
			s.doctor.Findings.Report(doctor.FindingAlias,
				"the models %s have the alias %q, so it means none of them, and queries for it find nothing: leave it to one of them",
				quotedList(models), alias)
		}
		return
	}
	s.doctor.Findings.Withdraw(doctor.FindingAlias)
}

// modelsNamed returns the models that have a name which is an alias of some, nil for other names.
// What the fleet knows counts before what this replica follows.
func (c *Conductor) modelsNamed(tenant, name string) []string {
	at := scope.Shard{Tenant: cmp.Or(tenant, scope.DefaultTenant), Model: name}
	if c.serving != nil {
		if all := c.serving.Names()[at]; all != nil {
			return all
		}
	}
	return c.registry.aliasNames()[at]
}

// modelOf returns the model that a name means, see Names.Model.
func (c *Conductor) modelOf(tenant, name string) string {
	if all := c.modelsNamed(tenant, name); len(all) == 1 {
		return all[0]
	}
	return name
}

// modelsOf returns the registered models of a tenant, sorted.
func (c *Conductor) modelsOf(tenant string) []string {
	var all []string
	if c.serving != nil {
		all = c.serving.Models(tenant)
	}
	c.registry.mu.RLock()
	for _, s := range c.registry.sources {
		for _, shard := range s.reg.Shards() {
			if shard.Tenant == tenant && !s.reg.IsPool() {
				all = append(all, shard.Model)
			}
		}
	}
	c.registry.mu.RUnlock()
	slices.Sort(all)
	return slices.Compact(all)
}

// maxModelsNamed bounds the models that a text lists.
const maxModelsNamed = 20

// Unregistered says that nothing is registered for a query, and lists the models or block sizes that are. It
// returns "" if something is registered, or if the client may not name the tenant.
func (v View) Unregistered(q *Query) string {
	if v.May(q.Tenant) != nil {
		return ""
	}
	return v.conductor.unregistered(q)
}

func (c *Conductor) unregistered(q *Query) string {
	tenant := cmp.Or(q.Tenant, scope.DefaultTenant)
	model := c.modelOf(tenant, q.Model)
	sizes := c.engineSizes(tenant, model)
	models := c.modelsOf(tenant)
	several := c.modelsNamed(tenant, q.Model)
	switch {
	case slices.Contains(sizes, q.BlockSize):
		return ""
	case len(sizes) > 0:
		text := strings.Trim(strings.ReplaceAll(fmt.Sprint(sizes), " ", ", "), "[]")
		return fmt.Sprintf("model %q of tenant %q is registered with block size %s, not %d", model, tenant, text, q.BlockSize)
	case len(several) > 1 && !slices.Contains(models, q.Model):
		return fmt.Sprintf("several models of tenant %q have the alias %q, so it means none of them: ask for %s", tenant, q.Model,
			quotedList(several))
	case len(models) == 0:
		return fmt.Sprintf("model %q is not registered: no model of tenant %q is", q.Model, tenant)
	}
	// The one that was perhaps meant comes first, under the name that is near.
	words := slices.Clone(models)
	for at := range c.namesOfTenant(tenant) {
		words = append(words, at)
	}
	slices.Sort(words)
	if near := spelling.Closest(q.Model, slices.Compact(words)); near != "" {
		models = slices.DeleteFunc(models, func(m string) bool { return m == near })
		models = slices.Insert(models, 0, near)
	}
	return fmt.Sprintf("model %q is not registered for tenant %q; these models are: %s", q.Model, tenant, quotedList(models))
}

// namesOfTenant walks the aliases of a tenant.
func (c *Conductor) namesOfTenant(tenant string) iter.Seq[string] {
	return func(yield func(string) bool) {
		all := []registration.Names{c.registry.aliasNames()}
		if c.serving != nil {
			all = append(all, c.serving.Names())
		}
		for _, names := range all {
			for at := range maps.Keys(names) {
				if at.Tenant == tenant && c.modelOf(tenant, at.Model) != at.Model && !yield(at.Model) {
					return
				}
			}
		}
	}
}

// engineSizes returns the block sizes for which engines of a model are registered here, ascending.
func (c *Conductor) engineSizes(tenant, model string) (sizes []int) {
	c.registry.mu.RLock()
	defer c.registry.mu.RUnlock()
	for _, size := range c.registry.sizes[scope.Shard{Tenant: tenant, Model: model}] {
		d := c.registry.deployments[scope.Deployment{Tenant: tenant, Model: model, BlockSize: size}]
		for _, in := range d.instances {
			if len(in.sources) > 0 {
				sizes = append(sizes, size)
				break
			}
		}
	}
	return sizes
}

// quotedList returns names in quotes, the first twenty.
func quotedList(names []string) string {
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
