package match

import (
	"slices"

	"example.com/conductor/index/hash"
)

// A router asks where a prompt may go, and reports soon afterwards where it went. It need not send the prompt twice: an answer with
// an id is kept for some seconds, as the hashes of the prompt's blocks, and the report names the id:
//
//	Answer of a Query with Keep --> hashes of all blocks, under Answer.ID in an answers.Store
//	Report with AnswerID        --> the same hashes --> expected blocks
//
// Cost: 8 bytes a block and look-ahead, and the names in the query.

// keptAnswer is an answer that can be reported. It is not to be changed.
type keptAnswer struct {
	query  Query // without its prompt
	chains []keptChain
}

// keptChain are the hashes of a prompt's blocks for one look-ahead; for all of them where the query had hashes.
type keptChain struct {
	ahead  int
	hashes []uint64
}

// anyLookAhead is the look-ahead of hashes that a client has computed.
const anyLookAhead = -1

// KeepAnswers bounds the memory for answers that reports can name, in bytes; 0 keeps none.
func (c *Matcher) KeepAnswers(most int64) { c.kept.SetLimit(most) }

// KeptBytes returns what the answers take that reports can name.
func (c *Matcher) KeptBytes() int64 { return c.kept.Bytes() }

// size returns how many bytes an answer takes. Clients choose how long the names are.
func (a *keptAnswer) size() int {
	bytes := len(a.query.Tenant) + len(a.query.Model) + len(a.query.Lora) + len(a.query.Salt)
	for _, c := range a.chains {
		bytes += 8 * len(c.hashes)
	}
	return bytes
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
	a := &keptAnswer{chains: sc.kept, query: Query{Tenant: sc.ans.Tenant, Model: q.Model, Lora: q.Lora, Salt: q.Salt,
		BlockSize: q.BlockSize, ByHash: true, HashKind: q.HashKind}}
	sc.ans.ID = c.kept.Add(a, a.size())
	sc.kept = nil
}
