package explain

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/names"
	"example.com/conductor/index"
)

// ContextBlocks is one adapter and salt of a deployment, and how many blocks sources hold under it.
type ContextBlocks struct {
	Tenant, Model, Lora, Salt string
	BlockSize                 int // tokens
	Blocks                    int
}

// Contexts returns every adapter and salt of the tenants that has blocks, in no particular order. It walks no blocks.
func (p Inspector) Contexts() (all []ContextBlocks) {
	for _, d := range p.Catalog.Indexed() {
		if !p.Tenants.Has(d.Key.Tenant) {
			continue
		}
		counts := d.Index.IdentityBlocks(nil)
		for _, id := range d.Names.All() {
			blocks := 0
			if int(id.Number) < len(counts) {
				blocks = counts[id.Number]
			}
			if blocks > 0 {
				all = append(all, ContextBlocks{Tenant: d.Key.Tenant, Model: d.Key.Model, Lora: id.Lora, Salt: id.Salt,
					BlockSize: d.Key.BlockSize, Blocks: blocks})
			}
		}
	}
	return all
}

// ContextView shows what one instance or pool holds under one adapter and salt of a deployment.
type ContextView struct {
	Tenant    string
	Model     string
	Lora      string
	Salt      string
	BlockSize int
	Instance  string
	// Hashes maps engine hashes to canonical seq hashes, at most the asked
	// number of them; Truncated says that there are more.
	Hashes    map[uint64]uint64
	Truncated bool
	Blocks    int      // memberships
	Aliases   []string // of the model, by the sources of the instance; sorted
}

// maxListedHashes bounds the hashes of a view, over all deployments.
const maxListedHashes = 200_000

// GlobalView returns every context and instance of the client's tenants, with up to limit hashes each. It shows
// the salts of registrations to clients that may see them. The salts of requests belong to users: no client sees them.
// It is for people and tests; it walks.
func (p Inspector) GlobalView(limit int) (all []ContextView) {
	listed, registered := 0, p.ShownSalts()
	for _, d := range p.Catalog.Indexed() {
		if p.Tenants.Has(d.Key.Tenant) {
			all = append(all, contextViews(p.Catalog, d, limit, &listed)...)
		}
	}
	for i := range all {
		if x := &all[i]; !registered[x.Salt] {
			x.Salt = p.Redact(x.Salt)
		}
	}
	return all
}

// contextViews returns the views of a deployment, ordered by adapter, salt and instance.
func contextViews(c *catalog.Catalog, d *catalog.Deployment, limit int, listed *int) []ContextView {
	type key struct {
		identity index.Identity
		instance string
	}
	type alias struct {
		source    index.Source
		name, seq uint64
	}
	type view struct {
		ContextView
		identity *names.Identity
		home     bool // a source of the instance is registered with the adapter and salt
		aliases  []alias
	}
	by := d.Members()
	views := make(map[key]*view)
	of := func(n index.Identity, src index.Source) *view {
		s := by[src]
		if s == nil {
			return nil // it has just entered
		}
		at := key{n, s.Registration.Instance}
		v := views[at]
		if v != nil {
			return v
		}
		if id := d.Names.Of(n); id != nil { // else its last block has just left
			v = &view{identity: id, ContextView: ContextView{
				Tenant: d.Key.Tenant, Model: d.Key.Model, BlockSize: d.Key.BlockSize, Lora: id.Lora, Salt: id.Salt,
				Instance: s.Registration.Instance, Hashes: make(map[uint64]uint64),
			}}
			views[at] = v
		}
		return v
	}
	for src, s := range by {
		if id := d.Names.Find(s.Registration.Variant()); id != nil {
			if v := of(id.Number, src); v != nil {
				v.home = true
			}
		}
	}
	for at, blocks := range d.Index.Checkpoint().HeldBySource() {
		if v := of(at.Identity, at.Source); v != nil {
			v.Blocks += blocks
		}
	}
	d.Index.Inspect().EachAlias(func(src index.Source, n index.Identity, name, seq uint64) bool {
		switch v := of(n, src); {
		case v == nil:
		case len(v.aliases) >= limit || *listed >= maxListedHashes:
			v.Truncated = true
		default:
			v.aliases = append(v.aliases, alias{src, name, seq})
			*listed++
		}
		return true
	})
	var all []ContextView
	for _, v := range views {
		for _, a := range v.aliases { // now that the index is not locked
			reg := &by[a.source].Registration
			v.Hashes[a.name^d.Names.FoldOf(reg.Variant(), catalog.NamingOf(reg), v.identity.Variant)] = a.seq
		}
		for _, s := range by {
			if s.Registration.Instance == v.Instance && s.Registration.Model == v.Model {
				v.Aliases = append(v.Aliases, s.Aliases()...)
			}
		}
		slices.Sort(v.Aliases)
		v.Aliases = slices.Compact(v.Aliases)
		if v.Blocks > 0 || len(v.Hashes) > 0 || v.home {
			all = append(all, v.ContextView)
		}
	}
	slices.SortFunc(all, func(a, b ContextView) int {
		return cmp.Or(cmp.Compare(a.Lora, b.Lora), cmp.Compare(a.Salt, b.Salt), cmp.Compare(a.Instance, b.Instance))
	})
	return all
}
