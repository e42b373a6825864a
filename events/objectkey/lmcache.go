package objectkey

import "strings"

// maxType bounds a dtype, so that none is long enough to hold a page hash.
const maxType = 32

// parseChunk reads the keys of LMCache. A chunk's hash is an integer: written
// without leading zeros, and below zero with Python's own hash.
func parseChunk(text string) (Key, error) {
	const want = "fmt@model@world@worker@hash[@dtype][@layer] or model@world@worker@hash@dtype[@layer], then k%v (LMCache)"
	k := blankKey(LMCache)
	rest := text
	for { // tags, from behind
		before, tag := cutLast(rest)
		if before == "" || strings.IndexByte(tag, '%') < 0 {
			break
		}
		rest = before
	}
	if len(rest) < len(text) {
		k.Tags = text[len(rest)+1:]
	}
	var parts [7]string
	n := 0
	for left, more := rest, true; more; n++ {
		if n == len(parts) {
			return unlikeKey(text, want)
		}
		parts[n], left, more = strings.Cut(left, "@")
		if parts[n] == "" {
			return unlikeKey(text, want)
		}
	}
	p := parts[:n]
	if n < 5 {
		return unlikeKey(text, want)
	}
	// Without fmt the dtype is the fifth part; with it the fifth is the hash.
	if !elementType(p[4]) {
		k.Namespace, p = p[0], p[1:]
	}
	var world, worker, ok bool
	k.Model, k.Digest = p[0], p[3]
	k.World, world = natural(p[1])
	k.Worker, worker = natural(p[2])
	k.Hash, ok = chunkHash(p[3])
	if !world || !worker || !ok {
		return unlikeKey(text, want)
	}
	p = p[4:]
	if len(p) > 0 && elementType(p[0]) {
		k.DType, p = p[0], p[1:]
	}
	if len(p) > 0 {
		if k.Layer, ok = natural(p[0]); !ok {
			return unlikeKey(text, want)
		}
		p = p[1:]
	}
	if len(p) > 0 {
		return unlikeKey(text, want)
	}
	return k, nil
}

func chunkHash(s string) (uint64, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	h, ok := low64(digits)
	if negative {
		h = -h
	}
	return h, ok
}

// elementType reports whether s looks like the name of a dtype: lower-case
// letters, digits and underscores, and not all of it hex digits.
func elementType(s string) bool {
	if s == "" || len(s) > maxType || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	hexOnly := true
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
		hexOnly = hexOnly && nibble[c] < 16
	}
	return !hexOnly
}
