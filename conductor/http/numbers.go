package http

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"kvconductor/conductor"
)

// tokens reads the required array of token ids, each a u32.
func (f *fields) tokens(limit int) []uint32 {
	name, raw := f.body.field("token_ids")
	if raw == nil {
		f.fail(conductor.Invalid(name, "missing", "%s is required", name))
		return nil
	}
	var list []uint32
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil || holdsNull(raw) {
		f.fail(badElement(name, raw, func(text string) (reason, want string) {
			if _, err := strconv.ParseUint(text, 10, 32); err == nil {
				return "", ""
			}
			return numberReason(text), "a token id in 0..4294967295"
		}))
		return nil
	}
	if len(list) > limit {
		f.fail(tooMany(name, len(list), limit))
		return nil
	}
	return list
}

// hashes reads an array of 64-bit hashes under any of its names. Negative
// numbers are taken as two's complement, the way some engines print hashes.
// Several names at once must agree.
func (f *fields) hashes(limit int, names ...string) []uint64 {
	var found []uint64
	var from string
	for _, name := range names {
		_, raw := f.body.field(name)
		if raw == nil {
			continue
		}
		list, err := parseHashes(name, raw, limit)
		if err != nil {
			f.fail(err)
			return nil
		}
		if from != "" && !equalHashes(found, list) {
			f.fail(conductor.Invalid(name, "conflict", "%s and %s are both given and differ", from, name))
			return nil
		}
		found, from = list, name
	}
	if from == "" {
		f.fail(conductor.Invalid(names[0], "missing", "%s is required", names[0]))
	}
	return found
}

func parseHashes(name string, raw json.RawMessage, limit int) ([]uint64, error) {
	var numbers []json.Number
	if raw[0] != '[' || json.Unmarshal(raw, &numbers) != nil || holdsNull(raw) || bytes.IndexByte(raw, '"') >= 0 {
		return nil, badElement(name, raw, func(text string) (reason, want string) {
			if _, ok := hashValue(text); ok {
				return "", ""
			}
			return numberReason(text), "a 64-bit integer"
		})
	}
	if len(numbers) > limit {
		return nil, tooMany(name, len(numbers), limit)
	}
	list := make([]uint64, len(numbers))
	for i, n := range numbers {
		v, ok := hashValue(n.String())
		if !ok {
			return nil, badNumber(name, i, numberReason(n.String()), "a 64-bit integer")
		}
		list[i] = v
	}
	return list, nil
}

func hashValue(text string) (uint64, bool) {
	if v, err := strconv.ParseUint(text, 10, 64); err == nil {
		return v, true
	}
	v, err := strconv.ParseInt(text, 10, 64)
	return uint64(v), err == nil
}

func equalHashes(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// holdsNull reports whether an array of numbers contains null, which
// encoding/json reads as zero.
func holdsNull(raw json.RawMessage) bool {
	for _, ch := range raw {
		if ch == 'n' {
			return true
		}
	}
	return false
}

// badElement explains why raw is no array of numbers: it finds the first element
// that check gives a reason for.
func badElement(name string, raw json.RawMessage, check func(text string) (reason, want string)) error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return conductor.Invalid(name, "not_array", "%s must be an array", name)
	}
	for i, element := range list {
		if reason, want := check(string(element)); reason != "" {
			return badNumber(name, i, reason, want)
		}
	}
	return conductor.Invalid(name, "not_array", "%s must be an array of integers", name)
}

func badNumber(name string, i int, reason, want string) error {
	return &conductor.FieldError{Field: name, Index: i, Reason: reason, Message: name + " element must be " + want}
}

// numberReason tells a number that does not fit from what is no integer at all.
func numberReason(text string) string {
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && v == math.Trunc(v) && isDigits(text) {
		return "out_of_range"
	}
	return "invalid_type"
}

func isDigits(text string) bool {
	if text != "" && text[0] == '-' {
		text = text[1:]
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

func tooMany(name string, got, limit int) error {
	return conductor.Invalid(name, "out_of_range", "%s has %d elements, limits.max_tokens allows %d", name, got, limit)
}
