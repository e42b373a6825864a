package mooncake

import (
	"strconv"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/registration"
)

// profile says how an engine hashes, so that blocks can be found by its hashes. The
// dialect knows fewer ways than the Conductor does.
type profile struct {
	strategy, algorithm, seed, projection string
}

var profileFields = body.Of("strategy", "algorithm", "python_hash_seed", "index_projection")

// profile reads hash_profile; nil when it is absent or nil.
func (f *fields) profile() *profile {
	m := f.optional("hash_profile")
	if m == nil || f.err != nil {
		return nil
	}
	codec := f.d.cfg.Codec
	if f.kind(m) != body.Object {
		f.fail(bad(m.Name, "invalid_type", "hash_profile must be %s",
			map[body.Codec]string{body.JSON: "an object", body.Msgpack: "a map"}[codec]))
		return nil
	}
	members, _, err := new(body.Request).ScanText(m.Raw, profileFields, body.Options{Codec: codec, Every: maxFields})
	switch {
	case err != nil && err.Reason == body.TooMany:
		f.fail(f.d.invalid("hash_profile has too many fields"))
		return nil
	case err != nil:
		f.fail(f.d.invalid("map keys must be strings"))
		return nil
	case codec == body.JSON:
		sortFields(members)
	}
	in := fields{d: f.d, members: members}
	in.only(profileFields)
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
func (p *profile) settings() registration.HashProfile {
	if p == nil {
		return registration.HashProfile{}
	}
	return registration.HashProfile{Strategy: p.strategy, Algorithm: p.algorithm, PythonHashSeed: p.seed, IndexProjection: p.projection}
}

// writeProfile writes a registered profile, with its root; nil for none.
func writeProfile(e *body.Encoder, p registration.HashProfile) {
	if p == (registration.HashProfile{}) {
		e.Null()
		return
	}
	e.Map(5)
	e.TextField("strategy", p.Strategy)
	e.TextField("algorithm", p.Algorithm)
	e.TextField("python_hash_seed", p.PythonHashSeed)
	e.TextField("root_digest", p.RootDigest)
	e.TextField("index_projection", p.IndexProjection)
	e.EndMap()
}
