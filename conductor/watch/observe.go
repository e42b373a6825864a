package watch

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/tiers"
)

// Batches and queries that an audience sees a second.
const (
	batchesPerSecond = 50
	queriesPerSecond = 10
)

// budget is how many more things an audience sees in this second.
type budget struct{ left, skipped atomic.Int64 }

// spendOne takes one thing out of the budget. If nothing is left, it counts the thing as skipped and reports false.
func (b *budget) spendOne() bool {
	if b.left.Load() > 0 && b.left.Add(-1) >= 0 {
		return true
	}
	b.skipped.Add(1)
	return false
}

// beginSecond gives an audience the batches and queries of one more second. It tells the audience how many batches it has missed
// in the second before, and forgets old queries.
func (a *audience) beginSecond(now time.Time) {
	a.recent.mu.Lock()
	a.recent.forgetOld(now, maxRecent, a.limit.Load())
	a.recent.mu.Unlock()
	a.batches.left.Store(batchesPerSecond)
	a.queries.left.Store(queriesPerSecond)
	a.queries.skipped.Store(0)
	if n := a.batches.skipped.Swap(0); n > 0 {
		var e body.Encoder
		e.Map(1)
		e.IntField("skipped", int(n))
		e.EndMap()
		a.pushToAll(encodeFrame("feed", e.Out), true)
	}
}

// Batch implements conductor.Watcher.
func (h *Hub) Batch(b *ingest.AppliedBatch) {
	all := h.audiences.Load()
	if all == nil {
		return
	}
	var f []byte
	for _, a := range *all {
		if a.feeders.Load() == 0 || !a.tenants.Has(b.Source.Tenant) || !a.batches.spendOne() {
			continue
		}
		if f == nil {
			f = encodeFrame("feed", batchRow(b))
		}
		a.pushToAll(f, true)
	}
}

// batchRow returns a batch of the feed. Its medium is that of its first event about blocks.
func batchRow(b *ingest.AppliedBatch) []byte {
	var counts [events.Moved + 1]int
	blocks, medium := 0, ""
	for i := range b.Events {
		e := &b.Events[i]
		counts[e.Kind] += e.Count()
		blocks += len(e.Hashes)
		if medium == "" && (e.Medium != "" || e.Kind != events.Cleared) {
			medium = tiers.ParseMedium(e.Medium).Name
		}
	}
	var e body.Encoder
	e.Map(9)
	e.TextField("time", b.At.UTC().Format(time.RFC3339Nano))
	e.TextField("source", b.Source.String())
	e.Name("seq")
	e.Uint(b.Seq)
	e.IntField("stored", counts[events.Stored]+counts[events.Moved])
	e.IntField("removed", counts[events.Removed]+counts[events.Moved])
	e.IntField("cleared", counts[events.Cleared])
	e.IntField("blocks", blocks)
	e.TextField("medium", medium)
	e.Name("replayed")
	e.Raw(strconv.AppendBool(nil, b.Replayed))
	e.EndMap()
	return e.Out
}

// Query implements conductor.Watcher.
func (h *Hub) Query(q *match.AnsweredQuery) {
	all := h.audiences.Load()
	if all == nil {
		return
	}
	for _, a := range *all {
		if a.tenants.Has(q.Answer.Tenant) && a.queries.spendOne() {
			a.pushToAll(encodeFrame("query", a.rememberQuery(q, h.cfg.KeepQueries)), false)
		}
	}
}

// Bounds of the recent queries of an audience. The bytes are those of the token ids, which all
// audiences share.
const (
	maxRecent      = 64
	maxRecentBytes = 1 << 20
	maxRecentAge   = 5 * time.Minute
)

// recent are queries that the stream has shown, the oldest first.
type recent struct {
	mu    sync.Mutex
	shown []shownQuery // guarded by mu
	bytes int64        // of tokens; guarded by mu
	last  uint64       // number of the newest; guarded by mu
}

// shownQuery is a query that the stream has shown.
type shownQuery struct {
	id    string
	text  []byte
	at    time.Time
	query match.Query // without tokens if they are not kept
}

// size returns the bytes of its tokens.
func (q *shownQuery) size() int64 { return int64(4 * len(q.query.Tokens)) }

