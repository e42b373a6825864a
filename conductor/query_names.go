package conductor

import (
	"strings"

	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// HashKind says what the hashes of a query are. A router that hashes prompts as its engines do
// need not send tokens.
type HashKind uint8

const (
	// CanonicalHashes are keys of the index: rule HASH-1 in docs/semantics.md.
	CanonicalHashes HashKind = iota
	// EngineHashes are what engines called blocks when they announced tokens for them.
	EngineHashes
	// VLLMHashes and SGLangHashes are digests that the client has computed as these engines do.
	// They also find blocks that no engine has announced with tokens: rule QUERY-8.
	VLLMHashes
	SGLangHashes
)

// hashKinds are the names of the kinds, in the order of the constants.
var hashKinds = []string{"canonical", "engine", "vllm", "sglang"}

// ParseHashKind reads the name of a kind; "" is that of CanonicalHashes. field is for errors.
func ParseHashKind(field, name string) (HashKind, error) {
	if name == "" {
		return CanonicalHashes, nil
	}
	for i, known := range hashKinds {
		if name == known {
			return HashKind(i), nil
		}
	}
	return 0, Invalid(field, "invalid_value", "%s must be one of %s, got %.32q", field, strings.Join(hashKinds, ", "), name)
}

// mayWait reports whether blocks may wait under the hashes of a query: they are digests, and no
// profile says that the engines of the model compute other ones.
func (d *deployment) mayWait(q *Query) bool {
	if q.HashKind != VLLMHashes && q.HashKind != SGLangHashes {
		return false
	}
	profile, known := d.profile(q.Lora)
	return !known || (profile.Settings().Strategy == hash.StrategyVLLM) == (q.HashKind == VLLMHashes)
}

// matchNamesAcross looks the hashes of a query up as names in the context x, which may be nil, and
// among the blocks that wait in the contexts sc.waiters.
func (sc *scratch) matchNamesAcross(x *indexContext, q *Query) []tiers.Owner {
	base := x
	if base == nil {
		base = sc.waiters[0]
	}
	sc.hashes, sc.lookups = q.Hashes, sc.lookups[:0]
	for i, w := range sc.waiters {
		if x != nil || i > 0 {
			sc.lookups = append(sc.lookups, index.Lookup{Index: w.index, Chain: &sc.hashes, First: uint32(i+1) << placeShift})
		}
	}
	if x != nil {
		x.index.MatchNamesAcross(0, q.Hashes, sc.lookups, &sc.match)
	} else {
		base.index.MatchAcross(index.Lookup{Chain: &sc.hashes}, sc.lookups, &sc.match)
	}
	clear(sc.lookups)
	return sc.renumberOwners(base)
}
