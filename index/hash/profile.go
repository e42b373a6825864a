package hash

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Strategies, algorithms, projections and extra keys by the names profiles give
// them.
const (
	StrategyVLLM         = "vllm_v1"
	StrategySGLang       = "sglang"
	StrategySGLangBigram = "sglang_bigram"

	AlgorithmSHA256CBOR = "sha256_cbor"
	AlgorithmSHA256     = "sha256" // of a pickle, vLLM's default
	AlgorithmXXHashCBOR = "xxhash_cbor"
	AlgorithmXXHash     = "xxhash" // of a pickle
	AlgorithmPages      = "sha256_raw"

	ProjectionLow64   = "low64_be"
	ProjectionFirst64 = "first64_be"

	ExtraKeysUntagged = "untagged"
	ExtraKeysTagged   = "tagged"
)

// DefaultRootSeed is the text that vLLM hashes to its root where PYTHONHASHSEED is
// unset. Older ones take a random root there, and so do the xxhash algorithms.
const DefaultRootSeed = "vllm-none-hash"

// Settings are what a profile is written as, the hash_profile object of registrations. The tags have the names of the
// fields there, and their values; the comment above a field is its description in openapi.yaml.
type Settings struct {
	// sglang_bigram is SGLang with EAGLE.
	Strategy string `name:"strategy" required:"yes" words:"vllm_v1|sglang|sglang_bigram"`

	// vLLM's --prefix-caching-hash-algo; sha256_raw for SGLang.
	Algorithm string `name:"algorithm" required:"yes" words:"sha256|sha256_cbor|xxhash|xxhash_cbor|sha256_raw"`

	// The engine's PYTHONHASHSEED, as it is written: 0 is not 00. vllm-none-hash is that of newer vLLM where it is not
	// set; "0" for SGLang.
	PythonHashSeed string `name:"python_hash_seed" required:"yes"`

	// low64_be for vLLM, first64_be for SGLang.
	IndexProjection string `name:"index_projection" required:"yes" words:"low64_be|first64_be"`

	// The root that follows, in lower-case hexadecimal digits; given, it must be that.
	RootDigest string `name:"root_digest" derived:"yes"`

	// How adapter and salt enter a block of vLLM: as they are (untagged, the default) or with their domain.
	ExtraKeys string `name:"extra_keys" words:"untagged|tagged"`
}

// ProfileError says which field of Settings is wrong, and why.
type ProfileError struct{ Field, Reason string }

func (e *ProfileError) Error() string { return e.Reason }

// algorithm is a way of hashing a block.
type algorithm uint8

const (
	sha256CBOR algorithm = iota + 1
	sha256Pickle
	xxhashCBOR
	xxhashPickle
	sha256Pages
	sha256Bigrams
)

// vllmAlgorithms are those of StrategyVLLM.
var vllmAlgorithms = map[string]algorithm{
	AlgorithmSHA256CBOR: sha256CBOR,
	AlgorithmSHA256:     sha256Pickle,
	AlgorithmXXHashCBOR: xxhashCBOR,
	AlgorithmXXHash:     xxhashPickle,
}

// Profile is how an engine names its blocks. Profiles are equal (==) exactly if
// they were made of settings that mean the same. The zero value is none.
type Profile struct {
	algorithm algorithm
	tagged    bool
	ahead     int // look-ahead in tokens, see WithAhead
	seed      string
	root      Digest
}

// NewProfile checks settings. Its errors are of type *ProfileError.
func NewProfile(s Settings) (Profile, error) {
	fail := func(field, format string, args ...any) (Profile, error) {
		return Profile{}, &ProfileError{field, fmt.Sprintf(format, args...)}
	}
	for _, f := range [...]struct{ name, value string }{
		{"strategy", s.Strategy},
		{"algorithm", s.Algorithm},
		{"python_hash_seed", s.PythonHashSeed},
		{"index_projection", s.IndexProjection},
	} {
		if f.value == "" {
			return fail(f.name, "%s must not be empty", f.name)
		}
	}

	// The order of the checks is that of the Conductor whose objects these are.
	p := Profile{algorithm: vllmAlgorithms[s.Algorithm], seed: s.PythonHashSeed}
	if p.algorithm == 0 && s.Algorithm != AlgorithmPages {
		return fail("algorithm", "unsupported hash algorithm: %s", s.Algorithm)
	}
	projection := ProjectionFirst64
	switch s.Strategy {
	case StrategyVLLM:
		projection = ProjectionLow64
	case StrategySGLang, StrategySGLangBigram:
	default:
		return fail("strategy", "unsupported hash strategy: %s", s.Strategy)
	}
	if (p.algorithm == 0) != (s.Strategy != StrategyVLLM) {
		return fail("algorithm", "hash algorithm %s is not one of strategy %s", s.Algorithm, s.Strategy)
	}
	if s.IndexProjection != projection {
		return fail("index_projection", "unsupported index projection: %s", s.IndexProjection)
	}

	if s.Strategy == StrategyVLLM {
		if reason := checkSeed(s.PythonHashSeed, p.algorithm); reason != "" {
			return fail("python_hash_seed", "%s", reason)
		}
		p.root = rootOf(p.algorithm, p.seed)
	} else {
		if s.PythonHashSeed != "0" {
			return fail("python_hash_seed", "python_hash_seed must be \"0\" for strategy %s, which has none", s.Strategy)
		}
		p.algorithm = sha256Pages
		if s.Strategy == StrategySGLangBigram {
			p.algorithm, p.ahead = sha256Bigrams, 1
		}
	}
	if reason := p.checkRoot(s.RootDigest); reason != "" {
		return fail("root_digest", "%s", reason)
	}

	switch s.ExtraKeys {
	case "", ExtraKeysUntagged:
	case ExtraKeysTagged:
		if s.Strategy != StrategyVLLM {
			return fail("extra_keys", "strategy %s has no extra keys to be tagged", s.Strategy)
		}
		p.tagged = true
	default:
		return fail("extra_keys", "unsupported extra keys: %s", s.ExtraKeys)
	}
	return p, nil
}

