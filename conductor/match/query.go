package match

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/answers"
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// Query asks which instances hold how long a prefix of one prompt.
type Query struct {
	Tenant    string // "" is DefaultTenant
	Model     string
	Lora      string // "" is the base model
	Salt      string
	BlockSize int // tokens
	// Tokens of the prompt; a trailing partial block is ignored. Neither they nor the
	// hashes below are kept.
	Tokens []uint32
	// Hashes is used instead of Tokens when ByHash: one for each block, of the kind HashKind.
	Hashes   []uint64
	ByHash   bool
	HashKind HashKind
	// ClientHashes replaces Tokens and Hashes if ByClientHash is set: the client hash of every block
	// (see catalog/client_hashes.go). The first one decides the adapter and the salt; Lora and Salt are ignored.
	ClientHashes []uint64
	ByClientHash bool
	// SearchUnscoped asks for recovered blocks that stand under client hashes under
	// no adapter and salt: see HasUnscoped of Conductor.
	SearchUnscoped bool
	// Instance limits the answer to one row, given even when nothing is known.
	Instance *string
	// MinMatched leaves out rows whose longest prefix is shorter, in tokens; 0 none.
	MinMatched int
	// Top keeps at most this number of rows, longest prefix first, of equal ones the
	// first by name; 0 is no limit.
	Top int
	// Detail adds the state of every source of a row's instance.
	Detail bool
	// Expected adds to each row what its instance is expected to have soon. MinMatched and Top are about
	// that then.
	Expected bool
	// Keep keeps the answer for some seconds, so that a report can name it by Answer.ID in place of the prompt.
	Keep bool
	// States adds to each row the state of its instance.
	States bool
	// Clock measures the stages of the request that asks; nil measures nothing.
	Clock *stage.Clock
}

// Matcher answers queries from the indexes of a catalog. All methods are safe for concurrent use.
type Matcher struct {
	catalog *catalog.Catalog
	memo    *hash.Memo // nil is none
	now     func() time.Time
	queries queryMetrics
	kept    *answers.Store[*keptAnswer]

	saltedOnly atomic.Bool
	watcher    atomic.Pointer[QueryWatcher] // nil is none
}

// New returns a Matcher. memo keeps engine digests that queries have computed; nil keeps none.
func New(c *catalog.Catalog, memo *hash.Memo, now func() time.Time) *Matcher {
	return &Matcher{catalog: c, memo: memo, now: now, queries: newQueryMetrics(),
		kept: answers.New[*keptAnswer](now)}
}

// Watch lets a watcher see answered queries in place of the one before; nil is none.
func (c *Matcher) Watch(w QueryWatcher) {
	if w == nil {
		c.watcher.Store(nil)
		return
	}
	c.watcher.Store(&w)
}

// HideUnsalted lets queries without a salt find nothing, or ends that.
func (c *Matcher) HideUnsalted(hide bool) { c.saltedOnly.Store(hide) }

