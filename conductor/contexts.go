package conductor

import "example.com/conductor/conductor/catalog"

// ContextBlocks is one adapter and salt of a deployment, and how many blocks sources hold under it.
type ContextBlocks struct {
	Tenant, Model, Lora, Salt string
	BlockSize                 int // tokens
	Blocks                    int
}

// contextsOf returns every adapter and salt that has blocks, in no particular order. It walks no blocks.
func contextsOf(c *catalog.Catalog) (all []ContextBlocks) {
	for _, d := range c.Indexed() {
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
