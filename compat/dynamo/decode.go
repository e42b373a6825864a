package dynamo

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"kvconductor/conductor/prompt"
)

// Bodies are read in one pass, in document order, as the reference's reader does:
// the first thing that does not fit decides the answer, and names its field and
// place. Standard decoding would read arrays of tokens twice, accept duplicate
// keys, names in another case and null for numbers, and tell syntax from shape by
// other rules.

// rejection is why a body is refused before its content is looked at.
type rejection struct {
	status int // 400 for syntax, 422 for shape, 413 for length
	text   string
}

// maxDepth bounds the nesting of values, as the reference's reader does.
const maxDepth = 128

// decoder walks one JSON document. The first error stays, and ends everything.
type decoder struct {
	src []byte
	at  int
	err *rejection

	field    string // being read, "" outside of fields
	index    int    // of the element being read or stepped behind, -1 outside of arrays
	ignoring bool   // in a value that nobody asked for, of which less is required
}

// member is one field a body may have.
type member struct {
	name, alias string
	// spare is a name the reference does not know; it counts where the first is missing.
	spare    string
	required bool
	seen     bool
	spared   bool // seen under its spare name alone
	read     func(*decoder)
}

// decode reads a body that is an object of the named kind. What follows it is not
// looked at, and members it does not know are skipped.
func decode(src []byte, kind string, members ...member) *rejection {
	d := decoder{src: src, index: -1}
	d.object("struct "+kind, members)
	return d.err
}

func (d *decoder) object(want string, members []member) {
	if d.peek() != '{' {
		d.unexpected(want)
		return
	}
	d.at++
	for first := true; d.next('}', first); first = false {
		key := d.key()
		if d.err != nil {
			return
		}
		m := find(members, key)
		switch {
		case m == nil || !m.seen:
		case key == m.spare:
			m = nil
		case m.spared:
		default:
			d.shape("duplicate field `%s`", m.name)
			return
		}
		if d.colon(); d.err != nil {
			return
		}
		d.field = key
		if m == nil {
			d.ignoring = true
			d.skip(1)
			d.ignoring = false
		} else {
			m.seen, m.spared = true, key == m.spare
			m.read(d)
		}
		if d.err != nil {
			return
		}
		d.field = ""
	}
	for i := range members {
		if d.err == nil && members[i].required && !members[i].seen {
			d.shape("missing field `%s`", members[i].name)
		}
	}
}

func find(members []member, key string) *member {
	for i := range members {
		if m := &members[i]; key == m.name || (key == m.alias || key == m.spare) && key != "" {
			return m
		}
	}
	return nil
}

// next steps to the next element of an array or object that ends with end, over
// the comma that stands before it; false at the end, which it steps over, and
// after an error.
func (d *decoder) next(end byte, first bool) bool {
	what, list := "an object", "`,` or `}`"
	if end == ']' {
		what, list = "a list", "`,` or `]`"
	}
	c := d.peek()
	switch {
	case d.at == len(d.src):
		d.syntax("EOF while parsing %s", what)
		return false
	case c == end:
		d.at++
		return false
	case first:
		return true
	case c != ',':
		d.syntax("expected %s", list)
		return false
	}
	d.at++
	if d.index >= 0 {
		d.index++
	}
	switch c := d.peek(); {
	case d.at == len(d.src):
		d.syntax("EOF while parsing a value")
	case c == end && !d.ignoring:
		d.syntax("trailing comma")
	}
	return d.err == nil
}

func (d *decoder) key() string {
	if c := d.peek(); c != '"' {
		if d.at == len(d.src) {
			d.syntax("EOF while parsing a value")
		} else {
			d.syntax("key must be a string")
		}
		return ""
	}
	return d.quoted()
}

func (d *decoder) colon() {
	c := d.peek()
	switch {
	case c == ':':
		d.at++
	case d.at == len(d.src):
		d.syntax("EOF while parsing an object")
	default:
		d.syntax("expected `:`")
	}
}

