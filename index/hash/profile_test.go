package hash

import (
	"errors"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// wrong checks that settings are refused for a field, with a reason that has part
// in it.
func wrong(t *testing.T, s Settings, field, part string) {
	t.Helper()
	p, err := NewProfile(s)
	var e *ProfileError
	if !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Reason, part) || e.Error() != e.Reason {
		t.Errorf("%+v: error %#v, want field %q with %q", s, err, field, part)
	}
	if p != (Profile{}) {
		t.Errorf("%+v: a profile beside the error", s)
	}
}

func TestProfileFields(t *testing.T) {
	good := vllm(AlgorithmSHA256CBOR, "0", "")
	f := func(change func(*Settings), field, part string) {
		t.Helper()
		s := good
		change(&s)
		wrong(t, s, field, part)
	}
	f(func(s *Settings) { *s = Settings{} }, "strategy", "strategy must not be empty")
	f(func(s *Settings) { s.Algorithm = "" }, "algorithm", "algorithm must not be empty")
	f(func(s *Settings) { s.PythonHashSeed = "" }, "python_hash_seed", "python_hash_seed must not be empty")
	f(func(s *Settings) { s.IndexProjection = "" }, "index_projection", "index_projection must not be empty")
	for _, a := range []string{"md5", "sha512", "SHA256", "builtin", "sha256_cbor_64bit", " sha256"} {
		f(func(s *Settings) { s.Algorithm = a }, "algorithm", "unsupported hash algorithm: "+a)
	}
	f(func(s *Settings) { s.Strategy = "vllm_v2" }, "strategy", "unsupported hash strategy: vllm_v2")
	f(func(s *Settings) { s.Strategy = "VLLM_v1" }, "strategy", "unsupported hash strategy: VLLM_v1")
	f(func(s *Settings) { s.IndexProjection = "high64_be" }, "index_projection", "unsupported index projection: high64_be")
	f(func(s *Settings) { s.IndexProjection = ProjectionFirst64 }, "index_projection", "unsupported index projection: first64_be")
	f(func(s *Settings) { s.Algorithm = AlgorithmPages }, "algorithm", "not one of strategy vllm_v1")
	f(func(s *Settings) { s.Strategy = StrategySGLang }, "algorithm", "not one of strategy sglang")
	f(func(s *Settings) { s.ExtraKeys = "v2" }, "extra_keys", "unsupported extra keys: v2")
	// The first of several is the one the Conductor names.
	f(func(s *Settings) { s.Strategy, s.Algorithm, s.PythonHashSeed = "x", "y", "z" }, "algorithm", "y")
	f(func(s *Settings) { s.Strategy, s.IndexProjection, s.PythonHashSeed = "x", "y", "z" }, "strategy", "x")
	f(func(s *Settings) { s.IndexProjection, s.PythonHashSeed = "y", "z" }, "index_projection", "y")

	pages := sglang(StrategySGLang)
	pages.IndexProjection = ProjectionLow64
	wrong(t, pages, "index_projection", "unsupported index projection: low64_be")
	pages = sglang(StrategySGLangBigram)
	pages.PythonHashSeed = "1"
	wrong(t, pages, "python_hash_seed", "strategy sglang_bigram")
	pages = sglang(StrategySGLang)
	pages.ExtraKeys = ExtraKeysTagged
	wrong(t, pages, "extra_keys", "strategy sglang")
}

func TestSeedTexts(t *testing.T) {
	algorithms := []string{AlgorithmSHA256CBOR, AlgorithmSHA256, AlgorithmXXHashCBOR, AlgorithmXXHash}
	f := func(seed, part string) {
		t.Helper()
		for _, a := range algorithms {
			wrong(t, vllm(a, seed, ""), "python_hash_seed", part)
		}
	}
	for _, seed := range []string{"+1", "-1", " 0", "0 ", "0\n", "1.0", "Random", "random ", "not-a-seed", "０", "一"} {
		f(seed, `python_hash_seed must be "random" or ASCII decimal text in 0..4294967295`)
	}
	f("4294967296", "python_hash_seed must be in range 0..4294967295")
	f("99999999999999999999999", "python_hash_seed must be in range 0..4294967295")
	f("\xff", "valid UTF-8")
	for _, a := range algorithms[2:] {
		wrong(t, vllm(a, DefaultRootSeed, ""), "python_hash_seed", "random without it")
	}

	roots := map[string]bool{}
	for _, a := range algorithms {
		for _, seed := range []string{"0", "00", "random", "4294967295", "04294967295"} {
			p, err := NewProfile(vllm(a, seed, ""))
			must.Succeed(t, err)
			s := p.Settings()
			if s.PythonHashSeed != seed || s.Algorithm != a {
				t.Errorf("%s of %q became %+v", a, seed, s)
			}
			if roots[s.RootDigest] {
				t.Errorf("%s of %q: root %s is another's too", a, seed, s.RootDigest)
			}
			roots[s.RootDigest] = true
		}
	}
}

func TestRootDigests(t *testing.T) {
	f := func(algorithm, seed, root, part string) {
		t.Helper()
		s := vllm(algorithm, seed, "")
		s.RootDigest = root
		if part == "" {
			if _, err := NewProfile(s); err != nil {
				t.Error(err)
			}
			return
		}
		wrong(t, s, "root_digest", part)
	}
	const cbor = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
	const pickle = "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c"
	f(AlgorithmSHA256CBOR, "0", cbor, "")
	f(AlgorithmSHA256, "0", pickle, "")
	f(AlgorithmSHA256CBOR, "0", pickle, "does not match")
	f(AlgorithmSHA256CBOR, "00", cbor, "does not match")
	f(AlgorithmSHA256CBOR, "0", strings.ToUpper(cbor), "64 lower-case")
	f(AlgorithmSHA256CBOR, "0", cbor[:62], "64 lower-case")
	f(AlgorithmSHA256CBOR, "0", cbor+"00", "64 lower-case")
	f(AlgorithmSHA256CBOR, "0", "g"+cbor[1:], "64 lower-case")
	f(AlgorithmXXHashCBOR, "0", "1ebe36576dcb573f26b99533a20aaeca", "")
	f(AlgorithmXXHashCBOR, "0", cbor, "32 lower-case")

	s := sglang(StrategySGLang)
	s.RootDigest = strings.Repeat("0", 64)
	if _, err := NewProfile(s); err != nil {
		t.Error(err)
	}
	s.RootDigest = cbor
	wrong(t, s, "root_digest", "does not match")
}

// A profile is what its settings mean: made of what it says of itself it is equal,
// and to no other.
func TestProfilesCompare(t *testing.T) {
	seen := map[Profile]bool{}
	for _, s := range append(everyProfile(), vllm(AlgorithmSHA256, "1", ""), vllm(AlgorithmSHA256, "01", ""),
		vllm(AlgorithmSHA256, DefaultRootSeed, "")) {
		p, err := NewProfile(s)
		must.Succeed(t, err)
		again, err := NewProfile(p.Settings())
		if err != nil || again != p {
			t.Errorf("%+v: made again %+v, %v", s, again, err)
		}
		if seen[p] {
			t.Errorf("%+v is equal to another", s)
		}
		seen[p] = true
	}
	a, _ := NewProfile(vllm(AlgorithmSHA256, "0", ""))
	b, _ := NewProfile(vllm(AlgorithmSHA256, "0", ExtraKeysUntagged))
	if a != b {
		t.Error("leaving extra keys out differs from naming the usual ones")
	}
	if (Profile{}).Settings() != (Settings{}) {
		t.Error("no profile has settings")
	}
}
