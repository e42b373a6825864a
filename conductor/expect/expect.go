// Package expect keeps the blocks that instances are expected to have soon, because a router has
// reported that it sends them a prompt.
//
//	report   --Target.Add------>  tree of the target's expected blocks  --Space.Match-->  queries
//	events   --Space.Announced->       blocks leave: confirmed
//	time, bound, restarts ----->       blocks leave: expired, dropped
//
// A Space has the expected blocks of one deployment, a Target is whom they are expected of: a rank,
// or an instance whose rank is not known. Each target has a radix tree. A node has consecutive
// blocks of a prompt, named by their keys, and its children are the nodes that go on behind it:
//
//	report of a b c d:  [a b c d]
//	report of a b e:    [a b] --> [c d]
//	                          \-> [e]
//
// A key covers the whole prompt up to its block, so a node is found by the key of its first block,
// in one map for all targets of the space. A node counts the expectations whose prompts lead
// through it, and leaves with the last of them. So the blocks that two prompts share stay until both have
// ended. An expectation does not keep nodes that are newer than its report. When it was reported, their blocks were on
// the device, or they have been announced since. The engine has evicted them, and an old report must not bring them back.
//
// Engines announce a prompt from its first block on, so an announced block is looked for only as the first one of a node,
// which then begins one block later. If the engine still had blocks in the middle of a prompt whose beginning it had
// evicted, it does not announce those, and they stay expected until their time is over.
//
// An approximate target belongs to an engine that announces nothing. Its blocks leave as from the engine's own
// cache: the prompt that was reported longest ago loses its last blocks first. For that the nodes of a target are in
// a list from the oldest use to the newest, in which a node comes after its children.
//
// Cost: 8 bytes a block, and about 160 bytes a node and 130 an expectation. A report walks its prompt
// once and copies the keys that are new. Match looks for a node at each block of the prompt, into a sieve first. Where
// nodes have a time to leave, each costs its place in a heap. At the bound an eviction looks at all approximate targets of
// its tenant, and a restart at all reports of its tenant if there are any for the target.
//
// Concurrency: all methods are safe for concurrent use. One lock of the Table guards everything; Match holds it for
// reading. It is taken last: under it the table calls the clock and Prompt.At alone.
package expect

import (
	"container/heap"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/steady"
)

// AnyRank is the rank of a target whose rank is not known.
const AnyRank = -1

// How long an expectation lasts if its report does not say.
const (
	// LeastTTL and MostTTL bound the learned times.
	LeastTTL, MostTTL = time.Second, 30 * time.Second
	// LongestTTL bounds what a report says. It is also how long a report without a ttl can be taken back from an
	// approximate target, whose blocks may stay for ever.
	LongestTTL = 10 * time.Minute
	// FirstTTL counts until enough is learned.
	FirstTTL = 10 * time.Second
)

// tidyEvery is how often what has ended leaves the memory without a call.
const tidyEvery = time.Second

// Estimates of what a node and an expectation take, with their entries in maps and the heap.
const (
	nodeBytes        = 160
	expectationBytes = 130
	keyBytes         = 8
)

// Table has the expected blocks of all deployments. Make it with New.
type Table struct {
	now  func() time.Time
	seed maphash.Seed

	mu        sync.RWMutex
	most      int64              // bytes, see SetLimit
	bytes     int64              // of everything
	tenants   map[string]*tenant // that have anything
	named     map[uint64]*expectation
	mostNamed int // how many there were since the map was made
	ends      timed[*expectation]
	tidying   bool  // a timer is set
	totals    State // of all targets, those that have left too; its Reports number the reports

	nextEnd atomic.Int64 // of ends, see steady.Nanos; 0 without one
}

// tenant is what the spaces of one tenant share.
type tenant struct {
	name           string
	bytes          int64
	oldest, newest *expectation
	approximate    map[*Target]bool // that have nodes
}

// New returns an empty Table. It is bounded to most bytes, see SetLimit, and now is its clock.
func New(most int64, now func() time.Time) *Table {
	return &Table{now: now, seed: maphash.MakeSeed(), most: most}
}

// SetLimit changes how many bytes the table takes at most. The oldest reports beyond it leave at once.
func (t *Table) SetLimit(most int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = most
	t.enforceLimit()
}

// Limit returns how many bytes the table takes at most.
func (t *Table) Limit() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.most
}

// Bytes returns what everything in the table takes, estimated.
func (t *Table) Bytes() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.bytes
}

