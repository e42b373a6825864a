package doctor

import (
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
)

// An operator writes a hash profile down. Queries find nothing through a wrong profile,
// and no error shows it. So the doctor hashes the first blocks of an epoch that have
// tokens by the profile, and compares the result with the engine's hashes:
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

// profileCheck is how far comparing hashes with profiles has come in this epoch.
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

// observeProfile compares what a stored event calls its blocks with the profile of its
// context.
func (d *Doctor) observeProfile(o *Observation) {
	e, c, at := o.Cut, &d.profile, &o.Context
	if e.Envelope || d.reg.Pool {
		return
	}
	if o.Profiles != c.table {
		d.resetIfProfileChanged(o.Profiles)
	}
	if c.table == nil || c.compared >= doctorBlocks || e.Items != nil {
		return
	}
	lora, salt, size := at.Variant.Lora, at.Variant.Salt, at.Deployment.BlockSize
	p, ok := (*c.table)[lora]
	ok = ok && !scope.Unnamed(lora) // the engine hashes the name or the number
	parent, known := c.digests[e.Parent]
	if !ok || e.HasParent && !known || c.chain.SetProfile(p.WithAhead(e.Ahead), lora, salt) != nil {
		return
	}
	if e.HasParent {
		c.chain.ResetBehind(parent, e.Tokens, size)
	} else {
		c.chain.Reset(e.Tokens, size)
	}
	if d.compareBlocks(e, o.Parts, at, c.checkOf(lora, p)); c.compared >= doctorBlocks {
		// What only comparing needs.
		c.chain, c.digests = hash.DigestChain{}, nil
	}
}

// checkOf returns the state of the check for the blocks of an adapter, which it makes if need be.
func (c *profileCheck) checkOf(lora string, p hash.Profile) *adapterCheck {
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

// compareBlocks compares the hashes of an event with those of the chain, until one differs.
func (d *Doctor) compareBlocks(e *events.Event, parts int, at *scope.Context, a *adapterCheck) {
	c := &d.profile
	written := a.profile.Settings()
	if e.Bigram != (written.Strategy == hash.StrategySGLangBigram) {
		c.compared++
		d.reportMismatch(e, parts, written, at, a)
		return
	}
	for last := parts - 1; last < min(len(e.Hashes), c.chain.Len()) && c.compared < doctorBlocks; last += parts {
		c.compared++
		if c.chain.At(last) != e.Hashes[last] {
			if !e.HasParent && last < parts {
				d.reportMismatch(e, parts, written, at, a)
			}
			return // it has extra keys that no event contains
		}
		c.digests[e.Hashes[last]] = *c.chain.Digest(last)
		a.matched = true
		if c.doubt == a {
			c.doubt = nil
			d.Findings.Withdraw(FindingProfile)
		}
	}
}

// resetIfProfileChanged forgets all comparisons if an adapter that was looked at has
// another profile in table.
func (d *Doctor) resetIfProfileChanged(table *map[string]hash.Profile) {
	c := &d.profile
	c.table = table
	for lora, a := range c.adapters {
		if table == nil || (*table)[lora] != a.profile {
			d.Findings.Withdraw(FindingProfile)
			*c = profileCheck{table: table}
			return
		}
	}
}

// reportMismatch reports that the first block of a prompt has another hash than the profile
// says.
func (d *Doctor) reportMismatch(e *events.Event, parts int, registered hash.Settings, at *scope.Context, a *adapterCheck) {
	c := &d.profile
	seen := fmt.Sprintf("the engine calls the first block of a prompt %#x, the hash profile of its context (%s)", e.Hashes[parts-1],
		registered.Summary())
	if c.chain.Len() < parts {
		seen += " nothing without the token behind it"
	} else {
		seen += fmt.Sprintf(" %#x", c.chain.At(parts-1))
	}
	if c.searches < doctorSearches {
		c.searches++
		if fit := findMatchingProfile(e, parts, registered, at); fit != "" {
			c.doubt, c.compared = nil, doctorBlocks
			d.Findings.Withdraw(FindingProfile) // one without a cause
			d.Findings.Report(FindingProfile,
				"%s: %s fits; until that is registered, blocks announced without tokens are not found through the profile", seen, fit)
			return
		}
	}
	if a.matched || c.doubt != nil || e.Bigram {
		return
	}
	c.doubt = a
	d.Findings.Report(FindingProfile, "%s, and nothing usual fits: %s; blocks announced without tokens are not found through the profile",
		seen, d.causeOfMismatch(e, at))
}

// causeOfMismatch names the likeliest reason why no usual profile gives a block its hash.
func (d *Doctor) causeOfMismatch(e *events.Event, at *scope.Context) string {
	const seed = "seed or algorithm differ, or the engine's root is random because PYTHONHASHSEED is not set"
	switch {
	case at.Variant.Lora != "" && d.reg.SGLang:
		return "the engine hashes the adapter in a form that no profile describes"
	case at.Variant.Lora != "":
		return "vLLM hashes the path of an adapter, which it does not publish, so no profile fits blocks of adapters"
	case e.Ahead > 0 && !e.Bigram:
		return fmt.Sprintf("the engine hashes its look-ahead (%d) in another form; else %s", e.Ahead, seed)
	}
	return seed
}

// findMatchingProfile says in which ways a profile that gives the first block of an event its
// hash differs from the registered one, "" if none does.
func findMatchingProfile(e *events.Event, parts int, registered hash.Settings, at *scope.Context) string {
	var chain hash.DigestChain
	size := at.Deployment.BlockSize
	published := parts * size
	for _, written := range candidateProfiles(registered, e.Bigram) {
		p, err := hash.NewProfile(written)
		if err != nil {
			continue
		}
		p = p.WithAhead(e.Ahead)
		for _, under := range slices.Compact([]scope.Variant{at.Variant, {Lora: at.Variant.Lora}, {Salt: at.Variant.Salt}, {}}) {
			if chain.SetProfile(p, under.Lora, under.Salt) != nil {
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
					return describeDifferences(registered, p.Settings(), at, under, tried)
				}
			}
		}
	}
	return ""
}

// candidateProfiles lists the profiles worth a try, the registered one first: with other block
// sizes or without salt it may be right.
func candidateProfiles(registered hash.Settings, bigram bool) (all []hash.Settings) {
	if bigram {
		return []hash.Settings{{Strategy: hash.StrategySGLangBigram, Algorithm: hash.AlgorithmPages, PythonHashSeed: "0",
			IndexProjection: hash.ProjectionFirst64}}
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
				all = append(all, hash.Settings{
					Strategy: hash.StrategyVLLM, Algorithm: algorithm, PythonHashSeed: seed, IndexProjection: hash.ProjectionLow64,
					ExtraKeys: extra,
				})
			}
		}
	}
	return append(all, hash.Settings{Strategy: hash.StrategySGLang, Algorithm: hash.AlgorithmPages, PythonHashSeed: "0",
		IndexProjection: hash.ProjectionFirst64})
}

// describeDifferences says in words how the fitting settings differ from the registered ones.
func describeDifferences(registered, fits hash.Settings, at *scope.Context, under scope.Variant, size int) string {
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
	add("adapter", under.Lora, at.Variant.Lora)
	add("salt", under.Salt, at.Variant.Salt)
	if size != at.Deployment.BlockSize {
		list = append(list, fmt.Sprintf("block_size %d instead of %d", size, at.Deployment.BlockSize))
	}
	return strings.Join(list, ", ")
}