// checkSeed returns the error of the text of a seed.
func checkSeed(text string, a algorithm) string {
	if !utf8.ValidString(text) {
		return "python_hash_seed must be valid UTF-8"
	}
	switch text {
	case "random":
		return ""
	case DefaultRootSeed:
		if a == xxhashCBOR || a == xxhashPickle {
			return "python_hash_seed must be set where the algorithm is xxhash, whose root is random without it"
		}
		return ""
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return `python_hash_seed must be "random" or ASCII decimal text in 0..4294967295`
		}
	}
	if _, err := strconv.ParseUint(text, 10, 32); err != nil {
		return "python_hash_seed must be in range 0..4294967295"
	}
	return ""
}

// checkRoot returns the error of a root that a registration takes for the
// profile's.
func (p Profile) checkRoot(text string) string {
	if text == "" {
		return ""
	}
	root, err := hex.DecodeString(text)
	if size := p.Size(); err != nil || len(root) != size || hex.EncodeToString(root) != text {
		return fmt.Sprintf("root_digest must be %d lower-case hexadecimal digits", 2*size)
	}
	if !bytes.Equal(root, p.root[:len(root)]) {
		return "root_digest does not match python_hash_seed"
	}
	return ""
}

// rootOf returns the parent of first blocks: the hash of the seed, which is encoded
// the way blocks are.
func rootOf(a algorithm, seed string) Digest {
	if a == sha256CBOR || a == xxhashCBOR {
		return a.sum(appendCBORText(nil, seed))
	}
	k := pickler{framing: true}
	k.writeProtocol()
	k.writeText(seed)
	return a.sum(k.finishPickle())
}

// sum hashes what a block was written as.
func (a algorithm) sum(b []byte) Digest {
	if a == xxhashCBOR || a == xxhashPickle {
		var d Digest
		h := xxh3.Hash128(b).Bytes()
		copy(d[:], h[:])
		return d
	}
	return sha256.Sum256(b)
}

// size is the length of the algorithm's digests in bytes.
func (a algorithm) size() int {
	if a == xxhashCBOR || a == xxhashPickle {
		return 16
	}
	return 32
}

// Summary returns the settings in a few words, which tell them from any others; "none" for
// the zero value.
func (s Settings) Summary() string {
	if s == (Settings{}) {
		return "none"
	}
	text := s.Strategy + " " + s.Algorithm
	if s.Strategy == StrategyVLLM {
		text += " seed " + s.PythonHashSeed
	}
	if s.ExtraKeys == ExtraKeysTagged {
		text += ", tagged extra keys"
	}
	return text
}

// Settings returns what the profile is written as, with its root.
func (p Profile) Settings() Settings {
	s := Settings{Strategy: StrategyVLLM, PythonHashSeed: p.seed, IndexProjection: ProjectionLow64,
		RootDigest: hex.EncodeToString(p.root[:p.Size()])}
	switch p.algorithm {
	case 0:
		return Settings{}
	case sha256Pages:
		s.Strategy, s.Algorithm, s.IndexProjection = StrategySGLang, AlgorithmPages, ProjectionFirst64
	case sha256Bigrams:
		s.Strategy, s.Algorithm, s.IndexProjection = StrategySGLangBigram, AlgorithmPages, ProjectionFirst64
	default:
		for name, a := range vllmAlgorithms {
			if a == p.algorithm {
				s.Algorithm = name
			}
		}
		s.ExtraKeys = ExtraKeysUntagged
		if p.tagged {
			s.ExtraKeys = ExtraKeysTagged
		}
	}
	return s
}

// WithAhead returns the profile of an engine that hashes a block together with the next
// ahead tokens. A strategy of SGLang fixes the look-ahead, and p comes back unchanged.
func (p Profile) WithAhead(ahead int) Profile {
	if p.algorithm != sha256Pages && p.algorithm != sha256Bigrams {
		p.ahead = ahead
	}
	return p
}

// Size returns the length of the profile's digests in bytes, 32 or 16.
func (p Profile) Size() int { return p.algorithm.size() }

// KeyOf returns the 64 bits of a digest that events name a block by. The rest of a
// digest of Size 16 is zero.
func (p Profile) KeyOf(d *Digest) uint64 { return p.algorithm.keyOf(d) }