// Space has the expected blocks of one deployment.
type Space struct {
	table     *Table
	owner     string // tenant
	blockSize int    // tokens

	blocks    atomic.Int64                       // in all nodes
	targets   atomic.Pointer[map[rankID]*Target] // never changed once published; written with table.mu held
	heads     map[uint64]*node                   // by the key of the first block; guarded by table.mu
	mostHeads int                                // how many keys there were since the map was made; guarded by table.mu
	sieve     sieve                              // of the keys in heads; guarded by table.mu
	named     atomic.Bool                        // a report had names, lately
	closed    bool                               // guarded by table.mu
	counted   atomic.Bool                        // there is a target whose blocks Options.Counts
	awaits    atomic.Int64                       // targets whose awaits is set
}

// rankID is where blocks are expected: an instance, by the number that the deployment gives it, and a rank.
type rankID struct{ instance, rank int32 }

// NewSpace returns an empty space of a tenant. blockSize is how many tokens its blocks have.
func (t *Table) NewSpace(tenant string, blockSize int) *Space {
	s := &Space{table: t, owner: tenant, blockSize: blockSize}
	s.targets.Store(&map[rankID]*Target{})
	return s
}

// Empty reports whether nothing is expected.
func (s *Space) Empty() bool { return s.blocks.Load() == 0 }

// Named reports whether some blocks were reported by names, see Report.Named.
func (s *Space) Named() bool { return s.named.Load() }

// Counts reports whether blocks of an approximate target count as held.
func (s *Space) Counts() bool { return s.counted.Load() }

// Options say what a target is.
type Options struct {
	// Capacity of an engine that announces nothing, in blocks; 0 for all others.
	Capacity int
	// TTL is how long a block stays with such an engine after it was reported last, 0 for ever.
	TTL time.Duration
	// Counts says that blocks expected there count as held.
	Counts bool
}

// Target is whom blocks are expected of.
type Target struct {
	Instance, Rank int32
	Options

	space  *Space
	awaits atomic.Bool // announcements may confirm something

	// Guarded by the table's lock.
	blocks         int64 // expected now
	oldest, newest *node // by use
	counts
	late      []late
	confirmed int64 // when the last block was confirmed
	doubt     Doubt
	whole     uint32    // of the last report or announcement, see Report.Whole
	doubted   []*Target // of the ranks of the instance, those in doubt; only where the rank is not known
	gone      bool      // it is not the space's any more, and takes nothing

	open int          // reports that have not ended
	ends timed[*node] // of an approximate target, those that leave at some time
}

// Target returns the target at an instance and rank, which it makes if there is none. If the target there has other
// options, Target replaces it and drops what was expected of it.
func (s *Space) Target(instance, rank int32, o Options) *Target {
	at := rankID{instance, rank}
	if t := (*s.targets.Load())[at]; t != nil && t.Options == o {
		return t
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	all := *s.targets.Load()
	old := all[at]
	if old != nil && old.Options == o {
		return old
	}
	t := &Target{Instance: instance, Rank: rank, Options: o, space: s, gone: s.closed}
	if old != nil {
		t.doubted = old.doubted
		old.leaveSpace()
		t.counts = old.counts // counts of an instance never go back
		t.noteAwaits()
	}
	if !s.closed {
		s.setTarget(at, t)
	}
	return t
}

// setTarget makes t the target of a rank, or leaves none there if t is nil. The table's lock is held.
func (s *Space) setTarget(at rankID, t *Target) {
	all := make(map[rankID]*Target)
	for k, v := range *s.targets.Load() {
		all[k] = v
	}
	if all[at] = t; t == nil {
		delete(all, at)
	}
	counted := false
	for _, t := range all {
		counted = counted || t.Counts
	}
	s.counted.Store(counted)
	s.targets.Store(&all)
}

// Drop drops the expected blocks of a rank, because its source has restarted or was cleared. It takes those
// of the instance without a rank as well, since that may be the rank.
func (s *Space) Drop(instance, rank int32) {
	if len(*s.targets.Load()) == 0 {
		return
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, t := range s.targetsOf(instance, rank) {
		if t != nil {
			t.endAll(Dropped)
		}
	}
}

// Forget drops the expected blocks of an instance, and its targets.
func (s *Space) Forget(instance int32) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for at, t := range *s.targets.Load() {
		if at.instance == instance {
			t.leaveSpace()
			s.setTarget(at, nil)
		}
	}
}

// Close drops everything. Nothing is added afterwards.
func (s *Space) Close() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, t := range *s.targets.Load() {
		t.leaveSpace()
	}
	s.closed = true
}

// leaveSpace drops the expected blocks of a target that leaves its space. A report that still comes adds nothing: its
// caller had looked the target up before.
func (t *Target) leaveSpace() {
	t.endAll(Dropped)
	t.doubted = nil
	t.noteAwaits()
	t.gone = true
}

// findTarget returns the target at an instance and rank, nil if there is none. It takes no lock.
func (s *Space) findTarget(instance, rank int32) *Target {
	return (*s.targets.Load())[rankID{instance, rank}]
}

