package prompt

import (
	"bytes"
	"encoding/json"
	"math"
)

// A body is scanned once, in place of encoding/json's two passes, which take longer than all else that a choice needs. The scan
// finds where values begin and end and does not check what is in them: IDs and json.Unmarshal do that for those that are read here,
// and the tokenizer for those that go there.

// fields calls use with the fields of a JSON object, and reports false if the text is none. If a name comes twice, so does use.
// The raw values are parts of text, without white space around them.
func fields(text []byte, use func(name string, raw json.RawMessage)) bool {
	s := scanner{text}
	if s.next() != '{' {
		return false
	}
	for first := true; ; first = false {
		switch b := s.peek(); {
		case b == '}' && first:
			s.next()
			return s.peek() == 0 && len(s.rest) == 0
		case b != '"':
			return false
		}
		name, ok := unquote(s.value())
		if !ok || s.next() != ':' {
			return false
		}
		raw := s.value()
		if raw == nil {
			return false
		}
		use(name, raw)
		switch s.next() {
		case ',':
		case '}':
			return s.peek() == 0 && len(s.rest) == 0
		default:
			return false
		}
	}
}

// elements calls use with the elements of a JSON list, and reports false if raw is none.
func elements(raw []byte, use func(raw json.RawMessage)) bool {
	s := scanner{raw}
	if s.next() != '[' {
		return false
	}
	if s.peek() == ']' {
		return true
	}
	for {
		one := s.value()
		if one == nil {
			return false
		}
		use(one)
		switch s.next() {
		case ',':
		case ']':
			return true
		default:
			return false
		}
	}
}

const space = " \t\r\n" // of JSON

// scanner has the text that is left.
type scanner struct{ rest []byte }

// peek returns the next byte that is no white space, 0 at the end.
func (s *scanner) peek() byte {
	for i, b := range s.rest {
		if b != ' ' && b != '\t' && b != '\r' && b != '\n' {
			s.rest = s.rest[i:]
			return b
		}
	}
	s.rest = nil
	return 0
}

// next takes that byte.
func (s *scanner) next() byte {
	b := s.peek()
	if len(s.rest) > 0 {
		s.rest = s.rest[1:]
	}
	return b
}

// value takes a value, and returns nil if the text has none, or no whole one.
func (s *scanner) value() []byte {
	end := -1
	switch b := s.peek(); b {
	case '"':
		end = endOfString(s.rest)
	case '{', '[':
		end = endOfNest(s.rest)
	case 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		if end = bytes.IndexAny(s.rest, ",]}"+space); end < 0 {
			end = len(s.rest)
		}
	}
	if end < 0 {
		return nil
	}
	value := s.rest[:end:end]
	s.rest = s.rest[end:]
	return value
}

// endOfString returns where the text goes on after the string that it begins with, -1 if that does not end.
func endOfString(text []byte) int {
	for i := 1; i < len(text); {
		end := bytes.IndexByte(text[i:], '"')
		if end < 0 {
			return -1
		}
		end += i
		escapes := 0
		for text[end-1-escapes] == '\\' {
			escapes++
		}
		if i = end + 1; escapes%2 == 0 {
			return i
		}
	}
	return -1
}

// endOfNest is endOfString for an object or a list.
func endOfNest(text []byte) int {
	if text[0] == '[' {
		// A list of numbers may be long. It ends at the first bracket.
		if end := bytes.IndexByte(text, ']'); end > 0 && bytes.IndexByte(text[:end], '"') < 0 &&
			bytes.IndexByte(text[1:end], '[') < 0 && bytes.IndexByte(text[:end], '{') < 0 {
			return end + 1
		}
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			end := endOfString(text[i:])
			if end < 0 {
				return -1
			}
			i += end - 1
		}
	}
	return -1
}

// unquote returns the text of a JSON string.
func unquote(raw []byte) (text string, ok bool) {
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	err := json.Unmarshal(raw, &text)
	return text, err == nil && len(raw) > 0 && raw[0] == '"'
}

// IDs reads a JSON list of token ids. It reports false if the list is none, or if an element is no id: an integer from 0 to 2³²−1.
func IDs(list []byte) ([]uint32, bool) {
	list = bytes.Trim(list, space)
	if len(list) < 2 || list[0] != '[' || list[len(list)-1] != ']' {
		return nil, false
	}
	if i := skipSpace(list, 1); i == len(list)-1 {
		return []uint32{}, true
	}
	ids := make([]uint32, 0, bytes.Count(list, []byte{','})+1)
	for i := 1; ; i++ { // the bracket at the end stops each loop
		i = skipSpace(list, i)
		from, id := i, uint64(0)
		for ; list[i]-'0' <= 9; i++ {
			id = id*10 + uint64(list[i]-'0')
		}
		digits := i - from
		if digits == 0 || digits > 10 || id > math.MaxUint32 || digits > 1 && list[from] == '0' {
			return nil, false
		}
		ids = append(ids, uint32(id))
		i = skipSpace(list, i)
		switch {
		case list[i] == ',':
		case i == len(list)-1:
			return ids, true
		default:
			return nil, false
		}
	}
}

// skipSpace returns where the next byte is that is no white space. The text ends with such a byte.
func skipSpace(text []byte, i int) int {
	for text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r' {
		i++
	}
	return i
}
