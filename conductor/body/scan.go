package body

import (
	"slices"
	"strconv"

	"example.com/conductor/conductor/prompt"
)

// Shape lists the fields of an object that a dialect knows. Scan skips the others.
type Shape []Field

// Field is a field of a Shape.
type Field struct {
	Name string
	Kind Kind
}

// Kind says how Scan reads an array. The zero value leaves it as text.
type Kind struct {
	token   func(text []byte) (uint32, bool)
	hash    func(text []byte) (uint64, bool)
	objects bool
	of      Shape
	ignored bool
}

// Ignored is the Kind of a field that clients send and that has no effect. Scan skips it.
var Ignored = Kind{ignored: true}

// Tokens returns the Kind of a list whose elements go into Request.Tokens. value returns
// the number that the text of an unusual element spells.
func Tokens(value func(text []byte) (uint32, bool)) Kind { return Kind{token: value} }

// Hashes returns the Kind of a list whose elements go into Request.Hashes. value returns
// the number that the text of an unusual element spells.
func Hashes(value func(text []byte) (uint64, bool)) Kind { return Kind{hash: value} }

// Objects returns the Kind of an array of objects, which go into Request.Items.
func Objects(of Shape) Kind { return Kind{objects: true, of: of} }

// Of returns a shape of fields that stay text.
func Of(names ...string) Shape {
	s := make(Shape, len(names))
	for i, name := range names {
		s[i].Name = name
	}
	return s
}

// Has reports whether the shape knows a field.
func (s Shape) Has(name string) bool {
	return slices.ContainsFunc(s, func(f Field) bool { return f.Name == name })
}

// Member is one field of an object.
type Member struct {
	Name  string
	Raw   []byte // its text; if a syntax error ends the body, as far as Scan read it
	At    int    // offset of Raw in the body, in bytes
	List  List   // if Read
	Read  bool   // Raw is an array that Scan read by the field's Kind
	Twice bool   // the object had the field before
}

// List describes a list of numbers.
type List struct {
	From, To int // in Tokens or Hashes, if every element fits
	N        int // elements, those beyond the limit and a broken one included
	Bad      int // first element that does not fit, -1 if all do
	Text     []byte
	At       int  // offset of Text, the bad element, in the body
	Other    bool // an element is not a number
	Rest     int  // bytes of a bin behind its last number
}

// Item is one element of an array of objects.
type Item struct {
	From, To int  // its fields in Members
	Object   bool // false for an element of another type
}

// MaxItems bounds the objects that Scan reads out of an array. It only counts the rest.
const MaxItems = 256

// Options are the rules of a dialect.
type Options struct {
	Codec Codec // what follows is for JSON but Limit, Depth and Every
	Limit int   // numbers that a list may store; all lists of hashes store twice as many at most
	Depth int   // levels of nesting, 0 for prompt.MaxDepth
	Tail  bool  // text may follow the object
	// Unknown makes errors name fields that the shape lacks.
	Unknown bool
	// Every, unless 0, stores unknown fields too, at most Every in all. Of a field given
	// twice in JSON it stores the last, so a shape has at most one list of each Kind.
	Every int
	// Name, unless nil, reports whether a name with escapes is valid. text is quoted.
	Name func(text []byte) bool
}

// roomForHashes returns how many hashes the next list may store. All lists of a request store twice the limit at
// most: a query may give its hashes under two names, and a list of queries may not have more than the limit.
func (o *Options) roomForHashes(r *Request) int { return min(o.Limit, 2*o.Limit-len(r.Hashes)) }

// scanner reads one body.
type scanner struct {
	Options
	r     *Request
	src   []byte
	at    int
	depth int // levels of nesting that are left
	pairs int // of the outer object

	field string // the known field at hand, "" outside of fields
	index int    // the element at hand, -1 outside of arrays
	inner string // field and element within the object that failed
}

// Scan empties the buffers and reads the object in Src. It returns the fields in the order of the document, and
// the offset behind the object. After an error in JSON the fields before the fault are valid; the
// field that holds the fault is the last. After one in msgpack there are none.
func (r *Request) Scan(of Shape, opts Options) (members []Member, end int, err *Error) {
	r.Members, r.Items, r.Tokens, r.Hashes, r.Unknown = r.Members[:0], r.Items[:0], r.Tokens[:0], r.Hashes[:0], 0
	return r.ScanText(r.Src, of, opts)
}

