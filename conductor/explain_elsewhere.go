package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/tiers"
)

// Elsewhere is another context that holds a beginning of the prompt.
type Elsewhere struct {
	Tenant, Model, Lora string
	Salt                string // as the client may see it
	BlockSize           int    // tokens
	Reason              Reason // the first difference that counts: OtherTenant to OtherSalt
	Instances           []ElsewhereInstance
	Tokens              int // of the longest instance
	differences         string
}

// ElsewhereInstance is how far one instance, or pool, holds the prompt there.
type ElsewhereInstance struct {
	Name   string
	Blocks int
}

// maxElsewhere bounds the contexts that are searched. Salts may be as many as users; a context
// without the first block costs well below a microsecond. maxListed bounds those in the answer.
const (
	maxElsewhere = 1 << 14
	maxListed    = 16
)

// searchElsewhere finds the other contexts in view that hold the first block. Those of the
// deployment come first, then those of the model.
func (e *explaining) searchElsewhere() {
	all := slices.DeleteFunc(e.allContexts(), func(x *indexContext) bool {
		return x == e.context || !e.view.reader.Tenants.Has(x.deployment.key.Tenant)
	})
	near := func(x *indexContext) int {
		switch d := x.deployment.key; {
		case d == e.at.Deployment:
			return 0
		case d.Tenant == e.at.Deployment.Tenant && d.Model == e.at.Deployment.Model:
			return 1
		case d.Tenant == e.at.Deployment.Tenant:
			return 2
		}
		return 3
	}
	slices.SortFunc(all, func(a, b *indexContext) int {
		one, other := a.scope(), b.scope()
		return cmp.Or(near(a)-near(b), one.Compare(&other))
	})
	e.out.Contexts = len(all)
	var salts map[string]bool
	for _, x := range all[:min(len(all), maxElsewhere)] {
		e.out.Searched++
		if found := e.heldIn(x); len(found) > 0 {
			if salts == nil {
				salts = e.view.shownSalts()
			}
			e.noteElsewhere(x, found, salts)
		}
	}
	slices.SortStableFunc(e.out.Elsewhere, func(a, b Elsewhere) int { return b.Tokens - a.Tokens })
	e.out.Elsewhere = e.out.Elsewhere[:min(len(e.out.Elsewhere), maxListed)]
}

// heldIn returns who holds the first block of the prompt in a context, longest first.
func (e *explaining) heldIn(x *indexContext) []ElsewhereInstance {
	best, table := make(map[string]int), x.table()
	var m index.Match
	for _, c := range e.chainsOf(x, x.deployment.key.BlockSize) {
		if x.index.MatchLazy(0, c, &m); len(m.Prefixes) == 0 {
			continue
		}
		who := make(map[uint32]owned)
		e.owners(x, 0, who)
		for _, p := range m.Prefixes {
			o, known := who[p.Owner]
			if known && e.view.reader.Tenants.Has(o.source.reg.Tenant) && int(p.Owner) < len(table) && table[p.Owner].Instance != tiers.Retired {
				name := o.source.reg.Instance
				best[name] = max(best[name], int(p.Blocks))
			}
		}
	}
	var all []ElsewhereInstance
	for name, n := range best {
		all = append(all, ElsewhereInstance{name, n})
	}
	slices.SortFunc(all, func(a, b ElsewhereInstance) int { return cmp.Or(b.Blocks-a.Blocks, strings.Compare(a.Name, b.Name)) })
	return all
}

// noteElsewhere adds a context to the answer.
func (e *explaining) noteElsewhere(x *indexContext, found []ElsewhereInstance, salts map[string]bool) {
	at := x.scope()
	w := Elsewhere{
		Tenant: at.Deployment.Tenant, Model: at.Deployment.Model, Lora: at.Variant.Lora, Salt: at.Variant.Salt,
		BlockSize: at.Deployment.BlockSize, Instances: found, Tokens: found[0].Blocks * at.Deployment.BlockSize,
	}
	if !salts[w.Salt] {
		w.Salt = e.redactedSalt(w.Salt)
	}
	w.Reason, w.differences = differences(e.at, at, w.Salt)
	e.out.Elsewhere = append(e.out.Elsewhere, w)
}

// differences returns the first difference between the context asked for and another one, and all
// of them in words.
func differences(asked, other scope.Context, salt string) (first Reason, words string) {
	var all []string
	note := func(differs bool, r Reason, format string, args ...any) {
		if differs {
			if all = append(all, fmt.Sprintf(format, args...)); first == "" {
				first = r
			}
		}
	}
	a, b := asked.Deployment, other.Deployment
	note(a.Tenant != b.Tenant, OtherTenant, "tenant %q", b.Tenant)
	note(a.Model != b.Model, OtherModel, "model %q", b.Model)
	note(a.BlockSize != b.BlockSize, OtherBlockSize, "block size %d", b.BlockSize)
	if asked.Variant.Lora != other.Variant.Lora {
		note(other.Variant.Lora != "", OtherAdapter, "adapter %q", other.Variant.Lora)
		note(other.Variant.Lora == "", OtherAdapter, "the base model")
	}
	if asked.Variant.Salt != other.Variant.Salt {
		note(other.Variant.Salt != "", OtherSalt, "salt %q", salt)
		note(other.Variant.Salt == "", OtherSalt, "no salt")
	}
	return first, strings.Join(all, ", ")
}

// heldElsewhere returns the contexts where a source's instance holds more of the prompt than some
// tokens; those where any instance does if the source is nil.
func (e *explaining) heldElsewhere(s *source, tokens int) (all []Cause) {
	for i := range e.out.Elsewhere {
		w := &e.out.Elsewhere[i]
		for _, in := range w.Instances {
			if n := in.Blocks * w.BlockSize; n > tokens && (s == nil || in.Name == s.reg.Instance) {
				all = append(all, Cause{Reason: w.Reason, Certain: true,
					Text: fmt.Sprintf("%s holds %d tokens of the prompt under %s.", in.Name, n, w.differences)})
				break
			}
		}
	}
	return all
}
