package body

import (
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"strconv"

	"example.com/conductor/conductor/prompt"
)

// Type is what a value is, in either codec.
type Type uint8

const (
	Null Type = iota
	Boolean
	Integer // of 64 bits, with or without sign
	Float   // in JSON any other number
	Text
	Bin
	Array
	Object
	Extension
)

// Type returns the type of a value.
func (c Codec) Type(raw []byte) Type {
	if c == Msgpack {
		v, _, _ := readHead(raw)
		return v.kind
	}
	switch raw[0] {
	case '"':
		return Text
	case '[':
		return Array
	case '{':
		return Object
	case 'n':
		return Null
	case 't', 'f':
		return Boolean
	}
	if _, ok := Hash(raw); !ok {
		return Float
	}
	return Integer
}

// Int returns an Integer that fits into an int64.
func (c Codec) Int(raw []byte) (n int64, ok bool) {
	if c == Msgpack {
		v, _, _ := readHead(raw)
		return int64(v.bits), v.kind == Integer && (v.neg || v.bits <= math.MaxInt64)
	}
	bits, ok := Hash(raw)
	return int64(bits), ok && (raw[0] == '-' || bits <= math.MaxInt64)
}

// Text returns the text of a value of type Text.
func (c Codec) Text(raw []byte) []byte {
	if c == Msgpack {
		v, _, _ := readHead(raw)
		return v.raw
	}
	return Unquoted(raw)
}

// IsNull reports whether a value is null, or nil.
func (c Codec) IsNull(raw []byte) bool {
	if c == Msgpack {
		return len(raw) == 1 && raw[0] == 0xc0
	}
	return string(raw) == "null"
}

// True reports whether a Boolean is true.
func (c Codec) True(raw []byte) bool {
	return c == Msgpack && raw[0] == 0xc3 || c == JSON && raw[0] == 't'
}

// Digits returns an Integer as JSON writes it. Of another value it returns no integer.
func (c Codec) Digits(raw []byte) []byte {
	if c == JSON {
		return raw
	}
	switch v, _, _ := readHead(raw); {
	case v.kind != Integer:
		return nil
	case v.neg:
		return strconv.AppendInt(nil, int64(v.bits), 10)
	default:
		return strconv.AppendUint(nil, v.bits, 10)
	}
}

// Number returns an Integer or a Float.
func (c Codec) Number(raw []byte) (v float64, ok bool) {
	switch t := c.Type(raw); {
	case t != Integer && t != Float:
		return 0, false
	case t == Float && c == Msgpack:
		head, _, _ := readHead(raw)
		if len(head.raw) == 4 {
			return float64(math.Float32frombits(binary.BigEndian.Uint32(head.raw))), true
		}
		return math.Float64frombits(binary.BigEndian.Uint64(head.raw)), true
	default:
		v, _ = strconv.ParseFloat(string(c.Digits(raw)), 64) // infinite beyond its range
		return v, true
	}
}

// Pairs yields name and value of each member of a valid object whose names are text.
func (c Codec) Pairs(raw []byte) iter.Seq2[string, []byte] {
	if c == JSON {
		return Pairs(raw)
	}
	return func(yield func(string, []byte) bool) {
		v, rest, _ := readHead(raw)
		for range v.n {
			key, behind, _ := readHead(rest)
			if rest, _ = skipPacked(behind, 1, prompt.MaxDepth); !yield(string(key.raw), behind[:len(behind)-len(rest)]) {
				return
			}
		}
	}
}

// Elements yields the elements of a valid array.
func (c Codec) Elements(raw []byte) iter.Seq[[]byte] {
	if c == JSON {
		return Elements(raw)
	}
	return func(yield func([]byte) bool) {
		v, rest, _ := readHead(raw)
		for range v.n {
			src := rest
			if rest, _ = skipPacked(src, 1, prompt.MaxDepth); !yield(src[:len(src)-len(rest)]) {
				return
			}
		}
	}
}

// packed is the head of a msgpack value.
type packed struct {
	kind Type
	neg  bool   // of an Integer
	bits uint64 // of an Integer, two's complement
	n    int    // elements of an Array, pairs of an Object
	raw  []byte // contents of Text and Bin
}