// ScanText is Scan for text other than Src. It appends to the buffers.
func (r *Request) ScanText(src []byte, of Shape, opts Options) (members []Member, end int, err *Error) {
	if opts.Codec == Msgpack {
		return r.scanPacked(src, of, opts)
	}
	s := scanner{Options: opts, r: r, src: src, depth: opts.Depth, index: -1}
	if s.depth == 0 {
		s.depth = prompt.MaxDepth
	}
	first, ok := 0, false
	if s.at = prompt.Space(src, 0); s.at < len(src) && src[s.at] == '{' {
		first, ok = s.readObject(of)
		members, end = r.Members[first:], s.at
	}
	if ok && !s.Tail {
		s.at = prompt.Space(src, s.at)
		ok = s.at == len(src)
	}
	switch {
	case !ok:
		return members, end, &Error{Field: s.field, Index: s.index, Within: s.inner, Reason: Syntax, Offset: s.at}
	case s.Every > 0 && s.pairs > s.Every:
		return members, end, &Error{Index: -1, Reason: TooMany, Offset: s.at}
	}
	return members, end, nil
}

// Repeated returns the first field that is given twice, "" if none is.
func Repeated(members []Member) string {
	for i := range members {
		if members[i].Twice {
			return members[i].Name
		}
	}
	return ""
}

// readObject reads the object at s.at and appends its members to the request's.
func (s *scanner) readObject(of Shape) (first int, ok bool) {
	var own [16]Member // members of inner objects are appended first
	members := own[:0]
	s.depth--
	s.at = prompt.Space(s.src, s.at+1)
	ok = true
	if s.at < len(s.src) && s.src[s.at] == '}' {
		s.at++
	} else {
		for more := true; more && ok; {
			var name string
			var kind *Kind
			if name, kind, ok = s.readName(of); !ok {
				break
			}
			m := Member{Name: name, At: s.at}
			stored := kind != nil
			if before := memberIndex(members, name); stored && before >= 0 {
				if s.Every > 0 {
					members = slices.Delete(members, before, before+1)
				} else {
					m.Twice, kind = true, &text
					stored = memberIndex(members[before+1:], name) < 0
				}
			}
			if kind != nil {
				ok = s.readValue(&m, kind)
			} else if s.at, ok = prompt.Skip(s.src, s.at, s.depth); !ok && s.Unknown {
				s.field = name
			}
			if stored {
				members = append(members, m)
			}
			if ok {
				s.field = ""
				more, ok = s.readSeparator('}')
			}
		}
	}
	s.depth++
	first = len(s.r.Members)
	s.r.Members = append(s.r.Members, members...)
	return first, ok
}

// memberIndex returns the index of the first member with a name, -1 if none has it.
func memberIndex(members []Member, name string) int {
	for i := range members {
		if members[i].Name == name {
			return i
		}
	}
	return -1
}

// text is the Kind of a field that stays text.
var text Kind

// readName steps over the name at s.at and its colon. kind is nil for a member that Scan
// skips; its name is set only if an error needs it.
func (s *scanner) readName(of Shape) (name string, kind *Kind, ok bool) {
	start := s.at
	if s.at, ok = prompt.Name(s.src, s.at); !ok {
		return "", nil, false
	}
	end, plain, _ := prompt.String(s.src, start)
	raw := s.src[start+1 : end-1]
	if !plain {
		if s.Name != nil && !s.Name(s.src[start:end]) {
			s.at = end - 1
			return "", nil, false
		}
		raw = Unquoted(s.src[start:end])
	}
	s.pairs++
	known := of.fieldNamed(raw)
	switch {
	case known != nil && !known.Kind.ignored:
		return known.Name, &known.Kind, true
	case s.Every > 0 && s.pairs <= s.Every:
		return string(raw), &text, true
	}
	if known == nil {
		s.r.Unknown++
	}
	if s.Options.Unknown {
		return string(raw), nil, true
	}
	return "", nil, true
}

// fieldNamed returns the field of a name, nil if the shape lacks it.
func (s Shape) fieldNamed(name []byte) *Field {
	for i := range s {
		if s[i].Name == string(name) {
			return &s[i]
		}
	}
	return nil
}