// node is consecutive blocks of prompts that were reported for a target.
type node struct {
	target       *Target
	parent       *node // that ends with the block before, nil if nothing is expected there
	next         *node // another one in heads under the same key
	keys         []uint64
	room         int32  // words that keys takes
	gone         bool   // it is in no tree any more
	uses         int    // expectations whose prompts lead through it, of reports since it was made
	born, last   uint64 // numbers of the first and the last report with its blocks
	since        int64  // when its blocks were reported first
	until        int64  // when they leave an approximate target, 0 for never, -1 where that is not decided yet
	position     int    // in ends of the target
	older, newer *node
}

// expectation holds the blocks that one report of a router announced.
type expectation struct {
	target       *Target
	leaf         *node  // with the last block of its prompt, nil if nothing of it was new
	id           uint64 // of its request, 0 for none
	print        uint64 // of its prompt
	number       uint64 // of the report
	at, ends     int64
	position     int // in ends
	older, newer *expectation
}

// Report is a prompt that goes to a target.
type Report struct {
	// Keys name the blocks of the prompt, all of them or those behind some that the target has.
	Keys []uint64
	// TTL is how long the blocks are expected, 0 for as long as the target takes by experience.
	TTL time.Duration
	// ID names the request, so that the same report changes nothing and Cancel takes it back; "" for none.
	ID string
	// Print tells prompts apart under one ID.
	Print uint64
	// Named says that Keys are made of the hashes by which the engine names blocks.
	Named bool
	// Context tells adapters and salts apart.
	Context uint64
	// Whole is how many blocks the engine announces and uses together, from the prompt's first one on; 0 and 1 are one.
	Whole int
}

// Add notes that a prompt goes to the target.
func (t *Target) Add(r Report) {
	table := t.space.table
	table.mu.Lock()
	defer table.mu.Unlock()
	if t.gone {
		return
	}
	now := steady.Nanos(table.now())
	table.expireReports(now)
	t.expireBlocks(now)
	id := uint64(0)
	if r.ID != "" {
		id = table.hashRequestID(t.space.owner, r.ID)
		if old := table.named[id]; old != nil {
			if old.target == t && old.print == r.Print {
				return
			}
			table.endExpectation(old, TakenBack)
		}
	}
	ttl := r.TTL
	if ttl == 0 {
		ttl = time.Duration(t.ttl())
	}
	t.whole = uint32(r.Whole)
	t.reports++
	table.totals.Reports++
	t.doubt.Context = r.Context
	if r.Named && len(r.Keys) > 0 {
		t.space.named.Store(true)
	}
	leaf := t.insertPrompt(r.Keys, now)
	for p := leaf; p != nil; p = p.liveParent() {
		p.uses++
		p.last = table.totals.Reports
	}
	if t.Capacity > 0 {
		t.touchPrompt(leaf, now, int64(ttl))
		if ttl == 0 || ttl > LongestTTL {
			ttl = LongestTTL // the report's own, not that of its blocks
		}
	}
	if t.Capacity == 0 && leaf != nil || id != 0 {
		e := &expectation{target: t, leaf: leaf, id: id, print: r.Print, number: table.totals.Reports, at: now, ends: now + int64(ttl)}
		table.addExpectation(e)
	}
	table.enforceLimit()
	table.tidyLater()
}

// Has ends the expectation of blocks that turn out to be on the target's device already. They do not count.
func (t *Target) Has(keys []uint64) {
	t.space.table.mu.Lock()
	defer t.space.table.mu.Unlock()
	t.confirmBlocks(keys, steady.Nanos(t.space.table.now()), false)
}

// hashRequestID returns the number that stands for a request ID of a tenant. It is never 0.
func (t *Table) hashRequestID(tenant, id string) uint64 {
	return max(maphash.Comparable(t.seed, [2]string{tenant, id}), 1)
}

// Cancel takes the report of a request back. It reports false if there is none, or no more.
func (t *Table) Cancel(tenant, id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireReports(steady.Nanos(t.now()))
	e := t.named[t.hashRequestID(tenant, id)]
	if e == nil {
		return false
	}
	t.endExpectation(e, TakenBack)
	return true
}

// addExpectation enters an expectation into the heap, the list of its tenant and, if it has an ID, the map.
func (t *Table) addExpectation(e *expectation) {
	heap.Push(&t.ends, e)
	t.noteNextEnd()
	of := t.tenant(e.target.space.owner)
	if e.older = of.newest; e.older != nil {
		e.older.newer = e
	} else {
		of.oldest = e
	}
	of.newest = e
	e.target.open++
	if e.id != 0 {
		if t.named == nil {
			t.named = make(map[uint64]*expectation)
		}
		t.named[e.id] = e
	}
	t.addBytes(e.target, expectationBytes)
}

