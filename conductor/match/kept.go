package match

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/conductor/conductor/steady"
	"example.com/conductor/index/hash"
)

// A router asks where a prompt may go, and reports soon afterwards where it went. It need not send the prompt twice: an answer with
// an id is kept for some seconds, as the hashes of the prompt's blocks, and the report names the id:
//
//	Answer of a Query with Keep --> hashes of all blocks, under Answer.ID
//	Report with AnswerID        --> the same hashes --> expected blocks
//
// Cost: 8 bytes a block and look-ahead, the names in the query, and keptBytes an answer. An answer is forgotten after keptFor, or
// sooner if newer ones need its room, which all tenants share. Then the router sends the prompt.

const (
	// keptFor is how long an answer is kept at most: many times what a router needs to choose.
	keptFor = 10 * time.Second
	// keptBytes is what an answer takes besides its hashes and names, with its entry in the map.
	keptBytes = 500
	// keptShare is the part of the room that one answer may take, so that a giant prompt does not push out all others.
	keptShare = 16
)

// keptAnswers are the answers that can be reported by their ids. All methods are safe for concurrent use.
type keptAnswers struct {
	mu    sync.Mutex
	most  int64 // bytes; 0 keeps nothing
	bytes int64
	// byID has random ids, never 0, so that nobody can guess those of others, and one of a server that was restarted meanwhile
	// means nothing.
	byID  map[uint64]keptAnswer
	queue []uint64 // ids, the oldest first
	// tidying says that a timer is set which forgets what has ended, so that its memory is freed even if no call comes.
	tidying bool
}

// keptAnswer is an answer that can be reported.
type keptAnswer struct {
	query  Query // without its prompt
	chains []keptChain
	until  int64 // see steady.Nanos
	bytes  int64
}

// keptChain are the hashes of a prompt's blocks for one look-ahead; for all of them where the query had hashes.
type keptChain struct {
	ahead  int
	hashes []uint64
}

// anyLookAhead is the look-ahead of hashes that a client has computed.
const anyLookAhead = -1

// KeepAnswers bounds the memory for answers that reports can name, in bytes; 0 keeps none. The oldest answers beyond it leave at once.
func (c *Matcher) KeepAnswers(most int64) {
	k := &c.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most = most
	k.forget(0)
}

// add keeps an answer and returns its id. It returns 0 if there is no room for it.
func (k *keptAnswers) add(a keptAnswer, now func() time.Time) uint64 {
	a.bytes = int64(keptBytes + len(a.query.Tenant) + len(a.query.Model) + len(a.query.Lora) + len(a.query.Salt))
	for _, c := range a.chains {
		a.bytes += int64(8 * len(c.hashes))
	}
	at := steady.Nanos(now())
	a.until = at + int64(keptFor)
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.bytes > k.most/keptShare {
		return 0
	}
	if k.byID == nil {
		k.byID = make(map[uint64]keptAnswer)
	}
	id := max(rand.Uint64(), 1)
	for _, taken := k.byID[id]; taken; _, taken = k.byID[id] {
		id = max(rand.Uint64(), 1)
	}
	k.byID[id] = a
	k.queue = append(k.queue, id)
	k.bytes += a.bytes
	k.forget(at)
	k.tidyLater(now)
	return id
}

// forget drops the oldest answers: those whose time is over at now, and those beyond the limit. mu is held.
func (k *keptAnswers) forget(now int64) {
	n := 0
	for n < len(k.queue) && (k.byID[k.queue[n]].until <= now || k.bytes > k.most) {
		k.bytes -= k.byID[k.queue[n]].bytes
		delete(k.byID, k.queue[n])
		n++
	}
	if k.queue = k.queue[n:]; len(k.queue) == 0 {
		k.byID, k.queue = nil, nil // a map keeps the room that it had
	}
}

// tidyLater sets the timer, unless it is set or there is nothing to forget. mu is held.
func (k *keptAnswers) tidyLater(now func() time.Time) {
	if k.tidying || len(k.queue) == 0 {
		return
	}
	k.tidying = true
	time.AfterFunc(time.Second, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.forget(steady.Nanos(now()))
		k.tidying = false
		k.tidyLater(now)
	})
}

// find returns an answer, which it keeps. It is not to be changed.
func (k *keptAnswers) find(id uint64, now time.Time) (keptAnswer, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(steady.Nanos(now))
	a, ok := k.byID[id]
	return a, ok
}

// KeptBytes returns what the answers take that reports can name.
func (c *Matcher) KeptBytes() int64 {
	k := &c.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes
}

// hashesFor returns the hashes of the prompt for an engine's look-ahead.
func (a *keptAnswer) hashesFor(ahead int) ([]uint64, bool) {
	at := slices.IndexFunc(a.chains, func(c keptChain) bool { return c.ahead == ahead || c.ahead == anyLookAhead })
	if at < 0 {
		return nil, false
	}
	return a.chains[at].hashes, true
}

// keepChains notes the hashes of a query's prompt, after its look-up and before the prompt is forgotten. further are the chains of
// the look-aheads after the first.
func (sc *scratch) keepChains(q *Query, further []hash.Chain) {
	if !q.Keep {
		return
	}
	if q.ByHash {
		sc.kept = []keptChain{{anyLookAhead, slices.Clone(q.Hashes)}}
		return
	}
	chain := &sc.chain
	for ahead := range sc.lookAheads.All {
		hashes := make([]uint64, chain.Len())
		for i := range hashes {
			hashes[i] = chain.At(i)
		}
		sc.kept = append(sc.kept, keptChain{ahead, hashes})
		if len(further) > 0 {
			chain, further = &further[0], further[1:]
		}
	}
}

// keep keeps the answer to a query with Keep, if its look-up has noted the hashes of the prompt.
func (c *Matcher) keep(sc *scratch, q *Query) {
	if len(sc.kept) == 0 {
		return
	}
	of := Query{Tenant: sc.ans.Tenant, Model: q.Model, Lora: q.Lora, Salt: q.Salt, BlockSize: q.BlockSize, ByHash: true,
		HashKind: q.HashKind}
	sc.ans.ID = c.kept.add(keptAnswer{query: of, chains: sc.kept}, c.now)
	sc.kept = nil
}
