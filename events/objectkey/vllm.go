package objectkey

import "strings"

// parseLabelled reads the keys of vLLM and vLLM-Ascend, from behind: the hash,
// perhaps with a layer after it, then parts like tp_rank:0 and pcp0 in any order.
// Each that we know may be there once. Parts that we do not know tell shards apart
// if they are behind or among the ones we know. What is before these is the
// namespace.
func parseLabelled(text string) (Key, error) {
	k := blankKey(VLLM)
	rest, last := cutLast(text)
	if before, part := cutLast(rest); strings.IndexByte(part, ':') < 0 && !isPart(cutPart(part)) {
		layer, ok := natural(last)
		if !ok {
			return unlikeKey(text, "a hash behind the ranks, or a hash and a layer number")
		}
		k.Layer, rest, last = layer, before, part
	}
	hash, ok := blockHash(last, 2)
	if !ok {
		return unlikeKey(text, wantHash)
	}
	k.Digest, k.Hash = last, hash
	k.Namespace = rest
	role, unknown := "", uint64(0) // of the parts since the last that we know
	for before, part := cutLast(rest); before != ""; before, part = cutLast(before) {
		name, value := cutPart(part)
		known, ok := k.readPart(name, value, &role)
		if !known && !isPart(name, value) {
			break
		}
		if !known {
			unknown += hashPart(part)
			continue
		}
		if !ok {
			return unlikeKey(text, "every label once, with a number below 2^31 or a word")
		}
		k.Namespace = before
		k.Further, unknown = k.Further+unknown, 0
	}
	if k.Model = likelyModel(k.Namespace); k.Model == "" || k.Namespace[0] == '@' {
		return unlikeKey(text, wantModel)
	}
	if k.TP < 0 && k.Head < 0 || k.TP >= 0 && k.Head >= 0 {
		return unlikeKey(text, "one of tp_rank and head_or_tp_rank behind the model, then only parts like pp_rank:0 or pcp0 up to the hash")
	}
	// Ascend's first keys have TP and PP and nothing else; vLLM's that have PP
	// have the context parallel ranks too.
	first := k.PP >= 0 && k.PCP < 0 && k.DCP < 0 && k.Group < 0 && k.Namespace == k.Model
	if k.Head >= 0 || k.Family != "" || k.Layer >= 0 || first {
		k.Publisher = Ascend
	}
	if role != "" && role != "kv" {
		return Key{}, ErrAside
	}
	return k, nil
}

// cutPart cuts name:value, or a name and the number behind it as in pcp0. Of other texts the name is
// empty.
func cutPart(part string) (name, value string) {
	if at := strings.IndexByte(part, ':'); at >= 0 {
		return part[:at], part[at+1:]
	}
	at := len(part)
	for at > 0 && part[at-1]-'0' <= 9 {
		at--
	}
	if at == len(part) {
		return "", ""
	}
	return part[:at], part[at:]
}

// isPart reports whether a name and its value may stand among the ranks. A name that has only
// hex digits is none, because with its number it could be a hash.
func isPart(name, value string) bool {
	_, digits := low64(name)
	return value != "" && !digits && isName(name)
}

// isName reports whether s consists of lower-case letters, digits and underscores, and
// begins with a letter.
func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (i == 0 || (c < '0' || c > '9') && c != '_') {
			return false
		}
	}
	return s != ""
}

// readPart takes a part into the key. It reports whether the part is one that we know,
// and whether it is in order and there for the first time.
func (k *Key) readPart(name, value string, role *string) (known, ok bool) {
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
		return true, once(role, value)
	case "cache_family":
		return true, once(&k.Family, value)
	default:
		return false, false
	}
	n, ok := natural(value)
	if !ok || *to >= 0 {
		return true, false
	}
	*to = n
	return true, true
}

func once(to *string, value string) bool {
	if value == "" || *to != "" {
		return false
	}
	*to = value
	return true
}

// hashPart returns a number for a part that we do not know. The numbers of several
// are added up, so that their order does not matter.
func hashPart(part string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(part) {
		h = (h ^ uint64(part[i])) * fnvPrime
	}
	return h
}

// likelyModel returns the model in [prefix@]model[@name:value...]: the last part that
// does not look like one of the store's namespace. A model in a form such as qwen:8b
// is found without a prefix only; see NamesModel.
func likelyModel(namespace string) string {
	for {
		before, last := cutLast(namespace)
		if before == "" || !isWord(last) {
			return last
		}
		namespace = before
	}
}

// isWord reports whether a part looks like one of a store's namespace: name:value.
func isWord(part string) bool { return strings.IndexByte(part, ':') >= 0 && isPart(cutPart(part)) }

// namesModel reports whether a namespace has the model behind nothing or a prefix, and
// before nothing or parts like store_pp:1. The name may itself have an @ or a colon.
func namesModel(namespace, model string) bool {
	for {
		if prefix, ok := strings.CutSuffix(namespace, model); ok && (prefix == "" || prefix[len(prefix)-1] == '@') {
			return true
		}
		before, last := cutLast(namespace)
		if before == "" || !isWord(last) {
			return false
		}
		namespace = before
	}
}

// maxDeclared bounds how many shards a layout may say that a block has.
const maxDeclared = 1 << 16

// leastShards returns how many shards a block has by the layout in its keys, 1 if that does not say:
// a layout that engines of several sizes share has store_tp of them for each of its store_pp stages.
func (k *Kind) leastShards() int {
	least := 1
	for before, part := cutLast(k.Namespace); isWord(part); before, part = cutLast(before) {
		name, value := cutPart(part)
		n, ok := natural(value)
		if ok && n > 0 && (name == "store_tp" || name == "store_pp") && least*int(n) <= maxDeclared {
			least *= int(n)
		}
	}
	return least
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
