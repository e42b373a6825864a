package match

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// resetPromptChains sets the chain of the prompt's tokens for the first look-ahead of a
// deployment, and appends a lookup for each further one.
func (sc *scratch) resetPromptChains(d *catalog.Deployment, constant uint64, q *Query, lookups []index.Lookup) []index.Lookup {
	set := d.LookAheads()
	sc.lookAheads = set
	if n := set.Count() - 1; len(sc.chains) < n {
		sc.chains = make([]hash.Chain, n)
	}
	local := d.Scheme
	if q.SearchUnscoped {
		local = hash.Scheme{Seed: catalog.ClientSeed(scope.Variant{Lora: q.Lora, Salt: q.Salt})}
	}
	c := &sc.chain
	for n := range set.All {
		c.Reset(d.Scheme, q.Tokens, q.BlockSize, n)
		c.SetLocalScheme(local)
		if c != &sc.chain {
			lookups = append(lookups, index.Lookup{Constant: constant, Chain: c})
		}
		if len(lookups) < len(sc.chains) {
			c = &sc.chains[len(lookups)]
		}
	}
	return lookups
}

// forgetPrompt drops the tokens of a query, which are the caller's.
func (sc *scratch) forgetPrompt() {
	sc.chain.Reset(hash.Scheme{}, nil, 0, 0)
	for i := range sc.chains {
		sc.chains[i].Reset(hash.Scheme{}, nil, 0, 0)
	}
	for i := range sc.digests {
		sc.digests[i].Reset(nil, 0)
	}
	clear(sc.lookups)
}
