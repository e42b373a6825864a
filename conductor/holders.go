package conductor

import (
	"cmp"
	"slices"
	"strings"
)

// Holder is an instance that holds the beginning of a prompt.
type Holder struct {
	Address string // the URL by which routers know it
	Blocks  int    // of the prompt, by all media of the rank that reaches furthest, pools included
	Held    int    // blocks on its devices
}

// Holders returns the instances that hold the first of some client hashes, of all deployments of a
// model and a block size that the client may see, longest prefix first, of equal ones the first by
// address. See rule SMG-1 in docs/semantics.md. The error is that of Answer.
func (v View) Holders(model string, blockSize int, clientHashes []uint64) (all []Holder, err error) {
	c := v.conductor
	for _, d := range v.deploymentsOf(model) {
		if d.key.BlockSize != blockSize {
			continue
		}
		q := Query{Tenant: d.key.Tenant, Model: model, BlockSize: blockSize, ByClientHash: true, ClientHashes: clientHashes, MinMatched: 1}
		p := Partition{Tenant: d.key.Tenant, Model: model}
		take := func(ans *Answer) {
			for i := range ans.Rows {
				all = c.appendHolder(all, p, blockSize, &ans.Rows[i])
			}
		}
		if err := v.Answer(&q, take); err != nil {
			return nil, err
		}
		if q.SearchUnscoped = c.HasUnscoped(); q.SearchUnscoped {
			if err := v.Answer(&q, take); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(b.Blocks-a.Blocks, strings.Compare(a.Address, b.Address), b.Held-a.Held)
	})
	known := make(map[string]bool, len(all)) // instances of several tenants may have one address
	return slices.DeleteFunc(all, func(h Holder) bool {
		again := known[h.Address]
		known[h.Address] = true
		return again
	}), nil
}

// appendHolder appends the holder of a row, if routers know it and a rank of it holds the first
// block.
func (c *Conductor) appendHolder(all []Holder, p Partition, blockSize int, row *Row) []Holder {
	h := Holder{Address: workerAddress(row.Instance)}
	for _, r := range row.Ranks {
		h.Blocks = max(h.Blocks, r.External)
	}
	if h.Address == "" || h.Blocks == 0 {
		return all
	}
	for _, r := range row.Ranks {
		h.Held += c.Held(p, blockSize, row.Instance, r.Rank)
	}
	return append(all, h)
}