// peek returns the next byte behind white space, 0 at the end.
func (d *decoder) peek() byte {
	for d.at < len(d.src) {
		switch c := d.src[d.at]; c {
		case ' ', '\t', '\n', '\r':
			d.at++
		default:
			return c
		}
	}
	return 0
}

// null steps over a null, if one is next.
func (d *decoder) null() bool {
	return d.peek() == 'n' && d.word("null")
}

// word steps over a word that begins at the current byte.
func (d *decoder) word(w string) bool {
	for i := 1; i < len(w); i++ {
		switch {
		case d.at+i >= len(d.src):
			d.at = len(d.src)
			d.syntax("EOF while parsing a value")
			return false
		case d.src[d.at+i] != w[i]:
			d.at += i
			d.syntax("expected ident")
			return false
		}
	}
	d.at += len(w)
	return true
}

// text reads a string.
func (d *decoder) text() string {
	if d.peek() != '"' {
		d.unexpected("a string")
		return ""
	}
	return d.quoted()
}

// quoted reads a string whose first quote is the current byte.
func (d *decoder) quoted() string {
	d.at++
	start, plain, ascii := d.at, true, true
	for d.at < len(d.src) {
		switch c := d.src[d.at]; {
		case c == '"':
			raw := d.src[start:d.at]
			if !ascii && !utf8.Valid(raw) {
				d.syntax("invalid unicode code point")
				return ""
			}
			d.at++
			if plain {
				return string(raw)
			}
			return d.unescape(raw, start)
		case c == '\\':
			plain = false
			d.at += 2
		case c < ' ':
			d.syntax(`control character (\u0000-\u001F) found while parsing a string`)
			return ""
		default:
			ascii = ascii && c < utf8.RuneSelf
			d.at++
		}
	}
	d.at = len(d.src)
	d.syntax("EOF while parsing a string")
	return ""
}

