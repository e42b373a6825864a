package conductor

import (
	"sync"
	"time"

	"kvconductor/events/stream"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// Query asks which instances hold how long a prefix of one prompt.
type Query struct {
	Tenant    string // "" is DefaultTenant
	Model     string
	Lora      string // "" is the base model
	Salt      string
	BlockSize int // tokens
	// Tokens of the prompt; a trailing partial block is ignored.
	Tokens []uint32
	// Hashes is used instead of Tokens when ByHash: canonical seq hashes.
	Hashes []uint64
	ByHash bool
	// Locals is used instead of both when ByLocal: the local hash of every block
	// as Dynamo computes it, adapter and salt mixed in (hash.Seeded). They say by
	// themselves which context is meant; Lora and Salt do not matter.
	Locals  []uint64
	ByLocal bool
	// Mixed asks for blocks that were recovered from a peer that names neither
	// adapter nor salt but by local hashes: see Conductor.Mixed.
	Mixed bool
	// Instance limits the answer to one row, given even when nothing is known.
	Instance *string
	// Detail adds the state of every source of a row's instance.
	Detail bool
}

// Answer holds one row per instance, sorted by name.
type Answer struct {
	Tenant    string
	BlockSize int // tokens; rows count blocks
	Rows      []Row
	// Truncated says that rows may be longer than shown: the next block was
	// refused for want of memory (index.max_bytes).
	Truncated bool
	// Pools are the pools whose blocks count for every row, with Query.Detail.
	Pools []SourceDetail
}

// Row is what one instance can serve of the prompt, in blocks.
type Row struct {
	Instance string
	tiers.Row
	Detail []SourceDetail
}

// SourceDetail tells how far a row can be trusted: what its source had applied
// before the index was read.
type SourceDetail struct {
	Key       Key
	Rank      int
	State     stream.State
	Reason    string
	Epoch     uint64
	Watermark uint64 // valid when HasMark
	HasMark   bool
	Age       time.Duration // since the last batch, -1 when there was none
}

// scratch holds the buffers of one query.
type scratch struct {
	match     index.Match
	runs      []tiers.Run
	chain     hash.Chain
	locals    localChain
	mixed     []uint64
	instances []tiers.Instance

	// See beside.go.
	digests hash.DigestChain
	waiters []*indexContext
	places  []index.Beside
	owners  []tiers.Owner
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Query answers from what is indexed now. It never fails: what is not known is
// zeros or no row (see decisions 10 to 15 in docs/semantics.md).
func (c *Conductor) Query(q Query) Answer {
	start := c.now()
	ans := c.answer(q)
	c.queries.observe(&q, &ans, c.now().Sub(start))
	return ans
}

func (c *Conductor) answer(q Query) Answer {
	if q.Tenant == "" {
		q.Tenant = DefaultTenant
	}
	ans := Answer{Tenant: q.Tenant, BlockSize: q.BlockSize}
	c.mu.RLock()
	d := c.deployments[deploymentKey{tenant: q.Tenant, model: q.Model, blockSize: q.BlockSize}]
	c.mu.RUnlock()
	var rows []row
	if d != nil {
		d.ask(c.now())
		rows = *d.rows.Load()
	}
	rows = selectRows(rows, &q)
	if len(rows) == 0 {
		return ans
	}

	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	ans.Rows = make([]Row, len(rows))
	sc.instances = sc.instances[:0]
	for i := range rows {
		ans.Rows[i].Instance = rows[i].name
		if q.Detail {
			ans.Rows[i].Detail = c.detail(rows[i].sources)
		}
		sc.instances = append(sc.instances, tiers.Instance{ID: rows[i].id, Ranks: rows[i].ranks})
	}
	if q.Detail && d != nil {
		ans.Pools = c.detail(*d.pools.Load())
	}
	var owners []tiers.Owner
	sc.runs = sc.runs[:0]
	// A row that was named and is not registered has no sources: pools serve
	// instances, not names.
	if d != nil && len(rows[0].sources) > 0 {
		x := d.asked(&q)
		var beside bool
		if owners, beside = sc.lookupBeside(d, x, &q, c); !beside && x != nil {
			owners = sc.lookup(x, &q)
		}
		ans.Truncated = sc.match.Truncated && (beside || x != nil)
	}
	var folder tiers.Folder // owns the rows it returns, so it is not shared
	for i, row := range folder.Fold(sc.runs, owners, sc.instances) {
		ans.Rows[i].Row = row
	}
	return ans
}

// selectRows returns the rows an answer has: see decision 10.
func selectRows(registered []row, q *Query) []row {
	if q.Instance == nil {
		rows := make([]row, 0, len(registered))
		for i := range registered {
			if q.ByLocal || q.Mixed || registered[i].serves(q.Lora) {
				rows = append(rows, registered[i])
			}
		}
		return rows
	}
	for i := range registered {
		if registered[i].name == *q.Instance {
			return registered[i : i+1]
		}
	}
	return []row{{name: *q.Instance}}
}

// hashList is a prompt given as hashes. It is the client's word that they follow
// each other, so every one is looked up: index.Match skips blocks between two that
// fit, which is right for chains only.
type hashList []uint64

func (l hashList) Len() int        { return len(l) }
func (l hashList) At(i int) uint64 { return l[i] }

// lookup matches the prompt against a context and returns what its owners are.
func (sc *scratch) lookup(x *indexContext, q *Query) []tiers.Owner {
	switch {
	case q.ByLocal:
		sc.locals.reset(x, q.Locals, q.Mixed)
		x.index.MatchLazy(&sc.locals, &sc.match)
	case q.Mixed:
		scheme := hash.Scheme{Seed: hash.Seeded(hash.DefaultSeed, q.Lora, q.Salt)}
		sc.mixed = scheme.Locals(sc.mixed[:0], q.Tokens, q.BlockSize)
		sc.locals.reset(x, sc.mixed, true)
		x.index.MatchLazy(&sc.locals, &sc.match)
	case q.ByHash:
		x.index.MatchLazy(hashList(q.Hashes), &sc.match)
	default:
		sc.chain.Reset(x.scheme, q.Tokens, q.BlockSize)
		x.index.MatchLazy(&sc.chain, &sc.match)
	}
	for _, r := range sc.match.Runs {
		sc.runs = append(sc.runs, tiers.Run{Owners: r.Owners, Blocks: r.Blocks})
	}
	return x.table()
}

// detail reads the freshness of a row's sources.
func (c *Conductor) detail(sources []*source) []SourceDetail {
	now := c.now()
	all := make([]SourceDetail, len(sources))
	for i, s := range sources {
		st := s.stream.Status()
		d := SourceDetail{Key: s.reg.Key(), Rank: s.reg.Rank, State: st.State, Reason: st.Reason, Epoch: st.Epoch, Watermark: st.LastSeq, HasMark: st.HasSeq, Age: -1}
		if !st.LastBatchAt.IsZero() {
			d.Age = now.Sub(st.LastBatchAt)
		}
		all[i] = d
	}
	return all
}
