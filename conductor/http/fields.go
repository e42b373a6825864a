package http

import (
	"errors"
	"math"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/stage"
)

// presentMember returns the first of several spellings that is given and not null.
func presentMember(c body.Codec, members []body.Member, names ...string) (string, *body.Member) {
	for _, name := range names {
		for i := range members {
			if m := &members[i]; m.Name == name && !c.IsNull(m.Raw) {
				return name, m
			}
		}
	}
	return names[0], nil
}

// fields collects the first error of several field readers, so that a handler
// reads all its fields and checks once.
type fields struct {
	codec body.Codec // of the texts in body and spare
	body  []body.Member
	// spare has the fields that count where body lacks them.
	spare []body.Member
	// shape is what was looked for in the body, nil if everything was.
	shape  body.Shape
	detail bool // of the query string
	view   conductor.View
	clock  *stage.Clock // of the request, nil for none
	err    error

	forwarded bool              // by another replica
	forwarder forward.Forwarder // nil if the request may not be sent on

	warnings []string // about unknown fields

	known *knownNames // nil where names are not kept
}

// knownNames are the names that the last bodies had, so that most requests find the texts of their names made.
type knownNames struct {
	texts [8]string
	next  int
}

// maxKnownName bounds a name that is kept, in bytes.
const maxKnownName = 256

// intern returns raw as a string.
func (k *knownNames) intern(raw []byte) string {
	if k == nil || len(raw) > maxKnownName {
		return string(raw)
	}
	for _, known := range k.texts {
		if known == string(raw) {
			return known
		}
	}
	text := string(raw)
	k.texts[k.next] = text
	k.next = (k.next + 1) % len(k.texts)
	return text
}

var pooledFields = sync.Pool{New: func() any { return &fields{known: new(knownNames)} }}

// release gives f to another request.
func (f *fields) release() {
	*f = fields{known: f.known}
	pooledFields.Put(f)
}

// member returns the first of several spellings that is present and not null.
func (f *fields) member(names ...string) (string, *body.Member) {
	if f.shape != nil && !f.shape.Has(names[0]) {
		panic("BUG: a field that the shape of the body does not have: " + names[0])
	}
	name, m := presentMember(f.codec, f.body, names...)
	if m == nil {
		if spare, m := presentMember(f.codec, f.spare, names...); m != nil {
			return spare, m
		}
	}
	return name, m
}

// has reports whether a field is given and not null, under one of several spellings.
func (f *fields) has(names ...string) bool {
	_, m := f.member(names...)
	return m != nil
}

// field returns the text of what member finds.
func (f *fields) field(names ...string) (string, []byte) {
	name, m := f.member(names...)
	if m == nil {
		return name, nil
	}
	return name, m.Raw
}

func (f *fields) keepError(err error) {
	if f.err == nil {
		f.err = err
	}
}

// text reads a string; absent and null are "". Further names are aliases.
func (f *fields) text(names ...string) string {
	text, _ := f.givenText(names...)
	return string(text)
}

// name is text for a name that many requests have.
func (f *fields) name(names ...string) string {
	text, _ := f.givenText(names...)
	return f.known.intern(text)
}

// optional reads a string and keeps absent apart from "".
func (f *fields) optional(names ...string) *string {
	text, ok := f.givenText(names...)
	if !ok {
		return nil
	}
	v := string(text)
	return &v
}

// givenText reads a string. It is not ok if the field is absent, null or no string.
func (f *fields) givenText(names ...string) (text []byte, ok bool) {
	name, raw := f.field(names...)
	if raw == nil {
		return nil, false
	}
	if f.codec.Type(raw) != body.Text {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be a string", name))
		return nil, false
	}
	text = f.codec.Text(raw)
	if f.codec == body.Msgpack && !utf8.Valid(text) { // in JSON the whole body is
		f.keepError(invalid.Field(name, "invalid_value", "%s must be UTF-8", name))
		return nil, false
	}
	return text, true
}

// texts reads an array of strings.
func (f *fields) texts(name string) []string {
	_, raw := f.field(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '[' {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be an array of strings", name))
		return nil
	}
	texts := []string{}
	for text := range body.Elements(raw) {
		if text[0] != '"' {
			f.keepError(&invalid.FieldError{
				Field: name, Index: len(texts), Reason: "invalid_type", Message: name + " element must be a string",
			})
			return nil
		}
		texts = append(texts, string(body.Unquoted(text)))
	}
	return texts
}

// required reads a non-empty string.
func (f *fields) required(names ...string) string {
	name, raw := f.field(names...)
	if raw == nil {
		f.keepError(invalid.Field(name, "missing", "%s is required", name))
		return ""
	}
	v := f.name(names...)
	if v == "" { // that it is no string counts more
		f.keepError(invalid.Field(name, "invalid_value", "%s must not be empty", name))
	}
	return v
}

// id reads a string that is given and must not be empty. It is not interned, as required does, because no other request has it and it
// would take the place of a name that many have.
func (f *fields) id(name string) string {
	id := f.text(name)
	if id == "" { // that it is no string counts more
		f.keepError(invalid.Field(name, "invalid_value", "%s must not be empty", name))
	}
	return id
}

// boolean reads true or false; absent and null are false.
func (f *fields) boolean(name string) bool {
	_, raw := f.field(name)
	if raw == nil {
		return false
	}
	if f.codec.Type(raw) != body.Boolean {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be true or false", name))
		return false
	}
	return f.codec.True(raw)
}

// duration reads a time with its unit, such as "10m"; absent and null are 0.
func (f *fields) duration(name string) time.Duration {
	text := f.optional(name)
	if text == nil {
		return 0
	}
	d, err := time.ParseDuration(*text)
	if err != nil || d < 0 {
		f.keepError(invalid.Field(name, "invalid_value", "%s must be a time such as 10m, got %q", name, *text))
	}
	return d
}

// durations reads one time for all, or an object of times by name.
func (f *fields) durations(name string) (all time.Duration, each map[string]time.Duration) {
	_, raw := f.field(name)
	if raw == nil || raw[0] != '{' {
		return f.duration(name), nil
	}
	each = make(map[string]time.Duration)
	for key, text := range body.Pairs(raw) {
		field := name + "." + key
		in := fields{body: []body.Member{{Name: field, Raw: text}}}
		if _, twice := each[key]; twice {
			in.keepError(duplicateField(field))
		}
		if _, m := in.member(field); m != nil {
			each[key] = in.duration(field)
		}
		f.keepError(in.err)
	}
	return 0, each
}

// integer reads a required integer from low to math.MaxInt32.
func (f *fields) integer(name string, low int64) int {
	_, raw := f.field(name)
	if raw == nil {
		f.keepError(invalid.Field(name, "missing", "%s is required", name))
		return 0
	}
	raw = f.codec.Digits(raw)
	v, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (v < low || v > math.MaxInt32):
		f.keepError(invalid.Field(name, "out_of_range", "%s must be in %d..%d, got %.32s", name, low, math.MaxInt32, raw))
	case err != nil:
		f.keepError(invalid.Field(name, "invalid_type", "%s must be an integer", name))
	default:
		return int(v)
	}
	return 0
}

// atLeast reads an integer from low up; absent and null are 0.
func (f *fields) atLeast(name string, low int64) int {
	if !f.has(name) {
		return 0
	}
	return f.integer(name, low)
}

// blockSize reads the required block_size, in tokens.
func (f *fields) blockSize() int { return f.integer("block_size", 1) }