// scanPacked is Scan for msgpack. With Options.Every it stores every field, those given twice too; of lists
// given twice the buffers hold the last.
func (r *Request) scanPacked(src []byte, of Shape, opts Options) (members []Member, end int, err *Error) {
	depth := opts.Depth
	if depth == 0 {
		depth = prompt.MaxDepth
	}
	s := packer{Options: opts, r: r, src: src}
	fault := func(reason string) ([]Member, int, *Error) {
		return nil, 0, &Error{Index: -1, Reason: reason, Offset: s.at}
	}
	whole, rest, ok := readHead(src)
	if ok && whole.kind != Object {
		if _, ok = skipPacked(src, 1, depth); ok {
			return fault(NotObject)
		}
	}
	switch {
	case !ok:
		return fault(Syntax)
	case opts.Every > 0 && whole.n > opts.Every:
		return fault(TooMany)
	}
	first, rest, ok := s.readObject(whole.n, rest, of, depth-1)
	switch {
	case !ok:
		return fault(Syntax)
	case s.nameless:
		s.at = len(src) - len(rest)
		return fault(BadName)
	}
	return r.Members[first:], len(src) - len(rest), nil
}

// packer reads one body in msgpack.
type packer struct {
	Options
	r        *Request
	src      []byte
	at       int  // offset of the pair at hand
	nameless bool // the name of a pair is no text
}

// readObject reads n pairs and appends their members to the request's.
func (s *packer) readObject(n int, rest []byte, of Shape, depth int) (first int, behind []byte, ok bool) {
	var own [16]Member // members of inner objects are appended first
	members := own[:0]
	for range n {
		s.at = len(s.src) - len(rest)
		key, behind, ok := readHead(rest)
		if ok && key.kind != Text {
			s.nameless = true
			behind, ok = skipPacked(rest, 1, depth)
		}
		if !ok {
			return 0, nil, false
		}
		m, kind, stored := Member{At: len(s.src) - len(behind)}, &text, true
		if known := of.fieldNamed(key.raw); known != nil {
			m.Name, kind = known.Name, &known.Kind
		} else if s.Every > 0 {
			m.Name = string(key.raw)
		}
		if s.Every == 0 {
			before := -1
			switch {
			case m.Name == "":
				stored = false
				s.r.Unknown++
			case kind.ignored:
				stored = false
			default:
				before = memberIndex(members, m.Name)
			}
			if before >= 0 {
				m.Twice, kind = true, &text
				stored = memberIndex(members[before+1:], m.Name) < 0
			}
		}
		if rest, ok = s.readValue(&m, behind, kind, depth); !ok {
			return 0, nil, false
		}
		if m.Raw = behind[:len(behind)-len(rest)]; stored {
			members = append(members, m)
		}
	}
	first = len(s.r.Members)
	s.r.Members = append(s.r.Members, members...)
	return first, rest, true
}

// readValue reads the value that src begins with, by its kind, and returns the rest.
func (s *packer) readValue(m *Member, src []byte, kind *Kind, depth int) (rest []byte, ok bool) {
	r, l := s.r, &m.List
	v, inside, ok := readHead(src)
	l.Bad = -1
	numbers := kind.token != nil || kind.hash != nil
	room := s.Limit
	switch {
	case !ok:
		return nil, false
	case kind.objects && v.kind == Array:
		if depth == 0 || v.n > len(inside) {
			return nil, false
		}
		m.Read, l.N = true, v.n
		return s.readObjects(v.n, inside, kind.of, depth-1)
	case numbers && s.Every > 0:
		r.Tokens, r.Hashes = r.Tokens[:0], r.Hashes[:0]
	case kind.token != nil:
		room -= len(r.Tokens)
	case kind.hash != nil:
		room = s.roomForHashes(r)
	}
	if kind.token != nil {
		l.From = len(r.Tokens)
	} else {
		l.From = len(r.Hashes)
	}
	l.To = l.From
	switch {
	case numbers && v.kind == Bin:
		size := 8
		if kind.token != nil {
			size = 4
		}
		m.Read, l.N, l.Rest = true, len(v.raw)/size, len(v.raw)%size
		if l.N > room {
			return inside, true
		}
		if l.To += l.N; kind.token != nil {
			r.Tokens = prompt.Words(r.Tokens, v.raw)
			return inside, true
		}
		for raw := v.raw; len(raw) >= size; raw = raw[size:] {
			r.Hashes = append(r.Hashes, binary.LittleEndian.Uint64(raw))
		}
		return inside, true
	case numbers && v.kind == Array:
		m.Read, l.N = true, v.n
		if v.n > room || v.n > len(inside) || depth == 0 {
			break
		}
		if l.To += l.N; kind.token != nil {
			r.Tokens = slices.Grow(r.Tokens, v.n)[:l.To]
			return r.packedTokens(l, inside, kind, depth-1)
		}
		r.Hashes = slices.Grow(r.Hashes, v.n)[:l.To]
		return r.packedHashes(l, inside, depth-1)
	}
	return skipPacked(src, 1, depth)
}

