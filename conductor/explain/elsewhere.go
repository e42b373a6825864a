package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

// maxElsewhere bounds the contexts that are searched. Salts may be as many as users; a context
// without the first block costs well below a microsecond. maxListed bounds those in the answer.
const (
	maxElsewhere = 1 << 14
	maxListed    = 16
)

// candidate is a context in which the prompt may be held as well.
type candidate struct {
	deployment *catalog.Deployment
	identity   *names.Identity
}

// searchElsewhere finds what else in view holds the first block: other adapters and salts of the
// deployment, then other deployments, those of the model first.
func (e *explaining) searchElsewhere() {
	var all []candidate
	for _, d := range e.Catalog.Indexed() {
		if !e.Tenants.Has(d.Key.Tenant) {
			continue
		}
		for _, id := range d.Names.All() {
			if d != e.deployment || id.Variant != e.at.Variant {
				all = append(all, candidate{d, id})
			}
		}
	}
	near := func(d scope.Deployment) int {
		switch {
		case d == e.at.Deployment:
			return 0
		case d.Tenant == e.at.Deployment.Tenant && d.Model == e.at.Deployment.Model:
			return 1
		case d.Tenant == e.at.Deployment.Tenant:
			return 2
		}
		return 3
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(near(a.deployment.Key)-near(b.deployment.Key), a.deployment.Key.Compare(b.deployment.Key),
			a.identity.Compare(b.identity.Variant))
	})
	e.out.Contexts = len(all)
	var salts map[string]bool
	var last *catalog.Deployment
	var chains []*hash.Chain
	var who map[uint32]owned
	for _, p := range all[:min(len(all), maxElsewhere)] {
		e.out.Searched++
		if p.deployment != last {
			last, chains, who = p.deployment, e.chainsOf(p.deployment, p.deployment.Key.BlockSize), nil
		}
		if found := e.heldIn(p, chains, &who); len(found) > 0 {
			if salts == nil {
				salts = e.ShownSalts()
			}
			e.noteElsewhere(p, found, salts)
		}
	}
	slices.SortStableFunc(e.out.Elsewhere, func(a, b inspect.Elsewhere) int { return b.Tokens - a.Tokens })
	e.out.Elsewhere = e.out.Elsewhere[:min(len(e.out.Elsewhere), maxListed)]
}

// heldIn returns who holds the first block of the prompt in a context, longest first. who has the owners of the
// deployment, once some context of it holds the block.
func (e *explaining) heldIn(p candidate, chains []*hash.Chain, who *map[uint32]owned) []inspect.ElsewhereInstance {
	best, table := make(map[string]int), p.deployment.Owners()
	var m index.Match
	for _, c := range chains {
		p.deployment.Index.Match(index.Lookup{Constant: p.identity.Constant, Chain: c}, nil, &m)
		if *who == nil && len(m.Prefixes) > 0 {
			*who = e.owners(p.deployment)
		}
		for _, prefix := range m.Prefixes {
			o, known := (*who)[prefix.Owner]
			if known && e.Tenants.Has(o.source.Registration.Tenant) && int(prefix.Owner) < len(table) &&
				table[prefix.Owner].Instance != tiers.Retired {
				name := o.source.Registration.Instance
				best[name] = max(best[name], int(table[prefix.Owner].EndOfWhole(0, prefix.Blocks)))
			}
		}
	}
	var all []inspect.ElsewhereInstance
	for name, n := range best {
		if n == 0 {
			continue // a part of a chunk
		}
		all = append(all, inspect.ElsewhereInstance{Name: name, Blocks: n})
	}
	slices.SortFunc(all, func(a, b inspect.ElsewhereInstance) int {
		return cmp.Or(b.Blocks-a.Blocks, strings.Compare(a.Name, b.Name))
	})
	return all
}

// noteElsewhere adds a context to the answer.
func (e *explaining) noteElsewhere(p candidate, found []inspect.ElsewhereInstance, salts map[string]bool) {
	at := scope.Context{Deployment: p.deployment.Key, Variant: p.identity.Variant}
	w := inspect.Elsewhere{
		Tenant: at.Deployment.Tenant, Model: at.Deployment.Model, Lora: at.Variant.Lora, Salt: at.Variant.Salt,
		BlockSize: at.Deployment.BlockSize, Instances: found, Tokens: found[0].Blocks * at.Deployment.BlockSize,
	}
	if !salts[w.Salt] {
		w.Salt = e.Redact(w.Salt)
	}
	w.Reason, w.Differences = differences(e.at, at, w.Salt)
	e.out.Elsewhere = append(e.out.Elsewhere, w)
}

// differences returns the first difference between the context asked for and another one, and all
// of them in words.
func differences(asked, other scope.Context, salt string) (first inspect.Reason, words string) {
	var all []string
	note := func(differs bool, r inspect.Reason, format string, args ...any) {
		if differs {
			if all = append(all, fmt.Sprintf(format, args...)); first == "" {
				first = r
			}
		}
	}
	a, b := asked.Deployment, other.Deployment
	note(a.Tenant != b.Tenant, inspect.OtherTenant, "tenant %q", b.Tenant)
	note(a.Model != b.Model, inspect.OtherModel, "model %q", b.Model)
	note(a.BlockSize != b.BlockSize, inspect.OtherBlockSize, "block size %d", b.BlockSize)
	if asked.Variant.Lora != other.Variant.Lora {
		note(other.Variant.Lora != "", inspect.OtherAdapter, "adapter %q", other.Variant.Lora)
		note(other.Variant.Lora == "", inspect.OtherAdapter, "the base model")
	}
	if asked.Variant.Salt != other.Variant.Salt {
		note(other.Variant.Salt != "", inspect.OtherSalt, "salt %q", salt)
		note(other.Variant.Salt == "", inspect.OtherSalt, "no salt")
	}
	return first, strings.Join(all, ", ")
}

// heldElsewhere returns the contexts where a source's instance holds more of the prompt than some
// tokens; those where any instance does if the source is nil.
func (e *explaining) heldElsewhere(s *ingest.Source, tokens int) (all []inspect.Cause) {
	for i := range e.out.Elsewhere {
		w := &e.out.Elsewhere[i]
		for _, in := range w.Instances {
			if n := in.Blocks * w.BlockSize; n > tokens && (s == nil || in.Name == s.Registration.Instance) {
				all = append(all, inspect.Cause{Reason: w.Reason, Certain: true,
					Text: fmt.Sprintf("%s holds %s of the prompt under %s.", in.Name, spelling.Count(n, "token"), w.Differences)})
				break
			}
		}
	}
	return all
}
