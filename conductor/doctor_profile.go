package conductor

import (
	"fmt"
	"slices"
	"strings"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index/hash"
)

// A hash profile is believed because somebody wrote it down; what is found through it
// is nothing, without a word, where it is wrong. So the first blocks of an epoch that
// have tokens are hashed as it says, and compared with what the engine calls them:
//
//	event without a parent   by the chain, from the root
//	event with a parent      by the chain behind it, if the parent was compared
//
// Where a first block differs, what would fit is looked for. Blocks with multimodal
// items, which enter an engine's hash in ways that differ by version, are left out.

const (
	// How many blocks of an epoch are compared.
	doctorBlocks = 100
	// How many first blocks are tried under other profiles.
	doctorSearches = 8
	// How small a part of a published block may have been hashed.
	doctorParts = 16
)

// profileCheck is what comparing has come to in this epoch. run owns it.
type profileCheck struct {
	table    *map[string]hash.Profile // of the deployment, when it was looked at last
	adapters map[string]*adapterCheck
	doubt    *adapterCheck // whose finding names no cause
	compared int           // blocks
	searches int
	chain    hash.DigestChain
	digests  map[uint64]hash.Digest // of blocks that matched, by what the engine calls them
}

// adapterCheck is what the blocks of one adapter were compared with.
type adapterCheck struct {
	profile hash.Profile
	matched bool // one was equal
}

// lookAtProfile compares what a stored event calls its blocks with the profile of its
// context. Each published block was cut into so many parts.
func (s *source) lookAtProfile(ns *namespace, e *events.Event, parts int) {
	if ns == nil || e.Envelope || s.reg.pool() {
		return
	}
	d, c := ns.context.deployment, &s.doctor.profile
	if table := d.profiles.Load(); table != c.table {
		s.lookAgain(table)
	}
	if c.table == nil || c.compared >= doctorBlocks || e.Items != nil {
		return
	}
	lora, salt := ns.context.key.Lora, ns.context.key.Salt
	p, ok := (*c.table)[lora]
	ok = ok && !unnamed(lora) // the engine hashes the name or the number
	parent, known := c.digests[e.Parent]
	if !ok || e.HasParent && !known || paired(e, d.key.BlockSize) == nil || c.chain.Under(p.WithAhead(e.Ahead), lora, salt) != nil {
		return
	}
	if e.HasParent {
		c.chain.After(parent, e.Tokens, d.key.BlockSize)
	} else {
		c.chain.Reset(e.Tokens, d.key.BlockSize)
	}
	if s.compare(e, parts, ns.context, c.adapter(lora, p)); c.compared >= doctorBlocks {
		// What only comparing needs.
		c.chain, c.digests = hash.DigestChain{}, nil
	}
}

// adapter returns what is known of an adapter's blocks.
func (c *profileCheck) adapter(lora string, p hash.Profile) *adapterCheck {
	if c.adapters == nil {
		c.adapters, c.digests = make(map[string]*adapterCheck), make(map[uint64]hash.Digest)
	}
	a := c.adapters[lora]
	if a == nil {
		a = &adapterCheck{profile: p}
		c.adapters[lora] = a
	}
	return a
}

// compare compares the blocks of an event with the chain.
func (s *source) compare(e *events.Event, parts int, x *indexContext, a *adapterCheck) {
	c := &s.doctor.profile
	written := a.profile.Settings()
	if e.Bigram != (written.Strategy == hash.StrategySGLangBigram) {
		c.compared++
		s.misfit(e, parts, written, x, a)
		return
	}
	for last := parts - 1; last < min(len(e.Hashes), c.chain.Len()) && c.compared < doctorBlocks; last += parts {
		c.compared++
		if c.chain.At(last) != e.Hashes[last] {
			if !e.HasParent && last < parts {
				s.misfit(e, parts, written, x, a)
			}
			return // it has extra keys that nobody tells
		}
		c.digests[e.Hashes[last]] = *c.chain.Digest(last)
		a.matched = true
		if c.doubt == a {
			c.doubt = nil
			s.withdraw(FindingProfile)
		}
	}
}

// lookAgain begins anew if the registrations have given an adapter that was looked at
// another profile.
func (s *source) lookAgain(table *map[string]hash.Profile) {
	c := &s.doctor.profile
	c.table = table
	for lora, a := range c.adapters {
		if table == nil || (*table)[lora] != a.profile {
			s.withdraw(FindingProfile)
			*c = profileCheck{table: table}
			return
		}
	}
}

// misfit reports that the first block of a prompt has another hash than the profile
// says.
func (s *source) misfit(e *events.Event, parts int, registered HashProfile, x *indexContext, a *adapterCheck) {
	c := &s.doctor.profile
	seen := fmt.Sprintf("the engine calls the first block of a prompt %#x, the hash profile of its context (%s)", e.Hashes[parts-1], profileText(registered))
	if c.chain.Len() < parts {
		seen += " nothing without the token behind it"
	} else {
		seen += fmt.Sprintf(" %#x", c.chain.At(parts-1))
	}
	if c.searches < doctorSearches {
		c.searches++
		if fit := fitting(e, parts, registered, x); fit != "" {
			c.doubt, c.compared = nil, doctorBlocks
			s.withdraw(FindingProfile) // one without a cause
			s.find(FindingProfile, "%s: %s fits; until that is registered, blocks announced without tokens are not found through the profile", seen, fit)
			return
		}
	}
	if a.matched || c.doubt != nil || e.Bigram {
		return
	}
	c.doubt = a
	s.find(FindingProfile, "%s, and nothing usual fits: %s; blocks announced without tokens are not found through the profile", seen, s.causeOfMisfit(e, x))
}