// readObjects reads n elements into the items of the request.
func (s *packer) readObjects(n int, src []byte, of Shape, depth int) (rest []byte, ok bool) {
	for i := range n {
		v, inside, ok := readHead(src)
		if it := (Item{Object: true}); ok && v.kind == Object && depth > 0 && i < MaxItems {
			if it.From, src, ok = s.readObject(v.n, inside, of, depth-1); ok {
				it.To = len(s.r.Members)
				s.r.Items = append(s.r.Items, it)
			}
		} else if src, ok = skipPacked(src, 1, depth); ok && i < MaxItems {
			s.r.Items = append(s.r.Items, Item{})
		}
		if !ok {
			return nil, false
		}
	}
	return src, true
}

// packedTokens reads the elements of a list into the end of r.Tokens, which has its length.
func (r *Request) packedTokens(l *List, src []byte, kind *Kind, depth int) (rest []byte, ok bool) {
	tokens := r.Tokens[l.From:]
	for i := 0; ; i++ {
		read, behind := readTokens(tokens[i:], src)
		if i += read; i == l.N {
			return behind, true
		}
		e, _, _ := readHead(behind)
		if src, ok = skipPacked(behind, 1, depth); !ok {
			return nil, false
		}
		fits := e.kind == Integer
		if fits {
			if r.digits = r.digits[:0]; e.neg {
				r.digits = strconv.AppendInt(r.digits, int64(e.bits), 10)
			} else {
				r.digits = strconv.AppendUint(r.digits, e.bits, 10)
			}
			tokens[i], fits = kind.token(r.digits)
		}
		if !fits {
			l.recordMisfit(i, behind[:len(behind)-len(src)])
		}
	}
}

// packedHashes reads the elements of a list into the end of r.Hashes, which has its length.
func (r *Request) packedHashes(l *List, src []byte, depth int) (rest []byte, ok bool) {
	hashes := r.Hashes[l.From:]
	for i := range hashes {
		e, behind, ok := readHead(src)
		if !ok || e.kind != Integer {
			if behind, ok = skipPacked(src, 1, depth); !ok {
				return nil, false
			}
			l.recordMisfit(i, src[:len(src)-len(behind)])
		}
		hashes[i], src = e.bits, behind
	}
	return src, true
}

// recordMisfit records an element that does not fit.
func (l *List) recordMisfit(i int, text []byte) {
	if l.Bad < 0 {
		l.Bad, l.Text = i, text
	}
}

// skipPacked steps over n values.
func skipPacked(src []byte, n, depth int) (rest []byte, ok bool) {
	for n > 0 {
		if n, src = skipIntegers(src, n); n == 0 {
			break
		}
		v, behind, ok := readHead(src)
		if !ok {
			return nil, false
		}
		inner := v.n
		switch v.kind {
		case Object:
			inner *= 2
			fallthrough
		case Array:
			if depth == 0 || inner > len(behind) {
				return nil, false
			}
			if behind, ok = skipPacked(behind, inner, depth-1); !ok {
				return nil, false
			}
		}
		src = behind
		n--
	}
	return src, true
}

// widths are how many bytes integers take by their tag, 0 for any other tag.
var widths = func() (w [256]uint8) {
	for tag := range w {
		if tag <= 0x7f || tag >= 0xe0 {
			w[tag] = 1
		}
	}
	for i := range 4 {
		w[0xcc+i], w[0xd0+i] = 1+1<<i, 1+1<<i
	}
	return w
}()

// skipIntegers steps over the integers that src begins with, n at most, and returns how
// many of the n are left.
func skipIntegers(src []byte, n int) (left int, rest []byte) {
	at := 0
	for ; n > 0 && at < len(src); n-- {
		width := int(widths[src[at]])
		if width == 0 || width > len(src)-at {
			break
		}
		at += width
	}
	return n, src[at:]
}

// masks tell by tag which bits of an unsigned integer of up to 32 bits are its value.
var masks = func() (m [256]uint32) {
	for tag := range 0x80 {
		m[tag] = 0x7f
	}
	m[0xcc], m[0xcd], m[0xce] = 0xff, 0xffff, 0xffffffff
	return m
}()

