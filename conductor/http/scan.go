package http

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"kvconductor/conductor/prompt"
)

// Bodies are read in one pass: lists of numbers into the buffers of the request as
// they are met, the other fields that a handler asks for as text, decoded when it
// asks. Standard decoding would take fifty times as long over a
// prompt as looking it up.

// kind is how a field is read when it is met.
type kind uint8

const (
	plain   kind = iota // as text
	tokens              // a list of u32
	hashes              // a list of 64-bit hashes
	objects             // an array of objects of another shape
)

// shape lists the fields that count in an object; others are stepped over.
type shape []known

type known struct {
	name string
	kind kind
	of   shape // of objects
}

// of returns a shape of plain fields.
func of(names ...string) shape {
	s := make(shape, len(names))
	for i, name := range names {
		s[i].name = name
	}
	return s
}

func (s shape) has(name string) bool {
	return slices.ContainsFunc(s, func(k known) bool { return k.name == name })
}

// maxItems bounds the objects that are read of an array of them. Of those behind only
// the number counts.
const maxItems = 256

// member is one field of an object.
type member struct {
	name string
	raw  []byte
	list list
	// read says that raw is an array, and list or the items of the request are
	// what is in it.
	read bool
}

// list is what is known of a list of numbers.
type list struct {
	from, to int    // in the buffer of the request, if all is well with it
	n        int    // elements, however many there may be
	bad      int    // first element that does not fit, -1 if all do
	reason   string // of the bad one
	other    bool   // an element is no number at all
}

// scanner reads one body.
type scanner struct {
	r     *request
	src   []byte
	at    int
	limit int // elements of lists worth keeping
	depth int // levels of nesting that are left

	field string // being read, "" outside of known fields; where it ends, if it does not end well
	index int    // of its element being read, -1 outside of arrays
	inner string // the field, and the element, of the object being read that is such an element
}

// document reads a body that is one object, and returns where its members begin.
func (s *scanner) document(of shape) (first int, twice string, ok bool) {
	s.depth = prompt.MaxDepth
	s.at = prompt.Space(s.src, 0)
	if s.at == len(s.src) || s.src[s.at] != '{' {
		return 0, "", false
	}
	first, twice, ok = s.object(of)
	if ok {
		s.at = prompt.Space(s.src, s.at)
		ok = s.at == len(s.src)
	}
	return first, twice, ok
}

// object reads the members of the object that begins here. They are the last of the
// request's; twice is the name of one that was there before.
func (s *scanner) object(of shape) (first int, twice string, ok bool) {
	var own [16]member // those of objects inside come first
	members := own[:0]
	s.depth--
	s.at = prompt.Space(s.src, s.at+1)
	if s.at < len(s.src) && s.src[s.at] == '}' {
		s.at++
	} else {
		for more := true; more; {
			start := s.at
			if s.at, ok = prompt.Name(s.src, s.at); !ok {
				return 0, "", false
			}
			k := of.find(s.src[start:s.at])
			switch {
			case k == nil:
				s.at, ok = prompt.Skip(s.src, s.at, s.depth)
			case slices.ContainsFunc(members, func(m member) bool { return m.name == k.name }):
				if twice == "" {
					twice = k.name
				}
				s.field = k.name
				s.at, ok = prompt.Skip(s.src, s.at, s.depth)
			default:
				m := member{name: k.name}
				if ok = s.value(&m, k); ok {
					members = append(members, m)
				}
			}
			if !ok {
				return 0, "", false
			}
			s.field = ""
			if more, ok = s.next('}'); !ok {
				return 0, "", false
			}
		}
	}
	s.depth++
	first = len(s.r.members)
	s.r.members = append(s.r.members, members...)
	return first, twice, true
}

// find returns the field whose name begins here.
func (s shape) find(text []byte) *known {
	end, plain, _ := prompt.String(text, 0)
	name := text[1 : end-1]
	if !plain {
		name = unquoted(text[:end])
	}
	for i := range s {
		if s[i].name == string(name) {
			return &s[i]
		}
	}
	return nil
}

// stranger returns the first name, in their order, of a member of an object that the
// shape does not have. raw is known to be an object.
func (s shape) stranger(raw []byte) (name string, found bool) {
	for at := prompt.Space(raw, 1); raw[at] != '}'; {
		start := at
		at, _ = prompt.Name(raw, at)
		if s.find(raw[start:at]) == nil {
			end, _, _ := prompt.String(raw, start)
			if text := unquoted(raw[start:end]); !found || string(text) < name {
				name, found = string(text), true
			}
		}
		at, _ = prompt.Skip(raw, at, prompt.MaxDepth)
		if at = prompt.Space(raw, at); raw[at] == ',' {
			at = prompt.Space(raw, at+1)
		}
	}
	return name, found
}

// unquoted returns what a valid JSON string says.
func unquoted(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		panic("BUG: a string that was stepped over is none: " + err.Error())
	}
	return []byte(v)
}

