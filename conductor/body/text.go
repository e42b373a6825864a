package body

import (
	"bytes"
	"encoding/json"
	"iter"

	"example.com/conductor/conductor/prompt"
)

// Unquoted returns the text of a valid JSON string.
func Unquoted(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		panic("BUG: the scanner passed an invalid string: " + err.Error())
	}
	return []byte(v)
}

// Pairs yields name and value of each member of a valid JSON object.
func Pairs(raw []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for at := prompt.Space(raw, 1); raw[at] != '}'; {
			end, _, _ := prompt.String(raw, at)
			start, _ := prompt.Name(raw, at)
			name := string(Unquoted(raw[at:end]))
			at, _ = prompt.Skip(raw, start, prompt.MaxDepth)
			if !yield(name, raw[start:at]) {
				return
			}
			at = behindComma(raw, at)
		}
	}
}

// Elements yields the elements of a valid JSON array.
func Elements(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for at := prompt.Space(raw, 1); raw[at] != ']'; {
			end, _ := prompt.Skip(raw, at, prompt.MaxDepth)
			if !yield(raw[at:end]) {
				return
			}
			at = behindComma(raw, end)
		}
	}
}

func behindComma(raw []byte, at int) int {
	if at = prompt.Space(raw, at); raw[at] == ',' {
		at = prompt.Space(raw, at+1)
	}
	return at
}

// AppendString appends s as a JSON string, in the form of encoding/json. html reports
// whether it escapes <, > and &.
func AppendString[T string | []byte](dst []byte, s T, html bool) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || html && (c == '<' || c == '>' || c == '&') {
			return appendEscaped(dst, string(s), html)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

func appendEscaped(dst []byte, s string, html bool) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if err := e.Encode(s); err != nil {
		panic("BUG: a string cannot be encoded: " + err.Error())
	}
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte{'\n'})...)
}

// Token returns the token id that a JSON value spells: an unsigned integer of 32 bits.
func Token(text []byte) (uint32, bool) {
	v, ok := Unsigned(text)
	return uint32(v), ok && v <= 1<<32-1
}

// Hash returns the hash that a JSON value spells: an integer of 64 bits, unsigned or in
// two's complement.
func Hash(text []byte) (uint64, bool) {
	if len(text) == 0 || text[0] != '-' {
		return Unsigned(text)
	}
	v, ok := Unsigned(text[1:])
	return -v, ok && v <= 1<<63
}

// Unsigned returns the integer of 64 bits that digits spell.
func Unsigned(text []byte) (uint64, bool) {
	if len(text) > 20 {
		return 0, false
	}
	v := uint64(0)
	for _, c := range text {
		if c -= '0'; c > 9 {
			return 0, false
		}
		if v > (1<<64-1)/10 || v == (1<<64-1)/10 && c > 5 {
			return 0, false
		}
		v = 10*v + uint64(c)
	}
	return v, len(text) > 0
}