// endExpectation removes an expectation, and the blocks that no other one expects. An approximate target keeps its blocks
// unless the router took its report back.
func (t *Table) endExpectation(e *expectation, why Ending) {
	heap.Remove(&t.ends, e.position)
	t.noteNextEnd()
	of := t.tenant(e.target.space.owner)
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		of.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		of.newest = e.older
	}
	if e.id != 0 {
		delete(t.named, e.id)
		shrinkMap(&t.named, &t.mostNamed)
	}
	e.target.open--
	t.addBytes(e.target, -expectationBytes)
	if e.target.Capacity > 0 && why != TakenBack {
		return
	}
	vain := why == Expired && e.leaf != nil && !e.leaf.gone && e.target.confirmed < e.at
	for p := e.leaf; p != nil; p = p.liveParent() {
		if p.gone || p.born > e.number {
			continue
		}
		if p.uses--; p.uses == 0 {
			e.target.removeNode(p, why)
		}
	}
	if vain {
		e.target.doubtMore(e)
	}
}

// addBytes adds to the memory that a target takes, in the account of the table and of its tenant. bytes may be negative.
func (t *Table) addBytes(of *Target, bytes int64) {
	t.bytes += bytes
	x := t.tenant(of.space.owner)
	if x.bytes += bytes; x.bytes == 0 {
		if delete(t.tenants, x.name); len(t.tenants) == 0 {
			t.tenants = nil
		}
	}
}

// tenant returns what the spaces of a tenant share, which it makes if need be. addBytes drops it once they have nothing.
func (t *Table) tenant(name string) *tenant {
	x := t.tenants[name]
	if x == nil {
		x = &tenant{name: name, approximate: make(map[*Target]bool)}
		if t.tenants == nil {
			t.tenants = make(map[string]*tenant)
		}
		t.tenants[name] = x
	}
	return x
}

// expireReports ends the expectations whose time is over.
func (t *Table) expireReports(now int64) {
	for len(t.ends) > 0 && t.ends[0].ends <= now {
		t.endExpectation(t.ends[0], Expired)
	}
}

// enforceLimit keeps the table within its bound: the oldest report of the tenant with most bytes leaves.
func (t *Table) enforceLimit() {
	for t.bytes > t.most {
		var most *tenant
		for _, x := range t.tenants {
			if most == nil || x.bytes > most.bytes || x.bytes == most.bytes && x.name < most.name {
				most = x
			}
		}
		if most == nil {
			return
		}
		var oldest *node
		for of := range most.approximate {
			if p := of.oldest; p != nil && (oldest == nil || p.last < oldest.last) {
				oldest = p
			}
		}
		switch e := most.oldest; {
		case oldest != nil && (e == nil || oldest.last <= e.number):
			oldest.target.removeNode(oldest, Dropped)
		case e != nil:
			t.endExpectation(e, Dropped)
		default:
			return
		}
	}
}

// noteNextEnd updates nextEnd, by which Match knows without a lock when the next expectation ends.
func (t *Table) noteNextEnd() {
	if len(t.ends) == 0 {
		t.nextEnd.Store(0)
	} else {
		t.nextEnd.Store(t.ends[0].ends)
	}
}

// tidyLater sets a timer that removes what has ended, so that its memory is freed even if no call comes.
func (t *Table) tidyLater() {
	if t.tidying || t.bytes == 0 {
		return
	}
	t.tidying = true
	time.AfterFunc(tidyEvery, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		now := steady.Nanos(t.now())
		t.expireReports(now)
		for _, x := range t.tenants {
			for of := range x.approximate {
				of.expireBlocks(now)
			}
		}
		t.tidying = false
		t.tidyLater()
	})
}

// targetsOf returns the targets that an announcement of a rank is about.
func (s *Space) targetsOf(instance, rank int32) (all [2]*Target) {
	return [2]*Target{s.findTarget(instance, rank), s.findTarget(instance, AnyRank)}
}

// Awaits reports whether announcements of a rank may confirm anything. It takes no lock, and is one atomic load while
// nothing is expected in the space.
func (s *Space) Awaits(instance, rank int32) bool {
	if s.awaits.Load() == 0 {
		return false
	}
	for _, t := range s.targetsOf(instance, rank) {
		if t != nil && t.awaits.Load() {
			return true
		}
	}
	return false
}

// Announced notes that a rank has announced consecutive blocks. whole is how many its engine uses together, see
// Report.Whole. It reports whether that ends a doubt.
func (s *Space) Announced(instance, rank int32, keys []uint64, whole int) (relieved bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	now := steady.Nanos(s.table.now())
	for _, t := range s.targetsOf(instance, rank) {
		if t == nil || t.Capacity > 0 {
			continue
		}
		t.whole = uint32(whole)
		if t.confirmBlocks(keys, now, true) > 0 && t.endDoubt() {
			relieved = true
		}
		t.noteElsewhere(rank, keys)
	}
	return relieved
}
