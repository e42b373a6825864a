package mooncake

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"kvconductor/conductor/body"
	"kvconductor/conductor/prompt"
)

// A request in JSON becomes the same entries as one in msgpack: its fields in
// alphabetical order, of several with one name the last. Integers are exact if 64 bits
// hold them. A number with a fraction, an exponent or more bits is a float.

// jsonShape has the lists that the scanner reads into the buffers of a request.
var jsonShape = body.Shape{{Name: tokenField, Kind: body.Tokens(jsonToken)}, {Name: hashField, Kind: body.Hashes(body.Hash)}}

// jsonToken returns the token id that an element spells, an integer of 32 bits with sign.
func jsonToken(text []byte) (uint32, bool) {
	v, ok := body.Hash(text)
	if text[0] == '-' {
		return uint32(v), ok && int64(v) >= math.MinInt32 && int64(v) <= 0
	}
	return uint32(v), ok && v <= math.MaxInt32
}

// parseJSON reads the fields of a request. tail reports whether text may follow the
// object.
func (r *exchange) parseJSON(tail bool) error {
	members, end, err := r.Scan(jsonShape, body.Options{Limit: r.most, Depth: maxDepth, Tail: tail, Every: maxFields})
	switch {
	case err != nil && err.Reason == body.Syntax, !utf8.Valid(r.Src[end:]):
		if tail {
			return &failure{status: http.StatusBadRequest, text: "Invalid JSON"}
		}
		return r.form.invalid("Invalid JSON object")
	case err != nil, slices.ContainsFunc(members, func(m body.Member) bool { return !m.Read && crowded(m.Raw) }):
		return r.form.invalid("an object has too many fields")
	}
	r.entries = appendEntries(r.entries[:0], members)
	return nil
}

// appendEntries appends fields in alphabetical order.
func appendEntries(dst []entry, members []body.Member) []entry {
	for i := range members {
		dst = append(dst, entry{members[i].Name, jsonValue(&members[i])})
	}
	slices.SortFunc(dst, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return dst
}

// jsonEntries returns the fields of a JSON object that parseJSON has passed.
func jsonEntries(raw []byte) []entry {
	members, _, _ := new(body.Request).ScanText(raw, nil, body.Options{Every: maxFields})
	return appendEntries(nil, members)
}

func jsonValue(m *body.Member) value {
	switch m.Raw[0] {
	case '"':
		return value{kind: text, raw: body.Unquoted(m.Raw)}
	case '[':
		return value{kind: list, n: m.List.N, list: &m.List}
	case '{':
		return value{kind: dict, raw: m.Raw}
	case 'n':
		return value{kind: null}
	case 't', 'f':
		return value{kind: boolean}
	}
	bits, ok := body.Hash(m.Raw)
	if !ok {
		return value{kind: float}
	}
	return value{kind: integer, bits: bits, neg: m.Raw[0] == '-' && bits != 0}
}

// crowded reports whether an object in valid JSON has more than maxFields fields.
func crowded(raw []byte) bool {
	var fields [maxDepth + 1]int // by depth
	depth := 0
	for at := 0; at < len(raw); at++ {
		switch raw[at] {
		case '"':
			at, _, _ = prompt.String(raw, at)
			at--
		case '{':
			depth++
			fields[depth] = 1
		case '[':
			depth++
			fields[depth] = math.MinInt
		case '}', ']':
			depth--
		case ',':
			if fields[depth]++; fields[depth] > maxFields {
				return true
			}
		}
	}
	return false
}

// packAnswer appends an answer of the published dialect in msgpack. ok is false if src
// is not JSON.
func packAnswer(dst, src []byte) (_ []byte, ok bool) {
	at := prompt.Space(src, 0)
	end, ok := prompt.Skip(src, at, prompt.MaxDepth)
	if !ok || prompt.Space(src, end) != len(src) {
		return dst, false
	}
	dst, _ = packValue(dst, src, at)
	return dst, true
}

// packValue appends the valid value at src[at] and returns where it ends.
func packValue(dst, src []byte, at int) (_ []byte, end int) {
	switch c := src[at]; c {
	case '{':
		return packPairs(dst, src, at, '}', 0x80, 0xdf)
	case '[':
		return packPairs(dst, src, at, ']', 0x90, 0xdd)
	case '"':
		end, _, _ = prompt.String(src, at)
		return appendText(dst, body.Unquoted(src[at:end])), end
	case 'n':
		return appendNil(dst), at + len("null")
	case 't':
		return append(dst, 0xc3), at + len("true")
	case 'f':
		return append(dst, 0xc2), at + len("false")
	}
	end, _ = prompt.Number(src, at)
	number := src[at:end]
	switch bits, ok := body.Hash(number); {
	case !ok:
		v, _ := strconv.ParseFloat(string(number), 64)
		return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(v)), end
	case number[0] == '-' && bits > 0:
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), bits), end
	default:
		return appendUint(dst, bits), end
	}
}

// packPairs appends a map or a list that ends with last. fixed is the tag of a short one,
// which holds its length; long is the tag of a length in four bytes.
func packPairs(dst, src []byte, at int, last, fixed, long byte) (_ []byte, end int) {
	start, n := len(dst), 0
	dst = append(dst, long, 0, 0, 0, 0)
	for at = prompt.Space(src, at+1); src[at] != last; n++ {
		if last == '}' {
			dst, at = packValue(dst, src, at)
			at = prompt.Space(src, prompt.Space(src, at)+1) // behind the colon
		}
		dst, at = packValue(dst, src, at)
		if at = prompt.Space(src, at); src[at] == ',' {
			at = prompt.Space(src, at+1)
		}
	}
	if n <= 15 {
		dst = slices.Delete(dst, start+1, start+5)
		dst[start] = fixed | byte(n)
	} else {
		binary.BigEndian.PutUint32(dst[start+1:], uint32(n))
	}
	return dst, at + 1
}

// appendJSON writes the first value of an answer in JSON and returns the rest of packed.
func appendJSON(dst, packed []byte) (_, rest []byte) {
	v, rest, ok := readHead(packed)
	switch {
	case !ok:
		panic("BUG: an answer is not msgpack")
	case v.kind == null:
		return append(dst, "null"...), rest
	case v.kind == integer:
		return strconv.AppendUint(dst, v.bits, 10), rest // answers have no others
	case v.kind == text:
		return body.AppendString(dst, v.raw, false), rest
	case v.kind == list:
		dst = append(dst, '[')
		for i := range v.n {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst, rest = appendJSON(dst, rest)
		}
		return append(dst, ']'), rest
	case v.kind == dict:
		dst = append(dst, '{')
		for i := range v.n {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst, rest = appendJSON(dst, rest)
			dst, rest = appendJSON(append(dst, ':'), rest)
		}
		return append(dst, '}'), rest
	}
	panic("BUG: an answer has a value that JSON has no form for: " + strconv.Itoa(int(v.kind)))
}
