package http

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/prompt"
)

// tokens reads the prompt: an array of token ids, each a u32, or the same in base64.
func (f *fields) tokens(r *body.Request, limit int) []uint32 {
	name, m := f.member("token_ids")
	packed, text := f.field("token_ids_b64")
	switch {
	case m == nil && text == nil:
		f.keepError(invalid.Field(name, "missing", "%s is required", name))
		return nil
	case m == nil:
		return f.packedTokens(r, packed, text, limit)
	case text != nil:
		f.keepError(invalid.Field(packed, "conflict", "%s and %s are both given", name, packed))
		return nil
	}
	if l := m.List; f.isList(name, m) && f.isWhole(name, &l, 4) && f.checkElements(name, &l, "a token id in 0..4294967295") &&
		f.checkLength(name, l.N, limit) {
		return r.Tokens[l.From:l.To]
	}
	return nil
}

// packedTokens reads token ids as little-endian u32 in base64.
func (f *fields) packedTokens(r *body.Request, name string, raw []byte, limit int) []uint32 {
	if f.codec.Type(raw) != body.Text {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be a string", name))
		return nil
	}
	from := len(r.Tokens)
	var err error
	r.Tokens, err = prompt.Base64(r.Tokens, f.codec.Text(raw))
	switch {
	case errors.Is(err, prompt.ErrWords):
		f.keepError(invalid.Field(name, "invalid_value", "%s must hold a multiple of 4 bytes", name))
	case err != nil:
		f.keepError(invalid.Field(name, "invalid_value", "%s must be base64 of the standard alphabet", name))
	case f.checkLength(name, len(r.Tokens)-from, limit):
		return r.Tokens[from:]
	}
	return nil
}

// hashes reads an array of 64-bit hashes under any of its names. Several names at once
// must agree.
func (f *fields) hashes(r *body.Request, limit int, names ...string) []uint64 {
	var found []uint64
	var from string
	for _, name := range names {
		name, m := f.member(name)
		if m == nil {
			continue
		}
		const want = "a 64-bit integer"
		l := m.List
		// An element that is not a number comes before a list that is too long, and that
		// before numbers that do not fit.
		if !f.isList(name, m) || !f.isWhole(name, &l, 8) || l.Other && !f.checkElements(name, &l, want) ||
			!f.checkLength(name, l.N, limit) ||
			!f.checkElements(name, &l, want) {
			return nil
		}
		given := r.Hashes[l.From:l.To]
		if from != "" && !slices.Equal(found, given) {
			f.keepError(invalid.Field(name, "conflict", "%s and %s are both given and differ", from, name))
			return nil
		}
		found, from = given, name
	}
	if from == "" {
		f.keepError(invalid.Field(names[0], "missing", "%s is required", names[0]))
	}
	return found
}

// isList refuses a value that is not an array.
func (f *fields) isList(name string, m *body.Member) bool {
	if !m.Read {
		f.keepError(invalid.Field(name, "not_array", "%s must be an array", name))
	}
	return m.Read
}

// isWhole refuses a bin that is no list of numbers of some bytes.
func (f *fields) isWhole(name string, l *body.List, size int) bool {
	if l.Rest != 0 {
		f.keepError(invalid.Field(name, "invalid_value", "%s must hold a multiple of %d bytes", name, size))
	}
	return l.Rest == 0
}

// checkElements refuses a list with an element of another kind.
func (f *fields) checkElements(name string, l *body.List, want string) bool {
	if l.Bad >= 0 {
		f.keepError(&invalid.FieldError{
			Field: name, Index: l.Bad, Reason: numberReason(f.codec, l.Text), Message: name + " element must be " + want,
		})
	}
	return l.Bad < 0
}

// checkLength refuses a list that is too long, at its first element that is too many.
func (f *fields) checkLength(name string, n, limit int) bool {
	if n > limit {
		f.keepError(&invalid.FieldError{Field: name, Index: limit, Reason: "out_of_range",
			Message: fmt.Sprintf("%s has %d elements, limits.max_tokens allows %d", name, n, limit)})
	}
	return n <= limit
}

// numberReason tells an integer that does not fit from any other value.
func numberReason(c body.Codec, text []byte) string {
	if c == body.Msgpack {
		if c.Type(text) == body.Integer {
			return "out_of_range"
		}
		return "invalid_type"
	}
	digits := text
	if digits[0] == '-' {
		digits = digits[1:]
	}
	if _, err := strconv.ParseFloat(string(text), 64); err == nil && !slices.ContainsFunc(digits, func(c byte) bool { return c-'0' > 9 }) {
		return "out_of_range"
	}
	return "invalid_type"
}
