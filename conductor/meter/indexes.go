package meter

import (
	"maps"
	"slices"
	"strconv"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/index"
)

// contextLabels identify a part of an index in metrics. Salts may be secrets and are left
// out.
var contextLabels = []string{"tenant_id", "model_name", "lora_name", "block_size"}

// maxIndexSeries bounds the rows of sizes that adapters make, and twice that all rows: publishers
// name adapters, clients tenants and models, and each row is several series.
const maxIndexSeries = 1000

// sizes returns the sizes of the indexes by contextLabels. Rows of adapters have the blocks
// alone: all else belongs to the deployment as a whole, and is in the row without an adapter.
func sizes(c *catalog.Catalog) map[[4]string]index.Stats {
	sums := make(map[[4]string]index.Stats)
	add := func(dk scope.Deployment, lora string, st index.Stats) {
		labels := [4]string{dk.Tenant, dk.Model, lora, strconv.Itoa(dk.BlockSize)}
		if _, known := sums[labels]; !known && len(sums) >= maxIndexSeries && lora != "" {
			labels[2] = status.Others
		}
		if _, known := sums[labels]; !known && len(sums) >= 2*maxIndexSeries {
			labels = [4]string{status.Others, status.Others, "", ""}
		}
		sum := sums[labels]
		sum.Blocks += st.Blocks
		sum.Memberships += st.Memberships
		sum.Aliases += st.Aliases
		sum.Orphans += st.Orphans
		sum.Raw += st.Raw
		sum.Bytes += st.Bytes
		sum.AliasBytes += st.AliasBytes
		sum.Ghosts += st.Ghosts
		sums[labels] = sum
	}
	for _, d := range c.Indexed() {
		st := d.Index.Stats()
		counts := d.Index.IdentityBlocks(nil)
		loras := make(map[string]int)
		for _, id := range d.Names.All() {
			if id.Lora != "" && int(id.Number) < len(counts) {
				loras[id.Lora] += counts[id.Number]
				st.Blocks -= counts[id.Number]
			}
		}
		add(d.Key, "", st)
		for _, lora := range slices.Sorted(maps.Keys(loras)) { // the same adapters have rows of their own each time
			if loras[lora] > 0 {
				add(d.Key, lora, index.Stats{Blocks: loras[lora]})
			}
		}
	}
	return sums
}

// IndexBytes returns how many bytes all indexes take.
func (m *Meter) IndexBytes() (n int) {
	for _, st := range sizes(m.opts.Catalog) {
		n += st.Bytes
	}
	return n
}