// readSeparator steps over what follows a member or an element: a comma if there is another one, else end.
func (s *scanner) readSeparator(end byte) (more, ok bool) {
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

// readValue reads the value of a member.
func (s *scanner) readValue(m *Member, kind *Kind) (ok bool) {
	s.field, m.List.Bad, m.Read = m.Name, -1, s.at < len(s.src) && s.src[s.at] == '['
	switch r := s.r; {
	case m.Read && kind.token != nil:
		if s.Every > 0 {
			r.Tokens = r.Tokens[:0]
		}
		r.Tokens, ok = readList(s, &m.List, r.Tokens, s.Limit-len(r.Tokens), kind.token)
	case m.Read && kind.hash != nil:
		if s.Every > 0 {
			r.Hashes = r.Hashes[:0]
		}
		r.Hashes, ok = readList(s, &m.List, r.Hashes, s.roomForHashes(r), kind.hash)
	case m.Read && kind.objects:
		m.List.N, ok = s.readObjects(kind.of)
	default:
		m.Read = false
		s.at, ok = prompt.Skip(s.src, s.at, s.depth)
	}
	m.Raw = s.src[m.At:s.at]
	if ok {
		s.index = -1
	}
	return ok
}

// readObjects reads an array of objects into the items of the request, and counts them.
func (s *scanner) readObjects(of Shape) (n int, ok bool) {
	name := s.field
	s.depth--
	s.at = prompt.Space(s.src, s.at+1)
	if s.at < len(s.src) && s.src[s.at] == ']' {
		s.at++
		s.depth++
		return 0, true
	}
	for more := true; more; n++ {
		if n < MaxItems && s.at < len(s.src) && s.src[s.at] == '{' {
			s.field, s.index = "", -1
			it := Item{Object: true}
			if it.From, ok = s.readObject(of); ok {
				it.To = len(s.r.Members)
				s.r.Items = append(s.r.Items, it)
			}
		} else {
			s.field = ""
			if s.at, ok = prompt.Skip(s.src, s.at, s.depth); ok && n < MaxItems {
				s.r.Items = append(s.r.Items, Item{})
			}
		}
		if !ok {
			s.recordFailure(name, n)
			return n, false
		}
		s.field, s.index = name, n
		if more, ok = s.readSeparator(']'); !ok {
			return n, false
		}
	}
	s.depth++
	return n, true
}

// recordFailure records where an object that is an element of a field fails.
func (s *scanner) recordFailure(field string, index int) {
	if s.inner = s.field; s.field != "" && s.index >= 0 {
		s.inner += "[" + strconv.Itoa(s.index) + "]"
	}
	s.field, s.index = field, index
}

// leastRoom is the room, in elements, that readList uses for a list that is too long.
const leastRoom = 1 << 10

// readList reads the array of numbers at s.at: the usual elements in one go, each other
// by value. A list longer than room overwrites itself: only its length and faults count.
func readList[T uint32 | uint64](s *scanner, l *List, dst []T, room int, value func(text []byte) (T, bool)) ([]T, bool) {
	l.From = len(dst)
	end := l.From + max(room, leastRoom)
	s.at = prompt.Space(s.src, s.at+1)
	if s.at < len(s.src) && s.src[s.at] == ']' {
		s.at++
		l.To = l.From
		return dst, true
	}
	for more := true; more; {
		if len(dst) == end {
			dst = dst[:l.From]
		}
		start := s.at
		s.index = l.N
		var ok bool
		if s.at, ok = prompt.Skip(s.src, s.at, s.depth-1); !ok {
			if start == len(s.src) || s.src[start] == ']' {
				return dst, false
			}
			if l.Bad < 0 && (s.src[start] == '[' || s.src[start] == '{') {
				l.Bad, l.Text, l.At = l.N, s.src[start:s.at], start
			}
			l.N++
			return dst, false
		}
		text := s.src[start:s.at]
		v, fits := value(text)
		if !fits {
			if l.Bad < 0 {
				l.Bad, l.Text, l.At = l.N, text, start
			}
			l.Other = l.Other || text[0] != '-' && text[0]-'0' > 9
		}
		dst = append(dst, v)
		before := len(dst)
		dst, s.at = prompt.Digits(dst, s.src, s.at, end)
		l.N += 1 + len(dst) - before
		s.index = l.N - 1
		if more, ok = s.readSeparator(']'); !ok {
			return dst, false
		}
	}
	l.To = len(dst)
	return dst, true
}
