package extproc

import (
	"bytes"
	"encoding/json"
)

// maxUsage is the most bytes of a usage object. Engines send some 300.
const maxUsage = 2 << 10

var usageKey = []byte(`"usage"`)

// usageScanner finds the last usage object in the body of a response, whose pieces it is given as they pass. It holds at most
// 2*maxUsage bytes.
//
// It looks for the key alone, whatever is around it, so that it reads JSON, server-sent events, and events that nest the response, and
// does not mind what comes before or after. A generated text cannot forge the key: quotes within a JSON string are escaped.
type usageScanner struct {
	pending []byte // begins with a key whose object is incomplete, or is shorter than a key
	object  []byte // the last complete object
}

func (s *usageScanner) write(piece []byte) {
	for len(piece) > 0 {
		n := min(len(piece), maxUsage)
		s.pending = append(s.pending, piece[:n]...)
		piece = piece[n:]
		s.pending = append(s.pending[:0], s.scan(s.pending)...)
	}
}

// scan stores the last complete object of data, and returns the end of data that has to be seen again with what follows.
func (s *usageScanner) scan(data []byte) []byte {
	for {
		at := bytes.Index(data, usageKey)
		if at < 0 {
			return data[max(0, len(data)-len(usageKey)+1):]
		}
		data = data[at:]
		value := bytes.TrimLeft(data[len(usageKey):], " \t\r\n")
		if len(value) > 0 && value[0] == ':' {
			value = bytes.TrimLeft(value[1:], " \t\r\n")
			if len(value) > 0 && value[0] == '{' {
				if n := objectLength(value); n > 0 {
					s.object = append(s.object[:0], value[:n]...)
					data = value[n:]
					continue
				}
			}
		}
		// What begins with null, a text or a number is no usage. What may still become one waits, unless it is too long for that.
		if (len(value) == 0 || value[0] == '{') && len(data) <= maxUsage {
			return data
		}
		data = data[len(usageKey):]
	}
}

// objectLength returns the length of the JSON object at the start of data, 0 if its end is missing.
func objectLength(data []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// tokens returns how many tokens the prompt had, and how many of them came from the engine's cache, -1 if the engine does not say.
// ok is false if no usage was found.
func (s *usageScanner) tokens() (prompt, cached int, ok bool) {
	type details struct {
		CachedTokens *int `json:"cached_tokens"`
	}
	var u struct {
		PromptTokens  *int     `json:"prompt_tokens"`
		PromptDetails *details `json:"prompt_tokens_details"`
		InputTokens   *int     `json:"input_tokens"` // of /v1/responses
		InputDetails  *details `json:"input_tokens_details"`
	}
	if json.Unmarshal(s.object, &u) != nil {
		return 0, 0, false
	}
	tokens, of := u.PromptTokens, u.PromptDetails
	if tokens == nil {
		tokens, of = u.InputTokens, u.InputDetails
	}
	if tokens == nil || *tokens < 0 {
		return 0, 0, false
	}
	if of == nil || of.CachedTokens == nil || *of.CachedTokens < 0 {
		return *tokens, -1, true
	}
	return *tokens, *of.CachedTokens, true
}
