package mooncake

import "slices"

// tokenField and hashField are the fields of a prompt.
const (
	tokenField = "token_ids"
	hashField  = "seq_hashes"
)

// ahead is the token ids that are read while the end of their list is looked for, so
// that most lists are walked once. It is of the first list of that name alone.
type ahead struct {
	raw  []byte // contents of the list
	n    int    // elements read, into exchange.Tokens
	next int    // where the one behind them is in raw
}

// list reads the value of a token field as read does, and of a list that is no longer
// than most the token ids it begins with.
func (r *exchange) list(src []byte, depth, most int) (v value, rest []byte, ok bool) {
	v, inside, ok := readHead(src)
	if !ok || v.kind != list || v.n > most || v.n > len(inside) {
		return read(src, depth)
	}
	r.Tokens = slices.Grow(r.Tokens[:0], v.n)[:v.n]
	n, rest := readTokens(r.Tokens, inside)
	next := len(inside) - len(rest)
	if rest, ok = skip(rest, v.n-n, depth-1); !ok {
		return v, nil, false
	}
	v.raw = inside[:len(inside)-len(rest)]
	r.ahead = ahead{raw: v.raw, n: n, next: next}
	return v, rest, true
}

// of reports whether it is of a list.
func (a *ahead) of(v *value) bool {
	return a.n > 0 && len(v.raw) == len(a.raw) && &v.raw[0] == &a.raw[0]
}
