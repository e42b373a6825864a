package match

import (
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/index"
)

// sample keeps the keys of prefixes of 1, 2, 4, … blocks, of the first n blocks of a prompt, if the
// query is one that is looked at.
func (sc *scratch) sample(c index.Chain, n int) {
	if !sc.sampled {
		return
	}
	for depth := 1; depth <= min(n, c.Len()); depth *= 2 {
		sc.keys = append(sc.keys, c.At(depth-1))
	}
}

// observePrefixes lets the deployment count what a query asked for and what there was of it.
func (sc *scratch) observePrefixes(d *catalog.Deployment, id *names.Identity, q *Query, roster *catalog.Roster, best int, now time.Time) {
	o := &sc.asked
	o.Adapter, o.Salted, o.Context = id.Lora, id.Salt != "", id.Constant
	o.Blocks, o.Longest, o.Keys = q.blocks(), best, sc.keys
	o.Holders, o.Media = o.Holders[:0], o.Media[:0]
	for i := range sc.hits {
		h := &sc.hits[i]
		o.Holders = append(o.Holders, prefixes.Holder{Instance: roster.Instances[h.At].Name, Blocks: h.Longest})
		if h.Longest == best && len(o.Media) == 0 {
			for _, m := range h.Media {
				o.Media = append(o.Media, prefixes.Medium{Name: m.Name, Blocks: uint64(m.Blocks)})
			}
		}
	}
	d.Summary.Observe(o, now)
}

// blocks returns how many complete blocks a query asks for.
func (q *Query) blocks() int {
	switch {
	case q.ByHash:
		return len(q.Hashes)
	case q.ByClientHash:
		return len(q.ClientHashes)
	case q.BlockSize > 0:
		return len(q.Tokens) / q.BlockSize
	}
	return 0
}

// tokens returns how many tokens the query asks for.
func (q *Query) tokens() int {
	if q.ByHash || q.ByClientHash {
		return q.blocks() * q.BlockSize
	}
	return len(q.Tokens)
}
