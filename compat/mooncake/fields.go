package mooncake

import (
	"math"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
)

// fields reads the fields of a request by name and keeps the first error, so that a
// handler reads all of them in the order they are checked in. Of a field that is there
// twice the first counts.
type fields struct {
	d       *handlers
	members []body.Member
	err     error
}

func (f *fields) fail(err *failure) {
	if f.err == nil {
		f.err = err
	}
}

// only refuses unknown fields.
func (f *fields) only(known body.Shape) {
	for i := range f.members {
		if name := f.members[i].Name; !known.Has(name) {
			f.fail(unknownField(name))
		}
	}
}

func unknownField(name string) *failure {
	return bad(name, "unknown_field", "unsupported request field: %s", name)
}

// field returns a field, nil when it is not there.
func (f *fields) field(name string) *body.Member {
	for i := range f.members {
		if f.members[i].Name == name {
			return &f.members[i]
		}
	}
	return nil
}

// optional is field, but nil for null too.
func (f *fields) optional(name string) *body.Member {
	if m := f.field(name); m != nil && f.kind(m) != body.Null {
		return m
	}
	return nil
}

func (f *fields) kind(m *body.Member) body.Type { return f.d.cfg.Codec.Type(m.Raw) }

// required reads text that is there and not empty.
func (f *fields) required(name string) string { return f.valid(name, f.named(name)) }

// named is required for text of any bytes.
func (f *fields) named(name string) string {
	m := f.field(name)
	if m == nil {
		f.fail(missing(name))
		return ""
	}
	s, err := f.nonEmpty(m)
	if err != nil {
		f.fail(err)
	}
	return s
}

// text reads text; absent is "".
func (f *fields) text(name string) string {
	m := f.field(name)
	if m == nil {
		return ""
	}
	s, err := f.textOf(m)
	if err != nil {
		f.fail(err)
	}
	return f.valid(name, s)
}

// valid refuses text that the JSON dialect could not print.
func (f *fields) valid(name, s string) string {
	if !utf8.ValidString(s) {
		f.fail(bad(name, "invalid_value", "%s must be valid UTF-8", name))
	}
	return s
}

// integer reads a required integer of 64 bits.
func (f *fields) integer(name string) int64 {
	m := f.field(name)
	if m == nil {
		f.fail(missing(name))
		return 0
	}
	n, ok := f.d.cfg.Codec.Int(m.Raw)
	if !ok {
		f.fail(bad(name, "invalid_type", "%s must be an integer", name))
	}
	return n
}

// isRank reports whether a number can be a rank.
func isRank(n int64) bool { return n >= 0 && n <= math.MaxInt32 }

func missing(name string) *failure { return bad(name, "missing", "%s is required", name) }

// textOf returns the text of a field.
func (f *fields) textOf(m *body.Member) (string, *failure) {
	if f.kind(m) != body.Text {
		return "", bad(m.Name, "invalid_type", "%s must be a string", m.Name)
	}
	return string(f.d.cfg.Codec.Text(m.Raw)), nil
}

// nonEmpty returns the text of a field that needs one.
func (f *fields) nonEmpty(m *body.Member) (string, *failure) {
	s, err := f.textOf(m)
	if err == nil && s == "" {
		err = bad(m.Name, "invalid_value", "%s must not be empty", m.Name)
	}
	return s, err
}
