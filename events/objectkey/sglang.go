package objectkey

import (
	"encoding/hex"
	"strings"
)

const pageDigits = 64 // of SHA-256

// pageHash finds the last run of exactly 64 hex digits that has an underscore
// behind it, and the beginning or an underscore before it; -1 is none.
func pageHash(s string) int {
	for end := len(s); end > pageDigits; {
		end = strings.LastIndexByte(s[:end], '_')
		start := end - pageDigits
		if start < 0 {
			return -1
		}
		if start > 0 && s[start-1] != '_' {
			continue
		}
		if _, ok := low64(s[start:end]); ok {
			return start
		}
	}
	return -1
}

// parsePage reads the keys of SGLang. Up to two ranks follow the hash. Of MLA,
// whose pages are the same for all tensor-parallel ranks, the only rank there may
// be is the pipeline's, and text does not tell it from a tensor-parallel one: it
// reads as TP.
func parsePage(text string, at int) (Key, error) {
	const want = "_k, __k or _v, or ranks and then _k or _v, behind the page hash"
	k := blankKey(SGLang)
	if at > 0 {
		k.Namespace = text[:at-1]
		if text[at-1] != '_' || k.Namespace == "" {
			return unlikeKey(text, "a namespace and an underscore, or nothing, before the page hash")
		}
	}
	k.Digest = text[at : at+pageDigits]
	k.Hash, _ = low64(k.Digest[:hex.EncodedLen(8)])
	rest := text[at+pageDigits+1:]
	if fused, ok := strings.CutPrefix(rest, "_"); ok {
		if fused == "k" {
			k.Part = Keys
			return k, nil
		}
		return aside(text, fused, want)
	}
	for _, to := range []*int32{&k.TP, &k.PP} {
		word, after, found := strings.Cut(rest, "_")
		n, ok := natural(word)
		if !found || !ok {
			break
		}
		*to, rest = n, after
	}
	switch {
	case rest == "k":
		k.Part = Keys
	case rest == "v":
		k.Part = values
	case k.TP >= 0:
		return aside(text, rest, want)
	default:
		return unlikeKey(text, want)
	}
	return k, nil
}

// aside tells a side pool's name (draft_k, temporal, conv_0) from other texts.
func aside(text, pool, want string) (Key, error) {
	if pool == "" || pool[0] < 'a' || pool[0] > 'z' || pool == "k" || pool == "v" {
		return unlikeKey(text, want)
	}
	for i := range len(pool) {
		if c := pool[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return unlikeKey(text, want)
		}
	}
	return Key{}, ErrAside
}