// next steps behind a member or element: over the comma if there is another.
func (s *scanner) next(end byte) (more, ok bool) {
	s.at = prompt.Space(s.src, s.at)
	switch {
	case s.at == len(s.src):
		return false, false
	case s.src[s.at] == end:
		s.at++
		return false, true
	case s.src[s.at] != ',':
		return false, false
	}
	s.at = prompt.Space(s.src, s.at+1)
	return true, true
}

// value reads the value of a member.
func (s *scanner) value(m *member, k *known) (ok bool) {
	start := s.at
	s.field = k.name
	m.read = k.kind != plain && start < len(s.src) && s.src[start] == '['
	switch {
	case !m.read:
		s.at, ok = prompt.Skip(s.src, s.at, s.depth)
	case k.kind == tokens:
		s.r.tokens, m.list, ok = readList(s, s.r.tokens, s.limit-len(s.r.tokens), tokenValue)
	case k.kind == hashes:
		s.r.hashes, m.list, ok = readList(s, s.r.hashes, s.limit, hashValue)
	default:
		m.list.n, ok = s.objects(k.of)
	}
	m.raw = s.src[start:s.at]
	if ok {
		s.index = -1
	}
	return ok
}

// objects reads an array of objects into the items of the request, and counts them.
func (s *scanner) objects(of shape) (n int, ok bool) {
	name := s.field
	s.depth--
	s.at = prompt.Space(s.src, s.at+1)
	if s.at < len(s.src) && s.src[s.at] == ']' {
		s.at++
		s.depth++
		return 0, true
	}
	for more := true; more; n++ {
		if n < maxItems && s.at < len(s.src) && s.src[s.at] == '{' {
			s.field, s.index = "", -1
			it := item{object: true}
			if it.from, it.twice, ok = s.object(of); ok {
				it.to = len(s.r.members)
				s.r.items = append(s.r.items, it)
			}
		} else {
			s.field = ""
			if s.at, ok = prompt.Skip(s.src, s.at, s.depth); ok && n < maxItems {
				s.r.items = append(s.r.items, item{})
			}
		}
		if !ok {
			s.leave(name, n)
			return n, false
		}
		s.field, s.index = name, n
		if more, ok = s.next(']'); !ok {
			return n, false
		}
	}
	s.depth++
	return n, true
}

// leave notes where an object that is an element of a field does not end well.
func (s *scanner) leave(field string, index int) {
	if s.inner = s.field; s.field != "" && s.index >= 0 {
		s.inner += "[" + strconv.Itoa(s.index) + "]"
	}
	s.field, s.index = field, index
}

// leastRoom is for how many elements of a list that is too long there is room while
// they are looked at.
const leastRoom = 1 << 10

// readList reads an array of numbers that begins here: the usual ones in one go, each
// other by value, which tells what a JSON number stands for. A list that is longer than
// room is read over itself again and again: only its length and its faults count.
func readList[T uint32 | uint64](s *scanner, dst []T, room int, value func(text []byte) (T, bool)) ([]T, list, bool) {
	l := list{from: len(dst), bad: -1}
	end := l.from + max(room, leastRoom)
	s.at = prompt.Space(s.src, s.at+1)
	if s.at < len(s.src) && s.src[s.at] == ']' {
		s.at++
		l.to = l.from
		return dst, l, true
	}
	for more := true; more; {
		if len(dst) == end {
			dst = dst[:l.from]
		}
		start := s.at
		s.index = l.n
		var ok bool
		if s.at, ok = prompt.Skip(s.src, s.at, s.depth-1); !ok {
			return dst, l, false
		}
		text := s.src[start:s.at]
		v, fits := value(text)
		if !fits {
			if l.bad < 0 {
				l.bad, l.reason = l.n, numberReason(text)
			}
			l.other = l.other || text[0] != '-' && text[0]-'0' > 9
		}
		dst = append(dst, v)
		before := len(dst)
		dst, s.at = prompt.Digits(dst, s.src, s.at, end)
		l.n += 1 + len(dst) - before
		s.index = l.n - 1
		if more, ok = s.next(']'); !ok {
			return dst, l, false
		}
	}
	l.to = len(dst)
	return dst, l, true
}

// tokenValue returns the token id that a JSON value is.
func tokenValue(text []byte) (uint32, bool) {
	v, ok := unsigned(text)
	return uint32(v), ok && v <= 1<<32-1
}

// hashValue returns the hash that a JSON value is: of 64 bits, negative ones by two's
// complement, the way some engines print hashes.
func hashValue(text []byte) (uint64, bool) {
	if len(text) == 0 || text[0] != '-' {
		return unsigned(text)
	}
	v, ok := unsigned(text[1:])
	return -v, ok && v <= 1<<63
}

// unsigned returns the integer that digits spell.
func unsigned(text []byte) (uint64, bool) {
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

// numberReason tells a number that does not fit from what is no integer at all.
func numberReason(text []byte) string {
	digits := text
	if digits[0] == '-' {
		digits = digits[1:]
	}
	if _, err := strconv.ParseFloat(string(text), 64); err == nil && !slices.ContainsFunc(digits, func(c byte) bool { return c-'0' > 9 }) {
		return "out_of_range"
	}
	return "invalid_type"
}