// readTokens reads the unsigned integers of up to 31 bits that src begins with into dst,
// for as long as eight bytes can be read at once, and returns how many and the rest behind
// them. Their widths alternate as no branch predictor can guess, so nothing branches on
// them.
func readTokens(dst []uint32, src []byte) (n int, rest []byte) {
	at := 0
	for n < len(dst) && len(src)-at >= 8 {
		word := binary.BigEndian.Uint64(src[at:])
		tag := word >> 56
		mask, width := masks[tag], widths[tag]
		v := uint32(word>>((64-8*width)&63)) & mask
		if mask == 0 || v > math.MaxInt32 {
			break
		}
		dst[n] = v
		n++
		at += int(width)
	}
	return n, src[at:]
}

// readHead reads a value, of lists and maps only how long they are.
func readHead(src []byte) (v packed, rest []byte, ok bool) {
	if len(src) == 0 {
		return v, nil, false
	}
	tag, src := src[0], src[1:]
	switch {
	case tag <= 0x7f:
		return packed{kind: Integer, bits: uint64(tag)}, src, true
	case tag >= 0xe0:
		return packed{kind: Integer, bits: uint64(int64(int8(tag))), neg: true}, src, true
	case tag <= 0x8f:
		return packed{kind: Object, n: int(tag & 0x0f)}, src, true
	case tag <= 0x9f:
		return packed{kind: Array, n: int(tag & 0x0f)}, src, true
	case tag <= 0xbf:
		return readContents(Text, int(tag&0x1f), src)
	}
	switch tag {
	case 0xc0:
		return packed{kind: Null}, src, true
	case 0xc2, 0xc3:
		return packed{kind: Boolean}, src, true
	case 0xca:
		return readContents(Float, 4, src)
	case 0xcb:
		return readContents(Float, 8, src)
	case 0xcc, 0xcd, 0xce, 0xcf: // uint 8..64
		bits, rest, ok := readNumber(1<<(tag-0xcc), src)
		return packed{kind: Integer, bits: bits}, rest, ok
	case 0xd0, 0xd1, 0xd2, 0xd3: // int 8..64
		size := 1 << (tag - 0xd0)
		bits, rest, ok := readNumber(size, src)
		shift := 64 - 8*size
		signed := int64(bits<<shift) >> shift
		return packed{kind: Integer, bits: uint64(signed), neg: signed < 0}, rest, ok
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // fixext 1..16, with its type
		return readContents(Extension, 1+1<<(tag-0xd4), src)
	case 0xc4, 0xc5, 0xc6:
		return readSizedContents(Bin, 1<<(tag-0xc4), 0, src)
	case 0xc7, 0xc8, 0xc9:
		return readSizedContents(Extension, 1<<(tag-0xc7), 1, src)
	case 0xd9, 0xda, 0xdb:
		return readSizedContents(Text, 1<<(tag-0xd9), 0, src)
	case 0xdc, 0xdd:
		n, rest, ok := readNumber(2<<(tag-0xdc), src)
		return packed{kind: Array, n: int(n)}, rest, ok
	case 0xde, 0xdf:
		n, rest, ok := readNumber(2<<(tag-0xde), src)
		return packed{kind: Object, n: int(n)}, rest, ok
	}
	return v, nil, false // 0xc1 is never used
}

// readNumber reads a big-endian number of 1, 2, 4 or 8 bytes.
func readNumber(size int, src []byte) (bits uint64, rest []byte, ok bool) {
	if len(src) < size {
		return 0, nil, false
	}
	switch size {
	case 1:
		bits = uint64(src[0])
	case 2:
		bits = uint64(binary.BigEndian.Uint16(src))
	case 4:
		bits = uint64(binary.BigEndian.Uint32(src))
	default:
		bits = binary.BigEndian.Uint64(src)
	}
	return bits, src[size:], true
}

// readContents returns a value of n bytes, and what follows it.
func readContents(k Type, n int, src []byte) (packed, []byte, bool) {
	if len(src) < n {
		return packed{}, nil, false
	}
	return packed{kind: k, raw: src[:n]}, src[n:], true
}

// readSizedContents is readContents for a value behind its length, which takes size bytes. The value has more bytes
// than the length says: the type of an extension is not counted.
func readSizedContents(k Type, size, more int, src []byte) (packed, []byte, bool) {
	n, src, ok := readNumber(size, src)
	if !ok {
		return packed{}, nil, false
	}
	return readContents(k, int(n)+more, src)
}