// rememberQuery remembers a query, and returns its row.
func (a *audience) rememberQuery(q *match.AnsweredQuery, keep bool) []byte {
	asked := q.Query
	n, limit := int64(4*len(asked.Tokens)), a.limit.Load()
	keep = keep && len(asked.Tokens) > 0 && n <= limit
	r := &a.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	id := a.name + strconv.FormatUint(r.last, 10)
	text := queryRow(id, q, keep)
	if !keep {
		return text
	}
	asked.Tenant, asked.Tokens = q.Answer.Tenant, slices.Clone(asked.Tokens)
	asked.Instance, asked.MinMatched, asked.Top, asked.Detail = nil, 0, 0, false
	r.forgetOld(q.At, maxRecent-1, limit-n)
	r.shown, r.bytes = append(r.shown, shownQuery{id, text, q.At, asked}), r.bytes+n
	return text
}

// forgetOld drops queries that are too old, and the oldest beyond bounds. r.mu is held.
func (r *recent) forgetOld(now time.Time, most int, bytes int64) {
	n := 0
	for n < len(r.shown) && (len(r.shown)-n > most || r.bytes > bytes || now.Sub(r.shown[n].at) >= maxRecentAge) {
		r.bytes -= r.shown[n].size()
		n++
	}
	r.shown = slices.Delete(r.shown, 0, n)
}

// queryRow returns a query as the stream shows it.
func queryRow(id string, q *match.AnsweredQuery, kept bool) []byte {
	asked := &q.Query
	blocks := len(asked.Hashes) + len(asked.ClientHashes) // of the one that is given
	best := ""
	for i := range q.Answer.Rows {
		if r := &q.Answer.Rows[i]; q.Matched > 0 && r.Longest == q.Matched {
			best = r.Instance
			break
		}
	}
	var e body.Encoder
	e.Map(11)
	e.TextField("id", id)
	e.TextField("time", q.At.UTC().Format(time.RFC3339Nano))
	e.TextField("tenant_id", q.Answer.Tenant)
	e.TextField("model_name", asked.Model)
	e.IntField("block_size", asked.BlockSize)
	e.TextField("lora_name", asked.Lora)
	e.IntField("tokens", cmp.Or(len(asked.Tokens), blocks*asked.BlockSize))
	e.TextField("best", best)
	e.IntField("matched_tokens", q.Matched*asked.BlockSize)
	e.IntField("took_us", int(q.Took.Microseconds()))
	e.Name("kept")
	e.Raw(strconv.AppendBool(nil, kept))
	e.EndMap()
	return e.Out
}

// audienceOf returns the audience of some tenants, nil if none of its clients looks.
func (h *Hub) audienceOf(tenants scope.Tenants) *audience {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups[tenants.Key()]
}

// Recent returns a query that the stream has shown to clients of the same tenants, with its salt.
// It reports false for one that is not kept. The tokens are not to be changed.
func (h *Hub) Recent(tenants scope.Tenants, id string) (q match.Query, kept bool) {
	a := h.audienceOf(tenants)
	if a == nil {
		return q, false
	}
	a.recent.mu.Lock()
	defer a.recent.mu.Unlock()
	a.recent.forgetOld(h.cfg.Now(), maxRecent, a.limit.Load())
	for i := range a.recent.shown {
		if s := &a.recent.shown[i]; s.id == id {
			return s.query, true
		}
	}
	return q, false
}

// Kept returns the queries that Recent knows, the newest first, with their salts. The tokens are not to be changed.
func (h *Hub) Kept(tenants scope.Tenants) (all []match.Query) {
	a := h.audienceOf(tenants)
	if a == nil {
		return nil
	}
	a.recent.mu.Lock()
	defer a.recent.mu.Unlock()
	a.recent.forgetOld(h.cfg.Now(), maxRecent, a.limit.Load())
	for _, s := range slices.Backward(a.recent.shown) {
		all = append(all, s.query)
	}
	return all
}

// Queries returns the queries that Recent knows, the newest first, as a document.
func (h *Hub) Queries(tenants scope.Tenants) []byte {
	var e body.Encoder
	e.Map(1)
	e.Name("queries")
	e.List(0) // its length matters in msgpack alone
	if a := h.audienceOf(tenants); a != nil {
		a.recent.mu.Lock()
		defer a.recent.mu.Unlock()
		a.recent.forgetOld(h.cfg.Now(), maxRecent, a.limit.Load())
		for _, s := range slices.Backward(a.recent.shown) {
			e.Raw(s.text)
		}
	}
	e.EndList()
	e.EndMap()
	return e.Out
}
