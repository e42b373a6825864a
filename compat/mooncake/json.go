package mooncake

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"kvconductor/conductor/prompt"
)

// JSON is packed as msgpack when it comes in and unpacked when it goes out, so that
// everything between knows one form; so are answers of the published dialect packed for
// those who want them so.
//
//	{"b":[1,-2],"a":"x"} --packJSON--> 82 a1 61 a1 78 a1 62 dd 00 00 00 02 01 d3 ... --appendJSON--> {"a":"x","b":[1,-2]}
//
// The fields of an object are packed in alphabetical order, of several with one name
// the last alone. Integers are exact where 64 bits hold them. A number with a fraction
// or an exponent, or beyond 64 bits, is a float, whatever its value.

var (
	errMalformed = errors.New("not a JSON object")
	errFields    = errors.New("an object has too many fields")
)

// packJSON appends the object that src is. With more, text behind it is let be.
func packJSON(dst, src []byte, more bool) ([]byte, error) {
	return pack(dst, src, more, maxFields)
}

// packAnswer appends an answer of the published dialect, which may have any number of
// rows. A number that is not whole is not kept; those answers have none.
func packAnswer(dst, src []byte) ([]byte, error) { return pack(dst, src, false, math.MaxInt32) }

// pack is packJSON for objects of so many fields at most.
func pack(dst, src []byte, more bool, most int) ([]byte, error) {
	first := prompt.Space(src, 0)
	end, ok := prompt.Skip(src, first, prompt.MaxDepth)
	if !ok || src[first] != '{' || !more && prompt.Space(src, end) != len(src) || !utf8.Valid(src[end:]) {
		return dst, errMalformed
	}
	p := packers.Get().(*packer)
	p.src, p.dst, p.most = src[first:end], dst, most
	err := p.value(maxDepth)
	dst = p.dst
	p.src, p.dst, p.spare = nil, nil, prompt.Kept(p.spare, prompt.KeepBytes)
	packers.Put(p)
	return dst, err
}

// packer packs JSON that is known to be valid.
type packer struct {
	src     []byte // what is not packed yet
	dst     []byte
	most    int    // fields of an object
	spare   []byte // of what is put in order
	numbers [64]uint64
}

var packers = sync.Pool{New: func() any { return new(packer) }}

func (p *packer) space() {
	for len(p.src) > 0 && (p.src[0] == ' ' || p.src[0] == '\n' || p.src[0] == '\r' || p.src[0] == '\t') {
		p.src = p.src[1:]
	}
}

// constant packs what is n bytes long in src.
func (p *packer) constant(n int, tag byte) {
	p.src, p.dst = p.src[n:], append(p.dst, tag)
}

func (p *packer) value(depth int) error {
	switch p.space(); p.src[0] {
	case '{':
		return p.object(depth)
	case '[':
		return p.list(depth)
	case '"':
		p.text()
	case 'n':
		p.constant(len("null"), 0xc0)
	case 'f':
		p.constant(len("false"), 0xc2)
	case 't':
		p.constant(len("true"), 0xc3)
	default:
		p.number()
	}
	return nil
}

// list packs a list, whose length is known behind it.
func (p *packer) list(depth int) error {
	if depth == 0 {
		return errMalformed
	}
	start, n := len(p.dst), 0
	p.dst = append(p.dst, 0xdd, 0, 0, 0, 0)
	p.src = p.src[1:]
	for p.space(); p.src[0] != ']'; p.space() {
		if p.src[0] == ',' {
			p.src = p.src[1:]
		}
		if err := p.value(depth - 1); err != nil {
			return err
		}
		n += 1 + p.integers()
	}
	p.src = p.src[1:]
	binary.BigEndian.PutUint32(p.dst[start+1:], uint32(n))
	return nil
}

// integers packs the usual elements that a list goes on with.
func (p *packer) integers() (n int) {
	for {
		list, next := prompt.Digits(p.numbers[:0], p.src, 0, len(p.numbers))
		for _, v := range list {
			p.dst = appendUint(p.dst, v)
		}
		p.src = p.src[next:]
		if n += len(list); len(list) < len(p.numbers) {
			return n
		}
	}
}

// member is one pair of an object, at [from, to) of what is packed.
type member struct {
	name     string
	from, to int
}

// object packs an object: its pairs first, then those that count, in their order.
func (p *packer) object(depth int) error {
	if depth == 0 {
		return errMalformed
	}
	var all []member
	start := len(p.dst)
	p.src = p.src[1:]
	for p.space(); p.src[0] != '}'; p.space() {
		if p.src[0] == ',' {
			p.src = p.src[1:]
			p.space()
		}
		if len(all) == p.most {
			return errFields
		}
		m := member{from: len(p.dst)}
		m.name = p.text()
		p.space()
		p.src = p.src[1:] // the colon
		if err := p.value(depth - 1); err != nil {
			return err
		}
		m.to = len(p.dst)
		all = append(all, m)
	}
	p.src = p.src[1:]
	slices.SortStableFunc(all, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	last := all[:0]
	for i := range all {
		if i+1 == len(all) || all[i+1].name != all[i].name {
			last = append(last, all[i])
		}
	}
	p.spare = append(p.spare[:0], p.dst[start:]...)
	packed := p.spare
	p.dst = appendMap(p.dst[:start], len(last))
	for _, m := range last {
		p.dst = append(p.dst, packed[m.from-start:m.to-start]...)
	}
	return nil
}

// text packs a string and returns it.
func (p *packer) text() string {
	n, escaped := 1, false
	for ; p.src[n] != '"'; n++ {
		if p.src[n] == '\\' {
			escaped = true
			n++
		}
	}
	s := string(p.src[1:n])
	if escaped {
		if err := json.Unmarshal(p.src[:n+1], &s); err != nil {
			panic("BUG: valid JSON with a string that is not: " + err.Error())
		}
	}
	p.src, p.dst = p.src[n+1:], appendText(p.dst, s)
	return s
}

func (p *packer) number() {
	n := 0
	for n < len(p.src) && strings.IndexByte("+-.0123456789Ee", p.src[n]) >= 0 {
		n++
	}
	digits := p.src[:n]
	p.src = p.src[n:]
	negative := digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	switch bits, ok := unsigned(digits); {
	case !ok, negative && bits > 1<<63:
		p.dst = append(p.dst, 0xca, 0, 0, 0, 0) // nobody asks which
	case negative && bits > 0:
		p.dst = binary.BigEndian.AppendUint64(append(p.dst, 0xd3), -bits)
	default: // it may say -0
		p.dst = appendUint(p.dst, bits)
	}
}

// unsigned returns the integer of 64 bits that digits spell.
func unsigned(digits []byte) (bits uint64, ok bool) {
	for _, c := range digits {
		c -= '0'
		if c > 9 || bits > math.MaxUint64/10 || bits == math.MaxUint64/10 && c > math.MaxUint64%10 {
			return 0, false
		}
		bits = 10*bits + uint64(c)
	}
	return bits, true
}

// appendJSON writes the first value of an answer and returns what is behind it.
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
		return appendQuoted(dst, v.raw), rest
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

// appendQuoted writes a string. What is safe in JSON is not escaped for HTML.
func appendQuoted(dst, s []byte) []byte {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '"' && c != '\\' }
	for i := range s {
		if !plain(s[i]) {
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			if err := e.Encode(string(s)); err != nil {
				panic("BUG: a string cannot be encoded: " + err.Error())
			}
			return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
