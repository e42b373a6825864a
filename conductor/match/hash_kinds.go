package match

import (
	"slices"
	"strings"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/names"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
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

func (k HashKind) String() string { return hashKinds[k] }

// ParseHashKind reads the name of a kind; "" is that of CanonicalHashes. field is for errors.
func ParseHashKind(field, name string) (HashKind, error) {
	if name == "" {
		return CanonicalHashes, nil
	}
	if i := slices.Index(hashKinds, name); i >= 0 {
		return HashKind(i), nil
	}
	return 0, invalid.Field(field, "invalid_value", "%s must be one of %s, got %.32q", field, strings.Join(hashKinds, ", "), name)
}

// mayWait reports whether blocks may wait under the hashes of a query: they are digests, and no
// profile says that the engines of the model compute other ones.
func mayWait(d *catalog.Deployment, q *Query) bool {
	if q.HashKind != VLLMHashes && q.HashKind != SGLangHashes || !d.HasWaiting() {
		return false
	}
	profile, known := d.Profile(q.Lora)
	return !known || (profile.Settings().Strategy == hash.StrategyVLLM) == (q.HashKind == VLLMHashes)
}

// reach returns the block behind the last one that an owner holds.
func reach(m *index.Match) (end int) {
	for _, s := range m.Later {
		end = max(end, int(s.To))
	}
	return max(end, m.Blocks)
}

// lookupNames looks the hashes of a query up as names of an identity's blocks, and among the blocks that
// wait by them. Where engines are registered with an adapter or salt, the names of some may have the
// constant of that folded in, and of some not: the longest answer counts.
func (sc *scratch) lookupNames(d *catalog.Deployment, id *names.Identity, q *Query) {
	if sc.waiting = q.Hashes; mayWait(d, q) {
		sc.lookups = append(sc.lookups, index.Lookup{Chain: &sc.waiting, Loose: true})
		d.NoteAskedByDigests()
	}
	// Names lead from one block to the next, so behind a gap the keys of the blocks have to do.
	lookup := func(hashes []uint64) index.Lookup {
		if !sc.match.Gaps {
			return index.Lookup{Constant: id.Constant, Names: hashes}
		}
		sc.named = d.Index.Inspect().AppendKeys(sc.named[:0], id.Constant, hashes)
		return index.Lookup{Constant: id.Constant, Chain: &sc.named}
	}
	d.Names.Folds(id.Variant, func(fold uint64) bool {
		if fold == 0 {
			d.Index.Match(lookup(q.Hashes), sc.lookups, &sc.match)
			return true
		}
		sc.names = sc.names[:0]
		for _, h := range q.Hashes {
			sc.names = append(sc.names, h^fold)
		}
		sc.other.Gaps = sc.match.Gaps
		if d.Index.Match(lookup(sc.names), sc.lookups, &sc.other); reach(&sc.other) > reach(&sc.match) {
			sc.match, sc.other = sc.other, sc.match
		}
		return true
	})
	sc.waiting = nil
	clear(sc.lookups)
}
