package objectkey

import "strings"

// parseLabelled reads the keys of vLLM and vLLM-Ascend, from behind: the hash,
// perhaps with a layer after it, then parts with labels in any order, each at
// most once. The rest is the model, and whatever is before its @ a prefix.
func parseLabelled(text string) (Key, error) {
	k := blankKey(VLLM)
	rest, last := cutLast(text)
	role := ""
	if _, before := cutLast(rest); !k.label(before, &role) {
		layer, ok := natural(last)
		if !ok {
			return unlikeKey(text, "a hash behind the ranks, or a hash and a layer number")
		}
		rest, last = cutLast(rest)
		k.Layer = layer
	} else {
		k, role = blankKey(VLLM), ""
	}
	hash, ok := blockHash(last, 2)
	if !ok {
		return unlikeKey(text, wantHash)
	}
	k.Digest, k.Hash = last, hash
	for {
		before, part := cutLast(rest)
		if before == "" || !k.label(part, &role) {
			break
		}
		rest = before
	}
	k.Prefix, k.Model = cutLast(rest)
	switch {
	case k.Model == "" || strings.HasPrefix(rest, "@"):
		return unlikeKey(text, wantModel)
	case isLabel(k.Model):
		return unlikeKey(text, "every label once, with a number below 2^31 or a word")
	case k.TP < 0 && k.Head < 0, k.TP >= 0 && k.Head >= 0:
		return unlikeKey(text, "tp_rank or head_or_tp_rank, once, between model and hash")
	}
	// Ascend's first keys have TP and PP and nothing else; vLLM's that have PP
	// have the context parallel ranks too.
	first := k.PP >= 0 && k.PCP < 0 && k.DCP < 0 && k.Group < 0 && k.Prefix == ""
	if k.Head >= 0 || k.Family != "" || k.Layer >= 0 || first {
		k.Publisher = Ascend
	}
	if role != "" && role != "kv" {
		return Key{}, ErrAside
	}
	return k, nil
}

// isLabel reports whether a part begins like one with a label, whatever follows.
func isLabel(part string) bool {
	name, _, found := strings.Cut(part, ":")
	if !found {
		return false
	}
	switch name {
	case "tp_rank", "head_or_tp_rank", "pcp", "dcp", "pp_rank", "group", "layer_id", "cache_role", "cache_family":
		return true
	}
	return false
}

// label takes one part with a label into the key, and reports whether it was
// one, in order and for the first time.
func (k *Key) label(part string, role *string) bool {
	name, value, found := strings.Cut(part, ":")
	if !found { // pcp0, dcp0
		if len(part) < 4 {
			return false
		}
		if name, value = part[:3], part[3:]; name != "pcp" && name != "dcp" {
			return false
		}
	}
	to := (*int32)(nil)
	switch name {
	case "tp_rank":
		to = &k.TP
	case "head_or_tp_rank":
		to = &k.Head
	case "pcp":
		to = &k.PCP
	case "dcp":
		to = &k.DCP
	case "pp_rank":
		to = &k.PP
	case "group":
		to = &k.Group
	case "layer_id":
		to = &k.Layer
	case "cache_role":
		return once(role, value)
	case "cache_family":
		return once(&k.Family, value)
	default:
		return false
	}
	n, ok := natural(value)
	if !ok || *to >= 0 {
		return false
	}
	*to = n
	return true
}

func once(to *string, value string) bool {
	if value == "" || *to != "" {
		return false
	}
	*to = value
	return true
}

// parseCompact reads Ascend's keys without labels.
func parseCompact(text string) (Key, error) {
	const want = "model@hash@rank, model@group@hash@rank (a hash of at least 16 hex digits), " +
		"ranks like tp_rank:0 (vLLM, vLLM-Ascend), or at least five parts (LMCache)"
	k := blankKey(Ascend)
	rest, rank := cutLast(text)
	rest, k.Digest = cutLast(rest)
	var ok bool
	if k.Hash, ok = blockHash(k.Digest, 16); !ok {
		return unlikeKey(text, want)
	}
	if k.Worker, ok = natural(rank); !ok {
		return unlikeKey(text, want)
	}
	model, group, grouped := strings.Cut(rest, "@")
	if grouped {
		if k.Group, ok = natural(group); !ok {
			return unlikeKey(text, want)
		}
	}
	if k.Model = model; model == "" {
		return unlikeKey(text, want)
	}
	return k, nil
}

// cutLast cuts at the last @; without one everything is last.
func cutLast(text string) (before, last string) {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return "", text
	}
	return text[:at], text[at+1:]
}
