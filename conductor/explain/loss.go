package explain

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Loss is what a fleet loses with an instance.
type Loss struct {
	Instance string
	// Ranks of the instance that are registered.
	Ranks    []registration.Key
	Contexts []ContextLoss
	// Prefixes that queries ask for and that the instance alone held when they did last, most
	// asked for first.
	Prefixes []LostPrefix
}

// ContextLoss is the part of a Loss under one adapter and salt, in blocks. Salt is as Inspection.GlobalView shows it.
type ContextLoss struct {
	scope.Deployment
	Lora, Salt  string
	Held, Alone int // blocks that the instance holds, those that no other instance or pool does
}

// LostPrefix is a prefix of a deployment.
type LostPrefix struct {
	scope.Deployment
	prefixes.Prefix
}

// lostPrefixes bounds the prefixes of a Loss.
const lostPrefixes = 50

// Loss returns what a fleet loses with an instance, of what the client may see. It returns ErrNotFound
// if no source of the instance is registered there. It takes time and memory for the blocks of
// one deployment after the other, while events go on.
func (p Inspector) Loss(instance string) (Loss, error) {
	loss := Loss{Instance: instance}
	for _, m := range p.Catalog.Members() {
		if r := &m.Registration; r.Instance == instance && !r.IsPool() && p.Tenants.Has(r.Tenant) {
			loss.Ranks = append(loss.Ranks, m.Key())
		}
	}
	if len(loss.Ranks) == 0 {
		return loss, ingest.ErrNotFound
	}
	slices.SortFunc(loss.Ranks, registration.Key.Compare)
	for _, d := range p.Catalog.Indexed() {
		if !p.Tenants.Has(d.Key.Tenant) {
			continue
		}
		for n, part := range sharesOf(p.Catalog, d, instance) {
			if id := d.Names.Of(index.Identity(n)); part.Held > 0 && id != nil {
				loss.Contexts = append(loss.Contexts, ContextLoss{Deployment: d.Key, Lora: id.Lora, Salt: p.Redact(id.Salt),
					Held: part.Held, Alone: part.Alone})
			}
		}
	}
	slices.SortFunc(loss.Contexts, func(a, b ContextLoss) int {
		return cmp.Or(cmp.Compare(b.Alone, a.Alone), cmp.Compare(b.Held, a.Held), cmp.Compare(a.Tenant, b.Tenant),
			cmp.Compare(a.Model, b.Model), cmp.Compare(a.Lora, b.Lora), cmp.Compare(a.Salt, b.Salt))
	})
	for _, popular := range p.Popular(1 << 12) {
		for _, prefix := range popular.Prefixes {
			if prefix.Held == 1 && prefix.Holders[0] == instance {
				loss.Prefixes = append(loss.Prefixes, LostPrefix{popular.Deployment, prefix})
			}
		}
	}
	slices.SortStableFunc(loss.Prefixes, func(a, b LostPrefix) int { return cmp.Compare(b.Queries, a.Queries) })
	loss.Prefixes = loss.Prefixes[:min(len(loss.Prefixes), lostPrefixes)]
	return loss, nil
}

// sharesOf returns how many blocks of each identity an instance holds, and how many of them it alone.
func sharesOf(c *catalog.Catalog, d *catalog.Deployment, instance string) []index.Share {
	id, known := d.InstanceID(instance)
	if !known {
		return nil
	}
	owners := d.Owners()
	holds := false
	for o := range owners {
		holds = holds || owners[o].Instance == id && d.Index.BlocksOf(index.Owner(o)) > 0
	}
	if !holds {
		return nil
	}
	return d.Index.Checkpoint().Shares(func(o index.Owner) bool {
		return int(o) < len(owners) && owners[o].Instance == id && owners[o].Instance != tiers.Pool
	})
}