// causeOfMisfit names the likeliest reason why no usual profile gives a block its hash.
func (s *source) causeOfMisfit(e *events.Event, x *indexContext) string {
	const seed = "seed or algorithm differ, or the engine's root is random because PYTHONHASHSEED is not set"
	switch {
	case x.key.Lora != "" && s.reg.Type == TypeSGLang:
		return "the engine hashes the adapter in a form that no profile describes"
	case x.key.Lora != "":
		return "vLLM hashes the path of an adapter, which it does not publish, so no profile fits blocks of adapters"
	case e.Ahead > 0 && !e.Bigram:
		return fmt.Sprintf("the engine hashes its look-ahead (%d) in another form; else %s", e.Ahead, seed)
	}
	return seed
}

// fitting says in which ways a profile that gives the first block of an event its
// hash differs from the registered one, "" if none does.
func fitting(e *events.Event, parts int, registered HashProfile, x *indexContext) string {
	var chain hash.DigestChain
	size := x.deployment.key.BlockSize
	published := parts * size
	for _, written := range others(registered, e.Bigram) {
		p, err := hash.NewProfile(written)
		if err != nil {
			continue
		}
		p = p.WithAhead(e.Ahead)
		for _, under := range slices.Compact([]scope.Variant{x.key, {Lora: x.key.Lora}, {Salt: x.key.Salt}, {}}) {
			if chain.Under(p, under.Lora, under.Salt) != nil {
				continue
			}
			for n := range doctorParts + 1 {
				tried := size // first as registered
				if n > 0 {
					tried = published / n
				}
				if tried == 0 || published%tried != 0 || tried == size && n > 0 {
					continue
				}
				chain.Reset(e.Tokens, tried)
				if last := published/tried - 1; last < chain.Len() && chain.At(last) == e.Hashes[parts-1] {
					return differences(registered, p.Settings(), x, under, tried)
				}
			}
		}
	}
	return ""
}

// others lists the profiles worth a try, the registered one first: with other block
// sizes or without salt it may be right.
func others(registered HashProfile, bigram bool) (all []HashProfile) {
	if bigram {
		return []HashProfile{{Strategy: hash.StrategySGLangBigram, Algorithm: hash.AlgorithmPages, PythonHashSeed: "0", IndexProjection: hash.ProjectionFirst64}}
	}
	seeds := []string{"0", hash.DefaultRootSeed, "random"}
	if seed := registered.PythonHashSeed; !slices.Contains(seeds, seed) {
		seeds = append(seeds, seed)
	}
	all = append(all, registered)
	encodings := []string{hash.ExtraKeysUntagged, hash.ExtraKeysTagged}
	if registered.ExtraKeys == hash.ExtraKeysTagged {
		slices.Reverse(encodings) // without extra keys the two are one
	}
	for _, extra := range encodings {
		for _, algorithm := range []string{hash.AlgorithmSHA256, hash.AlgorithmSHA256CBOR, hash.AlgorithmXXHash, hash.AlgorithmXXHashCBOR} {
			for _, seed := range seeds {
				all = append(all, HashProfile{
					Strategy: hash.StrategyVLLM, Algorithm: algorithm, PythonHashSeed: seed, IndexProjection: hash.ProjectionLow64, ExtraKeys: extra,
				})
			}
		}
	}
	return append(all, HashProfile{Strategy: hash.StrategySGLang, Algorithm: hash.AlgorithmPages, PythonHashSeed: "0", IndexProjection: hash.ProjectionFirst64})
}

// differences tells what fits from what is registered.
func differences(registered, fits HashProfile, x *indexContext, under scope.Variant, size int) string {
	var list []string
	add := func(what, fits, registered string) {
		if fits != registered {
			list = append(list, fmt.Sprintf("%s %q instead of %q", what, fits, registered))
		}
	}
	add("strategy", fits.Strategy, registered.Strategy)
	add("algorithm", fits.Algorithm, registered.Algorithm)
	add("index_projection", fits.IndexProjection, registered.IndexProjection)
	add("python_hash_seed", fits.PythonHashSeed, registered.PythonHashSeed)
	if fits.ExtraKeys == hash.ExtraKeysTagged || registered.ExtraKeys == hash.ExtraKeysTagged {
		add("extra_keys", fits.ExtraKeys, registered.ExtraKeys)
	}
	add("adapter", under.Lora, x.key.Lora)
	add("salt", under.Salt, x.key.Salt)
	if size != x.deployment.key.BlockSize {
		list = append(list, fmt.Sprintf("block_size %d instead of %d", size, x.deployment.key.BlockSize))
	}
	return strings.Join(list, ", ")
}
