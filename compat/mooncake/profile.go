package mooncake

import (
	"strconv"
	"unicode/utf8"

	"kvconductor/conductor"
)

// profile says how an engine hashes, so that blocks can be found by its hashes. The
// dialect knows fewer ways than the Conductor does.
type profile struct {
	strategy, algorithm, seed, projection string
}

// profile reads hash_profile; nil when it is absent or nil.
func (f *fields) profile() *profile {
	v := f.field("hash_profile")
	if v == nil || v.kind == null || f.err != nil {
		return nil
	}
	if v.kind != dict {
		f.fail(bad("hash_profile", "invalid_type", "hash_profile must be %s", f.form.dict()))
		return nil
	}
	if v.n > maxFields {
		f.fail(invalidBody("hash_profile has too many fields"))
		return nil
	}
	in := fields{}
	if f.form == JSON {
		in.entries = jsonEntries(v.raw)
	}
	rest := v.raw
	for range v.n {
		var e entry
		var key value
		key, rest, _ = read(rest, maxDepth)
		e.value, rest, _ = read(rest, maxDepth)
		if key.kind != text {
			f.fail(invalidBody("map keys must be strings"))
			return nil
		}
		e.name = string(key.raw)
		in.entries = append(in.entries, e)
	}
	in.only("strategy", "algorithm", "python_hash_seed", "index_projection")
	p := &profile{
		strategy: in.named("strategy"), algorithm: in.named("algorithm"),
		seed: in.named("python_hash_seed"), projection: in.named("index_projection"),
	}
	if in.err == nil {
		if err := p.check(); err != nil {
			in.fail(err)
		}
	}
	f.err = in.err
	return p
}

// named reads text that is there and not empty, whatever its bytes.
func (f *fields) named(name string) string {
	v := f.field(name)
	if v == nil {
		f.fail(missing(name))
		return ""
	}
	s, err := v.nonEmpty(name)
	if err != nil {
		f.fail(err)
	}
	return s
}

// check refuses values that name no way to hash.
func (p *profile) check() *failure {
	switch {
	case p.algorithm != "sha256_cbor" && p.algorithm != "sha256":
		return bad("algorithm", "invalid_value", "unsupported hash algorithm: %s", p.algorithm)
	case p.strategy != "vllm_v1":
		return bad("strategy", "invalid_value", "unsupported hash strategy: %s", p.strategy)
	case p.projection != "low64_be":
		return bad("index_projection", "invalid_value", "unsupported index projection: %s", p.projection)
	}
	return checkSeed(p.seed)
}

// checkSeed takes what Python takes for PYTHONHASHSEED, and leading zeros, which count.
func checkSeed(seed string) *failure {
	const field = "python_hash_seed"
	if seed == "random" {
		return nil
	}
	if !utf8.ValidString(seed) {
		return bad(field, "invalid_value", "python_hash_seed must be valid UTF-8")
	}
	for i := range len(seed) {
		if seed[i] < '0' || seed[i] > '9' {
			return bad(field, "invalid_value", `python_hash_seed must be "random" or ASCII decimal text in 0..4294967295`)
		}
	}
	if _, err := strconv.ParseUint(seed, 10, 32); err != nil {
		return bad(field, "invalid_value", "python_hash_seed must be in range 0..4294967295")
	}
	return nil
}

// settings is the profile as the Conductor has it; nil is none.
func (p *profile) settings() conductor.HashProfile {
	if p == nil {
		return conductor.HashProfile{}
	}
	return conductor.HashProfile{Strategy: p.strategy, Algorithm: p.algorithm, PythonHashSeed: p.seed, IndexProjection: p.projection}
}

// appendProfile writes a registered profile, with its root; nil for none.
func appendProfile(dst []byte, p conductor.HashProfile) []byte {
	if p == (conductor.HashProfile{}) {
		return appendNil(dst)
	}
	dst = appendMap(dst, 5)
	dst = appendTextField(dst, "strategy", p.Strategy)
	dst = appendTextField(dst, "algorithm", p.Algorithm)
	dst = appendTextField(dst, "python_hash_seed", p.PythonHashSeed)
	dst = appendTextField(dst, "root_digest", p.RootDigest)
	return appendTextField(dst, "index_projection", p.IndexProjection)
}
