package mooncake

import (
	"math"
	"slices"
	"unicode/utf8"
)

// fields reads the fields of a request by name and keeps the first error, so that a
// handler reads all of them in the order they are checked in. Of a field that is there
// twice the first counts.
type fields struct {
	form    Form
	entries []entry
	err     error
}

func (r *exchange) fields() fields { return fields{form: r.form, entries: r.entries} }

func (f *fields) fail(err *failure) {
	if f.err == nil {
		f.err = err
	}
}

// only refuses unknown fields.
func (f *fields) only(known ...string) {
	for i := range f.entries {
		if !slices.Contains(known, f.entries[i].name) {
			f.fail(unknownField(f.entries[i].name))
		}
	}
}

func unknownField(name string) *failure {
	return bad(name, "unknown_field", "unsupported request field: %s", name)
}

// field returns a field, nil when it is not there.
func (f *fields) field(name string) *value {
	for i := range f.entries {
		if f.entries[i].name == name {
			return &f.entries[i].value
		}
	}
	return nil
}

// required reads text that is there and not empty.
func (f *fields) required(name string) string {
	v := f.field(name)
	if v == nil {
		f.fail(missing(name))
		return ""
	}
	s, err := v.nonEmpty(name)
	if err != nil {
		f.fail(err)
	}
	return f.valid(name, s)
}

// text reads text; absent is "".
func (f *fields) text(name string) string {
	v := f.field(name)
	if v == nil {
		return ""
	}
	s, err := v.text(name)
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
	v := f.field(name)
	if v == nil {
		f.fail(missing(name))
		return 0
	}
	n, ok := v.int()
	if !ok {
		f.fail(bad(name, "invalid_type", "%s must be an integer", name))
	}
	return n
}

// isRank reports whether a number can be a rank.
func isRank(n int64) bool { return n >= 0 && n <= math.MaxInt32 }

func missing(name string) *failure { return bad(name, "missing", "%s is required", name) }

// text returns the text of a field.
func (v *value) text(name string) (string, *failure) {
	if v.kind != text {
		return "", bad(name, "invalid_type", "%s must be a string", name)
	}
	return string(v.raw), nil
}

// nonEmpty returns the text of a field that needs one.
func (v *value) nonEmpty(name string) (string, *failure) {
	s, err := v.text(name)
	if err == nil && s == "" {
		err = bad(name, "invalid_value", "%s must not be empty", name)
	}
	return s, err
}