// unescape resolves the escapes of a string that began at start and ends before
// the current byte.
func (d *decoder) unescape(raw []byte, start int) string {
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			b.WriteByte(raw[i])
			continue
		}
		i++
		if at := strings.IndexByte(`"\/bfnrt`, raw[i]); at >= 0 {
			b.WriteByte("\"\\/\b\f\n\r\t"[at])
			continue
		}
		if raw[i] != 'u' {
			d.at = start + i
			d.syntax("invalid escape")
			return ""
		}
		r := d.hex(start + i + 1)
		i += 4
		if utf16.IsSurrogate(r) && !d.ignoring {
			r = d.pair(r, start+i+1)
			i += 6
		}
		if d.err != nil {
			return ""
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hex reads the four digits of an escape.
func (d *decoder) hex(at int) rune {
	if at+4 > len(d.src) {
		d.at = len(d.src)
		d.syntax("EOF while parsing a string")
		return 0
	}
	v, err := strconv.ParseUint(string(d.src[at:at+4]), 16, 16)
	if err != nil {
		d.at = at + 3
		d.syntax("invalid escape")
	}
	return rune(v)
}

// pair reads the second half of a surrogate pair and returns the character.
func (d *decoder) pair(high rune, at int) rune {
	for i, c := range []byte(`\u`) {
		if high < 0xdc00 && d.src[at+i] != c { // the closing quote is there, if nothing else
			d.at = at + i
			d.syntax("unexpected end of hex escape")
			return 0
		}
	}
	if high >= 0xdc00 {
		d.at = at - 1
		d.syntax("lone leading surrogate in hex escape")
		return 0
	}
	r := utf16.DecodeRune(high, d.hex(at+2))
	if r == utf8.RuneError {
		d.at = at + 5
		d.syntax("lone leading surrogate in hex escape")
	}
	return r
}

// number is a JSON number: an integer of 64 bits, or anything else.
type number struct {
	magnitude uint64
	negative  bool // and not zero
	float     bool // has a fraction or an exponent, or is too large: magnitude is not set
	text      []byte
}

// number reads a number that begins at the current byte.
func (d *decoder) number() (n number) {
	start := d.at
	if d.src[d.at] == '-' {
		n.negative = true
		d.at++
	}
	digits := func() int {
		from := d.at
		for d.at < len(d.src) && '0' <= d.src[d.at] && d.src[d.at] <= '9' {
			if !n.float {
				digit := uint64(d.src[d.at] - '0')
				if n.magnitude > (math.MaxUint64-digit)/10 {
					n.float = true
				} else {
					n.magnitude = 10*n.magnitude + digit
				}
			}
			d.at++
		}
		return d.at - from
	}
	is := func(chars string) bool {
		return d.at < len(d.src) && strings.IndexByte(chars, d.src[d.at]) >= 0
	}
	leading, first := is("0"), d.at
	some := digits()
	if leading && some > 1 {
		d.at = first + 1
	}
	if some == 0 || leading && some > 1 {
		d.badNumber()
		return n
	}
	if is(".") {
		n.float = true
		d.at++
		if digits() == 0 {
			d.badNumber()
			return n
		}
	}
	if is("eE") {
		n.float = true
		d.at++
		if is("+-") {
			d.at++
		}
		if digits() == 0 {
			d.badNumber()
			return n
		}
	}
	if n.negative && (n.magnitude == 0 || n.magnitude > 1<<63) {
		n.float = true
	}
	n.text = d.src[start:d.at]
	if n.float && !d.ignoring {
		if v, _ := strconv.ParseFloat(string(n.text), 64); math.IsInf(v, 0) {
			d.at--
			d.syntax("number out of range")
		}
	}
	return n
}

func (d *decoder) badNumber() {
	if d.at == len(d.src) {
		d.syntax("EOF while parsing a value")
		return
	}
	d.syntax("invalid number")
}

func isNumber(c byte) bool { return c == '-' || '0' <= c && c <= '9' }

// unsigned reads an integer in 0..most; kind is how the reference names its type.
func (d *decoder) unsigned(most uint64, kind string) uint64 {
	if !isNumber(d.peek()) {
		d.unexpected(kind)
		return 0
	}
	n := d.number()
	switch {
	case d.err != nil:
	case n.float:
		d.shape("invalid type: %s, expected %s", n, kind)
	case n.negative || n.magnitude > most:
		d.shape("invalid value: %s, expected %s", n, kind)
	}
	return n.magnitude
}

// String describes a number as the reference's reader does.
func (n number) String() string {
	if !n.float {
		return "integer `" + string(n.text) + "`"
	}
	v, _ := strconv.ParseFloat(string(n.text), 64)
	text := strconv.FormatFloat(v, 'f', -1, 64)
	switch size := math.Abs(v); {
	case size != 0 && (size < 1e-5 || size >= 1e16):
		text = strconv.FormatFloat(v, 'e', -1, 64)
	case !strings.Contains(text, "."):
		text += ".0"
	}
	return "floating point `" + text + "`"
}

// u32s appends the elements of an array of token ids to dst, at most limit of
// them.
func (d *decoder) u32s(dst []uint32, limit int) []uint32 {
	return array(d, dst, limit, func(d *decoder) uint32 { return uint32(d.unsigned(math.MaxUint32, "u32")) })
}

// hashes appends the elements of an array of 64-bit hashes to dst: unsigned, or
// signed, as two's complement.
func (d *decoder) hashes(dst []uint64, limit int) []uint64 {
	return array(d, dst, limit, func(d *decoder) uint64 {
		if !isNumber(d.peek()) {
			d.unexpected("i64")
			return 0
		}
		n := d.number()
		switch {
		case d.err != nil:
		case n.float:
			d.shape("invalid type: %s, expected i64", n)
		case n.negative:
			return -n.magnitude
		}
		return n.magnitude
	})
}

// array reads an array of numbers. Digits takes what plainly fits; element reads
// everything else.
func array[T uint32 | uint64](d *decoder, dst []T, limit int, element func(*decoder) T) []T {
	if d.peek() != '[' {
		d.unexpected("a sequence")
		return dst
	}
	d.at++
	for first := true; ; first = false {
		if !first {
			dst, d.at = prompt.Digits(dst, d.src, d.at, limit)
		}
		d.index = max(len(dst)-1, 0)
		if !d.next(']', first) {
			break
		}
		if len(dst) == limit {
			d.err = &rejection{status: statusTooLarge, text: fmt.Sprintf("%s has more than %d elements, the most limits.max_tokens allows", d.field, limit)}
			break
		}
		d.index = len(dst)
		v := element(d)
		if d.err != nil {
			break
		}
		dst = append(dst, v)
	}
	d.index = -1
	return dst
}

// skip steps over any value.
func (d *decoder) skip(depth int) {
	c := d.peek()
	switch {
	case d.at == len(d.src):
		d.syntax("EOF while parsing a value")
	case c == '"':
		d.quoted()
	case c == 'n':
		d.word("null")
	case c == 't':
		d.word("true")
	case c == 'f':
		d.word("false")
	case isNumber(c):
		d.number()
	case c != '[' && c != '{':
		d.syntax("expected value")
	case depth == maxDepth:
		d.syntax("recursion limit exceeded")
	default:
		d.at++
		for first := true; d.next(c+2, first); first = false { // ']' and '}' are two behind '[' and '{'
			if c == '{' {
				if d.key(); d.err == nil {
					d.colon()
				}
			}
			if d.err == nil {
				d.skip(depth + 1)
			}
			if d.err != nil {
				return
			}
		}
	}
}

// unexpected refuses the next value, which is not of the wanted type.
func (d *decoder) unexpected(want string) {
	c := d.peek()
	got := ""
	switch {
	case d.at == len(d.src):
		d.syntax("EOF while parsing a value")
	case c == '"':
		got = "string " + quote(d.quoted())
	case c == 'n':
		d.word("null")
		got = "null"
	case c == 't':
		d.word("true")
		got = "boolean `true`"
	case c == 'f':
		d.word("false")
		got = "boolean `false`"
	case isNumber(c):
		got = d.number().String()
	case c == '[':
		got = "sequence"
	case c == '{':
		got = "map"
	default:
		d.syntax("expected value")
	}
	if d.err == nil {
		d.shape("invalid type: %s, expected %s", got, want)
	}
}

// quote writes a string the way the reference does in its errors.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch at := strings.IndexRune("\"\\\n\r\t\x00", r); {
		case at >= 0:
			b.WriteByte('\\')
			b.WriteByte(`"\nrt0`[at])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// syntax refuses the document at the current byte: it is no JSON.
func (d *decoder) syntax(format string, args ...any) {
	d.fail(statusBadRequest, "Failed to parse the request body as JSON: ", min(d.at+1, len(d.src)), format, args)
}

// shape refuses what was just read: it is JSON, but not what is asked for.
func (d *decoder) shape(format string, args ...any) {
	d.fail(statusUnprocessable, "Failed to deserialize the JSON body into the target type: ", d.at, format, args)
}

func (d *decoder) fail(status int, text string, at int, format string, args []any) {
	if d.err != nil {
		return
	}
	if d.field != "" {
		text += d.field
		if d.index >= 0 {
			text += "[" + strconv.Itoa(d.index) + "]"
		}
		text += ": "
	}
	read := d.src[:at]
	d.err = &rejection{status: status, text: fmt.Sprintf("%s%s at line %d column %d",
		text, fmt.Sprintf(format, args...), 1+bytes.Count(read, []byte{'\n'}), at-1-bytes.LastIndexByte(read, '\n'))}
}