// scratch holds the buffers of one query.
type scratch struct {
	match       index.Match
	chain       hash.Chain   // of the first look-ahead
	chains      []hash.Chain // of the others, see prompt_chains.go
	hashes      hashList
	clientChain clientChain
	finder      tiers.HitFinder
	cacheHits   []tiers.CacheHit // of the finder
	folder      tiers.Folder
	clock       *stage.Clock       // of the query, nil for none
	lookAheads  catalog.LookAheads // of chain and chains
	kept        []keptChain        // of a query with Keep, see kept.go
	states      []instanceState    // of a query with States, by position in the roster

	// See expected.go.
	found         []expect.Found
	counted, soon []tiers.Soon
	expected      tiers.Folder
	ranks         []tiers.Rank

	// What the answer is made of.
	ans  Answer
	hits []tiers.Hit
	rows []Row

	digests []hash.DigestChain // of one look-ahead each
	lookups []index.Lookup
	names   []uint64 // of the hashes of a query
	named   hashList // their blocks' keys, where the deployment has gaps
	waiting hashList
	other   index.Match

	// See prefixes.go.
	sampled bool
	keys    []uint64 // of prefixes of 1, 2, 4, … blocks
	asked   prefixes.Query
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Query is Answer with an answer to keep.
func (c *Matcher) Query(q Query) (ans Answer) {
	c.Answer(&q, func(a *Answer) { ans = a.clone() })
	return ans
}

// Answer answers from the blocks indexed now. It never fails: unknown blocks are
// zeros or no row (see rules ANSWER-1 to ANSWER-6 in docs/semantics.md). The answer is lent to
// use: when that returns, it and all it points to serve other queries.
func (c *Matcher) Answer(q *Query, use func(*Answer)) {
	start := c.now()
	c.catalog.NoteAsked(start)
	q.Clock.Enter(stage.Match)
	sc := scratches.Get().(*scratch)
	sc.clock = q.Clock
	best, d := c.answer(sc, q, start)
	took := c.now().Sub(start)
	c.countQuery(d, q, best, took)
	if w := c.watcher.Load(); w != nil {
		(*w).Query(&AnsweredQuery{Query: *q, Answer: &sc.ans, Matched: best, At: start, Took: took})
	}
	q.Clock.Answered(sc.ans.Tenant, q.Model, q.tokens())
	q.Clock.Enter(stage.Encode)
	use(&sc.ans)
	sc.clock = nil
	sc.release()
}

// answer leaves the answer in sc. It returns the longest prefix, of rows that are left out too, and
// the deployment, nil if there is none.
func (c *Matcher) answer(sc *scratch, q *Query, now time.Time) (best int, d *catalog.Deployment) {
	tenant := cmp.Or(q.Tenant, scope.DefaultTenant)
	ans := &sc.ans
	*ans = Answer{Tenant: tenant, BlockSize: q.BlockSize}
	sc.kept = nil

	d = c.catalog.Deployment(scope.Deployment{Tenant: tenant, Model: q.Model, BlockSize: q.BlockSize})
	if d != nil {
		d.NoteAsked(now)
	}
	if d == nil || len(d.Instances().All) == 0 {
		c.catalog.NoteUnregistered(scope.Deployment{Tenant: tenant, Model: q.Model, BlockSize: q.BlockSize}, now)
	}
	roster, only := rosterFor(d, q)
	if roster == nil && (q.Instance == nil || q.minBlocks() > 0) {
		return 0, d
	}
	var details [][]SourceDetail
	if q.Detail { // before the index is read
		if roster != nil {
			details = c.details(roster, only)
		}
		if d != nil {
			ans.Pools = c.detail(d.Pools())
		}
	}
	if q.States && roster != nil { // likewise
		sc.readStates(roster)
	}
	if roster == nil {
		// A row that was named and is not registered: pools serve instances, not names.
		sc.rows = append(sc.rows[:0], Row{Instance: *q.Instance, Row: noRanks[0], at: -1})
		if ans.Rows = sc.rows; q.Detail {
			ans.Rows[0].Detail = []SourceDetail{}
		}
		recheck(ans.Pools)
		return 0, d
	}

	sc.resetMatch(d)
	sc.sampled, sc.keys = rand.Uint32()%prefixes.Every == 0, sc.keys[:0]
	id := identityAsked(d, q)
	id.Asked(now)
	if !c.HidesUnsalted(id, q) {
		sc.lookup(d, id, q, c)
	} else {
		sc.counted, sc.soon = sc.counted[:0], sc.soon[:0]
	}
	ans.Truncated = sc.match.Truncated
	owners := sc.findHits(d)
	sc.hits = sc.folder.FoldHits(sc.match.Prefixes, sc.match.Later, owners, sc.counted, roster.Fold)
	if ans.Expected = q.Expected; q.Expected {
		best = sc.buildExpectedRows(q, owners, roster, only)
	} else {
		best = sc.buildRows(q, roster, only)
	}
	if d.Caches.HaveUnknown() {
		sc.markBounds(owners, roster)
	}
	ans.Rows, ans.Roster = sc.rows, roster
	if sc.sampled {
		sc.observePrefixes(d, id, q, roster, best, now)
	}
	recheck(ans.Pools)
	if q.States {
		sc.recheckStates(roster)
	}
	c.keep(sc, q)
	if details != nil {
		for i := range ans.Rows {
			row := &ans.Rows[i]
			row.Detail = details[row.at]
			recheck(row.Detail)
			for _, s := range roster.Instances[row.at].Members {
				row.Window = max(row.Window, int(s.Window.Load()))
			}
		}
	}
	return best, d
}

// HidesUnsalted reports whether HideUnsalted hides the blocks that a query asks for. Client
// hashes have the salt in them.
func (c *Matcher) HidesUnsalted(id *names.Identity, q *Query) bool {
	return c.saltedOnly.Load() && q.Salt == "" && (!q.ByClientHash || id.Salt == "")
}

// noRanks is the row of an instance that is not registered.
var noRanks = tiers.NewRowSet([]tiers.Instance{{}}).ZeroRows()

// rosterFor returns the instances an answer may have rows of, nil for none, and where the
// only one is that is asked for, -1 for all: see rule ANSWER-1.
func rosterFor(d *catalog.Deployment, q *Query) (r *catalog.Roster, only int) {
	if d == nil {
		return nil, -1
	}
	v := d.Instances()
	switch {
	case q.Instance != nil:
		at, ok := v.Find(*q.Instance)
		if !ok {
			return nil, -1
		}
		return v.Everyone(), at
	case len(v.All) == 0:
		return nil, -1
	case q.ByClientHash || q.SearchUnscoped, q.Expected && q.Lora != "": // of others buildExpectedRows takes out those without blocks
		return v.Everyone(), -1
	}
	return v.Serving(q.Lora), -1
}

// hashList is a prompt given as sequence hashes, from its first block on.
type hashList []uint64

func (l hashList) Len() int        { return len(l) }
func (l hashList) At(i int) uint64 { return l[i] }

// lookup matches the prompt against the chains of an identity, and against the blocks that wait by
// hashes which the prompt's blocks may have:
//
//	tokens --seq hashes, one chain a look-ahead--> chains of the identity
//	       --digests, one chain a look-ahead-----> blocks that wait by their hash
//
// No digest is computed where nothing waits.
func (sc *scratch) lookup(d *catalog.Deployment, id *names.Identity, q *Query, c *Matcher) {
	x := d.Index
	first := index.Lookup{Constant: id.Constant}
	sc.lookups = sc.lookups[:0]
	sc.counted, sc.soon = sc.counted[:0], sc.soon[:0]
	var further []hash.Chain // those of other look-aheads
	switch {
	case q.ByClientHash:
		sc.clientChain.reset(d, q.ClientHashes, q.SearchUnscoped || !d.TranslatesClientHashes(id.Variant))
		first.Chain = timed(&sc.clientChain, sc.clock)
	case q.ByHash && q.HashKind != CanonicalHashes:
		sc.lookupNames(d, id, q)
		sc.hashes = q.Hashes
		sc.findExpected(d, &sc.hashes, id.Constant^expect.NamesMix, q)
		sc.keepChains(q, nil)
		return
	case q.ByHash:
		sc.hashes = q.Hashes
		first.Chain = &sc.hashes
	default:
		sc.lookups = sc.resetPromptChains(d, id.Constant, q, sc.lookups)
		further = sc.chains[:len(sc.lookups)]
		if !q.SearchUnscoped && d.HasWaiting() && sc.digestsOf(d, q, c) {
			for i := range sc.digests {
				sc.lookups = append(sc.lookups, index.Lookup{Chain: &sc.digests[i], Loose: true})
				if id.Constant != 0 { // pools may have named adapter and salt
					sc.lookups = append(sc.lookups, index.Lookup{Constant: id.Constant, Chain: &sc.digests[i], Loose: true})
				}
			}
		}
		first.Chain, sc.lookups = timed(&sc.chain, sc.clock), timedLookups(sc.lookups, sc.clock)
	}
	x.Match(first, sc.lookups, &sc.match)
	switch {
	case q.ByClientHash:
		sc.findExpected(d, &sc.clientChain, id.Constant, q)
	case q.ByHash:
		sc.findExpected(d, &sc.hashes, id.Constant, q)
		sc.sample(&sc.hashes, len(q.Hashes))
		sc.keepChains(q, nil)
	default:
		sc.sample(&sc.chain, sc.chain.Computed())
		sc.findExpected(d, &sc.chain, id.Constant, q)
		for i := range further {
			sc.findExpected(d, &further[i], id.Constant, q)
		}
		sc.keepChains(q, further)
		sc.forgetPrompt()
	}
}

// digestsOf prepares the digests of the prompt for each look-ahead of the deployment, used
// now or until lately. It reports false if no profile says how to compute them.
func (sc *scratch) digestsOf(d *catalog.Deployment, q *Query, c *Matcher) bool {
	profile, known := d.Profile(q.Lora)
	if !known {
		return false
	}
	n := 0
	var last hash.Profile
	for ahead := range max(d.NamedLookAheads(), catalog.NoLookAhead).All {
		p := profile.WithAhead(ahead)
		if n > 0 && p == last {
			continue
		}
		if sc.digests = sc.digests[:n]; n == cap(sc.digests) {
			sc.digests = append(sc.digests, hash.DigestChain{})
		}
		sc.digests = sc.digests[:n+1]
		chain := &sc.digests[n]
		if chain.SetProfile(p, q.Lora, q.Salt) != nil {
			return false
		}
		chain.SetMemo(c.memo)
		chain.Reset(q.Tokens, q.BlockSize)
		last = p
		n++
	}
	return true
}

// CountUnknownFields counts n fields of a request that its dialect does not know.
func (c *Matcher) CountUnknownFields(n int) { c.queries.unknown.Add(float64(n)) }

// identityAsked returns the adapter and salt a query is about. One that no block has had is not in the
// table.
func identityAsked(d *catalog.Deployment, q *Query) *names.Identity {
	switch {
	case q.SearchUnscoped:
		return d.Names.Base()
	case !q.ByClientHash:
		return d.Names.Look(scope.Variant{Lora: q.Lora, Salt: q.Salt})
	case len(q.ClientHashes) > 0:
		if id := d.IdentityOf(q.ClientHashes[0]); id != nil {
			return id
		}
	}
	return d.Names.Base()
}

// QueryWatcher sees answered queries. It is called by many queries at once, and must not make them wait. It must not keep
// what it is given.
type QueryWatcher interface{ Query(*AnsweredQuery) }

// AnsweredQuery is a query with its answer.
type AnsweredQuery struct {
	Query   Query // with the salt
	Answer  *Answer
	Matched int // blocks of the best instance, in rows that are left out too
	At      time.Time
	Took    time.Duration
}

// resetMatch begins a look-up in a deployment.
func (sc *scratch) resetMatch(d *catalog.Deployment) {
	sc.match.Reset()
	sc.match.Gaps = d.Caches.HaveGaps()
}

// findHits replaces what owners with groups hold of a prompt, in sc.match, by what their engines take of it. It returns the owners of
// the deployment.
func (sc *scratch) findHits(d *catalog.Deployment) []tiers.Owner {
	owners := d.Owners() // of a moment after the look-up, so that all that it has found are there
	if sc.cacheHits = nil; d.Caches.Any() {
		m := &sc.match
		m.Prefixes, m.Later, sc.cacheHits = sc.finder.FindHits(m.Prefixes, m.Later, owners)
	}
	return owners
}

// markBounds marks each row that counts blocks of a rank with an attention group whose need is not known.
func (sc *scratch) markBounds(owners []tiers.Owner, roster *catalog.Roster) {
	for i := range sc.cacheHits {
		o := &owners[sc.cacheHits[i].Owner]
		if h := &sc.cacheHits[i]; h.Blocks <= h.Start || !o.Cache.HasUnknown() {
			continue
		}
		position, listed := roster.Fold.PositionOf(o.Instance)
		at, shown := slices.BinarySearchFunc(sc.rows, position, func(row Row, at int32) int { return int(row.at - at) })
		if listed && shown {
			sc.rows[at].UpperBound = true
		}
	}
}

// Found is what the look-up of a query has found, before the query's limits on rows.
type Found struct {
	Rows    []Row        // of each instance of the roster
	Match   *index.Match // as HitFinder leaves it
	Hits    []tiers.CacheHit
	Counted []tiers.Soon // expected blocks that count as held
}

// Find looks a query up in a deployment as Answer does, for explanations. id is the identity that the query asks for.
func (c *Matcher) Find(d *catalog.Deployment, id *names.Identity, q *Query, roster *catalog.Roster) Found {
	sc := new(scratch)
	sc.resetMatch(d)
	if !c.HidesUnsalted(id, q) {
		sc.lookup(d, id, q, c)
	}
	owners := sc.findHits(d)
	sc.hits = sc.folder.FoldHits(sc.match.Prefixes, sc.match.Later, owners, sc.counted, roster.Fold)
	sc.buildRows(q, roster, -1)
	return Found{Rows: sc.rows, Match: &sc.match, Hits: sc.cacheHits, Counted: sc.counted}
}

// Digests returns the digests of a prompt as the engines of a deployment compute them, one chain for each of their
// look-aheads, nil if no profile says how.
func (c *Matcher) Digests(d *catalog.Deployment, q *Query) []hash.DigestChain {
	sc := new(scratch)
	if !sc.digestsOf(d, q, c) {
		return nil
	}
	return sc.digests
}
