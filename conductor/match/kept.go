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
// Cost: 8 bytes a block and look-ahead, and keptBytes an answer. An answer is forgotten after keptFor, or sooner if newer ones need
// its room. Then the router sends the prompt.

// keptFor is how long an answer is kept at most: many times what a router needs to choose.
const keptFor = 10 * time.Second

// keptBytes is what an answer takes besides its hashes.
const keptBytes = 400

// keptAnswers are the answers that can be reported by their ids. All methods are safe for concurrent use.
type keptAnswers struct {
	mu    sync.Mutex
	most  int64 // bytes; 0 keeps nothing
	bytes int64
	// queue has the answers in the order of their ids, which are consecutive from first on. The first number is random, so that an
	// id of a server that was restarted meanwhile means nothing. Ids are never 0.
	queue []keptAnswer
	first uint64
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
func (k *keptAnswers) add(a keptAnswer, now time.Time) uint64 {
	a.bytes = keptBytes
	for _, c := range a.chains {
		a.bytes += int64(8 * len(c.hashes))
	}
	at := steady.Nanos(now)
	a.until = at + int64(keptFor)
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.bytes > k.most {
		return 0
	}
	if k.first == 0 {
		k.first = max(rand.Uint64()>>1, 1)
	}
	k.queue = append(k.queue, a)
	k.bytes += a.bytes
	k.forget(at)
	return k.first + uint64(len(k.queue)) - 1
}

// forget drops the oldest answers: those whose time is over at now, and those beyond the limit. mu is held.
func (k *keptAnswers) forget(now int64) {
	n := 0
	for n < len(k.queue) && (k.queue[n].until <= now || k.bytes > k.most) {
		k.bytes -= k.queue[n].bytes
		k.queue[n] = keptAnswer{}
		n++
	}
	k.queue, k.first = k.queue[n:], k.first+uint64(n)
}

// find returns an answer, which it keeps. It is not to be changed.
func (k *keptAnswers) find(id uint64, now time.Time) (keptAnswer, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(steady.Nanos(now))
	if at := id - k.first; id >= k.first && at < uint64(len(k.queue)) {
		return k.queue[at], true
	}
	return keptAnswer{}, false
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
func (c *Matcher) keep(sc *scratch, q *Query, now time.Time) {
	if len(sc.kept) == 0 {
		return
	}
	of := Query{Tenant: sc.ans.Tenant, Model: q.Model, Lora: q.Lora, Salt: q.Salt, BlockSize: q.BlockSize, ByHash: true,
		HashKind: q.HashKind}
	sc.ans.ID = c.kept.add(keptAnswer{query: of, chains: sc.kept}, now)
	sc.kept = nil
}
