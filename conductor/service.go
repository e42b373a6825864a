package conductor

import (
	"maps"
	"slices"
	"strconv"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/payload"
	"example.com/conductor/index"
)

// Services returns every registered source, sorted by key. It locks each index once.
func (c *Conductor) Services() []status.Source {
	all := ingest.Rows(c.sources.All())
	addExpectations(c.catalog, all)
	return all
}

// Watermarks returns, in the order of Services, how many batches of its publisher
// each source is past: the last applied sequence plus one, 0 before the first.
func (c *Conductor) Watermarks() []uint64 {
	sources := c.sources.All()
	all := make([]uint64, len(sources))
	for i, s := range sources {
		if st := s.Member.Status(); st.HasSeq {
			all[i] = st.LastSeq + 1
		}
	}
	return all
}

// IndexBytes is what all indexes account for.
func (c *Conductor) IndexBytes() int {
	n := 0
	for _, st := range indexStats(c.catalog) {
		n += st.Bytes
	}
	return n
}

// Ready reports whether the gate is open, Options.MinSynced sources are synced, and every
// static source is synced or given up on. A source is given up on when it is partial, stale,
// paused or failed: waiting would not help. One whose engine publishes nothing counts as synced.
func (c *Conductor) Ready() status.Readiness {
	r := status.Readiness{Recovering: c.sources.Recovering(), MinSynced: c.tuned.Load().MinSynced}
	r.IndexBytes, r.IndexLimit = c.catalog.Options.Budget.Used()
	for _, s := range c.sources.All() {
		r.Count(s.Static, s.State())
	}
	countUnfound(c, &r)
	r.Decide()
	return r
}

// countUnfound counts the configured sources that AwaitUnfound is about.
func countUnfound(c *Conductor, r *status.Readiness) {
	if unfound := c.unfound.Load(); unfound != nil {
		for _, s := range (*unfound)() {
			r.Count(true, s)
		}
	}
}

// AwaitUnfound lets Ready wait for configured sources that cannot be registered yet, because their
// engines have not told where they publish.
func (c *Conductor) AwaitUnfound(unfound func() []status.SourceState) { c.unfound.Store(&unfound) }

// Check verifies the invariants of every index and returns the first violation
// of each.
func (c *Conductor) Check() []error {
	return ingest.Check(c.sources)
}

// Held returns how many blocks of a deployment a rank of an instance holds on devices,
// whatever their adapter and salt.
func (c *Conductor) Held(p scope.Shard, blockSize int, instance string, rank int32) int {
	key := scope.Deployment{Tenant: p.Tenant, Model: p.Model, BlockSize: blockSize}
	d := c.catalog.Deployment(key)
	if d == nil {
		return 0
	}
	v := d.Rows(c.catalog)
	at, found := v.Find(instance)
	if !found {
		return 0
	}
	held := 0
	for _, m := range v.All[at].Members {
		s := c.sources.SourceOf(m)
		if s == nil {
			continue // it has just left
		}
		held += s.HeldOnDevices(key, rank)
	}
	return held
}

// maxIndexSeries bounds the rows of indexStats that adapters make, and twice that all rows: publishers
// name adapters, clients tenants and models, and each row is several series.
const maxIndexSeries = 1000

// indexStats returns the sizes of the indexes by their metric labels. Rows of adapters have the blocks
// alone: all else belongs to the deployment as a whole, and is in the row without an adapter.
func indexStats(c *catalog.Catalog) map[[4]string]index.Stats {
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

// Memory returns the memory that the Conductor accounts for, by part. It costs the number
// of sources and owners, not blocks.
func (c *Conductor) Memory() []MemoryPart {
	var x index.Memory
	for _, d := range c.catalog.Indexed() {
		m := d.Index.Memory()
		x.Pieces += m.Pieces
		x.Lists += m.Lists
		x.Heads += m.Heads
		x.Loose += m.Loose
		x.Names += m.Names
		x.Sets += m.Sets
		x.Waiting += m.Waiting
		x.Owners += m.Owners
		x.PiecesOffHeap += m.PiecesOffHeap
		x.NamesOffHeap += m.NamesOffHeap
	}
	m := c.sources.Memory()
	waiting, reading := c.opts.Stream.Memory.Used()
	return []MemoryPart{
		{Name: "index_pieces", Bytes: int64(x.Pieces), OffHeap: int64(x.PiecesOffHeap)},
		{Name: "index_lists", Bytes: int64(x.Lists)},
		{Name: "index_heads", Bytes: int64(x.Heads)},
		{Name: "index_loose", Bytes: int64(x.Loose)},
		{Name: "index_names", Bytes: int64(x.Names), OffHeap: int64(x.NamesOffHeap)},
		{Name: "index_sets", Bytes: int64(x.Sets)},
		{Name: "index_waiting", Bytes: int64(x.Waiting)},
		{Name: "index_owners", Bytes: int64(x.Owners)},
		{Name: "payloads", Bytes: waiting},
		{Name: "socket_blocks", Bytes: reading},
		{Name: "payload_pools", Bytes: payload.PooledBytes()},
		{Name: "streams", Bytes: m.Streams},
		{Name: "removals", Bytes: m.Removals},
		{Name: "pools", Bytes: m.Pools},
		{Name: "lmcache", Bytes: m.Pushed},
		{Name: "lifetimes", Bytes: m.Lives},
		{Name: "source_histories", Bytes: m.Histories},
		{Name: "expected", Bytes: c.catalog.Expected.Bytes()},
		{Name: "prefixes", Bytes: int64(c.catalog.PrefixRoom.Bytes())},
		{Name: "hash_memo", Bytes: c.opts.Memo.Stats().Bytes},
		{Name: "journal", Bytes: int64(c.opts.Tape.MemoryBytes())},
	}
}

// MemoryPart is memory that one kind of state takes.
type MemoryPart struct {
	Name  string // label part of conductor_memory_bytes
	Bytes int64
	// OffHeap is how many of the bytes lie outside the Go heap.
	OffHeap int64
}
