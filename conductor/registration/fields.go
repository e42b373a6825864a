package registration

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/tape"
)

// FieldSalt is the name of the field that has a salt, of sources and of contexts.
const FieldSalt = "additionalsalt"

// IsSecret reports whether what a registration has in a field is kept from other clients that may register: its salt, and the
// seed of its engine's hashes with the profile around it. A client that knows them can name blocks of other users.
func IsSecret(field string) bool {
	return field == FieldSalt || field == fieldProfile || field == fieldHashSeed
}

const (
	fieldProfile  = "hash_profile"
	fieldHashSeed = "python_hash_seed"
)

// A Field is one field of a registration, as the tags of the struct describe it:
//
//	name      its name, where that is not the one of json; "-" for a field that is a part of another one
//	also      further names that requests may use
//	required  it must be given, unless the engine is asked for it
//	words     the values of a text that is one of a few, in upper or lower case
//	bytes     the most bytes of a text, or of each element of a list
//	items     the most elements of a list
//	min       the least value of a number that is given
//	auto      the word auto is a value too, and leaves it to the engine
//	default   what openapi.yaml shows as the value of a field that is left out
//	derived   it follows from other fields, so no snapshot keeps it
//	live      a source that runs takes another value over, and goes on
//	since     the version of snapshots whose readers know it, where that is not the first one
type Field struct {
	Name     string   // the same in files, requests, snapshots, errors and on the tape, such as hash_profile.strategy
	Names    []string // Name, and what else requests may call it
	Required bool
	Words    []string
	MaxBytes int // 0 is no bound, as for MaxItems
	MaxItems int
	Least    int
	Auto     bool
	Default  string
	Since    uint32 // 0 is the first version
	Live     bool

	Index []int // of the field in the struct, as reflect has it

	derived bool
	always  bool // a number that is written even if it is 0
}

// Of returns a pointer to the field's value in r: *string, *int, *[]string, or *time.Duration for ttl, whose times of
// single media are MediaTTL.
func (f *Field) Of(r *Registration) any {
	return reflect.ValueOf(r).Elem().FieldByIndex(f.Index).Addr().Interface()
}

// Table has all fields, in the order of the struct. It must not change.
var Table = fieldsOf(reflect.TypeFor[Registration](), "", nil)

// kept are the fields in the order in which a snapshot and the tape have them, which fingerprints of replicas depend
// on: texts, numbers, times, lists.
var kept = func() (out []*Field) {
	kinds := []reflect.Type{
		reflect.TypeFor[*string](), reflect.TypeFor[*int](), reflect.TypeFor[*time.Duration](), reflect.TypeFor[*[]string](),
	}
	for _, kind := range kinds {
		for i := range Table {
			if f := &Table[i]; !f.derived && reflect.TypeOf(f.Of(new(Registration))) == kind {
				out = append(out, f)
			}
		}
	}
	return out
}()

// fieldsOf returns the fields of a struct, those of structs in it under the names of both.
func fieldsOf(of reflect.Type, within string, index []int) (out []Field) {
	for i := range of.NumField() {
		member := of.Field(i)
		json, options, _ := strings.Cut(member.Tag.Get("json"), ",")
		name, at := within+cmp.Or(member.Tag.Get("name"), json), append(slices.Clone(index), i)
		switch {
		case name == "-":
			continue
		case member.Type.Kind() == reflect.Struct:
			out = append(out, fieldsOf(member.Type, name+".", at)...)
			continue
		}
		number := func(tag string) int {
			n, _ := strconv.Atoi(member.Tag.Get(tag))
			return n
		}
		words := func(tag string) []string {
			if text := member.Tag.Get(tag); text != "" {
				return strings.Split(text, "|")
			}
			return nil
		}
		out = append(out, Field{
			Name: name, Names: append([]string{name}, words("also")...), Required: member.Tag.Get("required") != "", Words: words("words"),
			Least: number("min"), Auto: member.Tag.Get("auto") != "", MaxBytes: number("bytes"), MaxItems: number("items"),
			Default: member.Tag.Get("default"), Since: uint32(number("since")), Live: member.Tag.Get("live") != "",
			derived: member.Tag.Get("derived") != "", always: options == "", Index: at,
		})
	}
	return out
}

const fieldTTL = "ttl"

// Fields returns the registration as a snapshot keeps it.
func (r Registration) Fields() []tape.Field { return r.AppendFields(nil, false) }

// AppendFields appends the registration as the tape keeps it: by names, without empty fields. static says that the
// configuration names the source.
func (r *Registration) AppendFields(to []tape.Field, static bool) []tape.Field {
	w := FieldWriter(to)
	for _, f := range kept {
		switch v := f.Of(r).(type) {
		case *string:
			w.Text(f.Name, *v)
		case *int:
			if *v != 0 || f.always {
				w.Text(f.Name, strconv.Itoa(*v))
			}
		case *[]string:
			for _, element := range *v {
				w.Text(f.Name, element)
			}
		case *time.Duration:
			if *v != 0 {
				w.Text(f.Name, v.String())
			}
			for _, medium := range slices.Sorted(maps.Keys(r.MediaTTL)) {
				w.Text(fieldTTL+"."+medium, r.MediaTTL[medium].String())
			}
		}
	}
	w.Flag("static", static)
	return w
}

// FromFields reads what AppendFields wrote, and returns the first fault of the registration.
func FromFields(from []tape.Field) (r Registration, static bool, err error) {
	if r, err = ReadFields(from); err == nil {
		err = r.Normalize(true)
	}
	if err != nil {
		return r, false, fmt.Errorf("the registration of %q cannot be read: %w", tape.Value(from, tape.FieldSource), err)
	}
	return r, tape.Value(from, "static") != "", nil
}

// ReadFields reads what AppendFields wrote. It does not check the registration, and passes unknown names over.
func ReadFields(from []tape.Field) (r Registration, err error) {
	for _, f := range kept {
		value := tape.Value(from, f.Name)
		var bad error
		switch v := f.Of(&r).(type) {
		case *string:
			*v = value
		case *int:
			if f.always || value != "" {
				*v, bad = strconv.Atoi(value)
			}
		case *[]string:
			for _, given := range from {
				if given.Name == f.Name {
					*v = append(*v, given.Value)
				}
			}
		case *time.Duration:
			if value != "" {
				*v, bad = time.ParseDuration(value)
			}
		}
		err = cmp.Or(err, bad)
	}
	for _, given := range from {
		if medium, ok := strings.CutPrefix(given.Name, fieldTTL+"."); ok {
			if r.MediaTTL == nil {
				r.MediaTTL = make(map[string]time.Duration)
			}
			d, bad := time.ParseDuration(given.Value)
			r.MediaTTL[medium], err = d, cmp.Or(err, bad)
		}
	}
	return r, err
}

// compared are the fields in the order in which Diff compares them. Another word for events comes with other endpoints, so
// it is first. Those of the key are the same, and live ones change without a new source.
var compared = func() []string {
	out := []string{"events"}
	for _, f := range Table {
		name, _, _ := strings.Cut(f.Name, ".") // profiles are compared as a whole
		if !f.Live && !slices.Contains(append(out, "instance_id", "tenant_id", "dp_rank"), name) {
			out = append(out, name)
		}
	}
	return out
}()

// Diff names the first field in which want differs from the running r, and has the values of both; "" when they are equal.
// copies is the word of stream.copies, which both mean where they name none.
func (r *Registration) Diff(want *Registration, copies string) (field, have, got string) {
	for _, name := range compared {
		if name == "clear" && want.Clear == "" && r.Clear == ClearAll {
			continue // Dynamo's dialect registers so, and this client does not ask for another rule
		}
		if have, got = r.shown(name, copies), want.shown(name, copies); have != got {
			return name, have, got
		}
	}
	return "", "", ""
}

// WithLive returns r with the live fields of another registration of its source, and whether that changes one.
func WithLive(r Registration, of *Registration) (now Registration, changed bool) {
	for i := range Table {
		if f := &Table[i]; f.Live {
			have, want := reflect.ValueOf(f.Of(&r)).Elem(), reflect.ValueOf(f.Of(of)).Elem()
			changed = changed || !reflect.DeepEqual(have.Interface(), want.Interface())
			have.Set(want)
		}
	}
	return r, changed
}

// DiffLive returns the first live field in which two registrations differ, and what each has there; "" if there is none.
func DiffLive(a, b *Registration) (field, have, got string) {
	for i := range Table {
		if f := &Table[i]; f.Live && !reflect.DeepEqual(f.Of(a), f.Of(b)) {
			return f.Name, fmt.Sprint(reflect.ValueOf(f.Of(a)).Elem()), fmt.Sprint(reflect.ValueOf(f.Of(b)).Elem())
		}
	}
	return "", "", ""
}

// shown returns what a field means, in words. Fields that mean the same have the same words.
func (r *Registration) shown(name, copies string) string {
	switch name {
	case fieldTTL:
		return r.ttlText()
	case "copies":
		return cmp.Or(r.Copies, copies)
	case "owned":
		return cmp.Or(r.Owned, OwnedCount)
	case "clear":
		if JudgesResets(r) {
			return "default"
		}
		return cmp.Or(r.Clear, ClearAll)
	case fieldProfile:
		return r.Profile.Summary()
	case "sequence":
		return r.sequenceWord()
	}
	switch v := Named(name).Of(r).(type) {
	case *string:
		return *v
	case *int:
		return strconv.Itoa(*v)
	case *[]string:
		return strings.Join(*v, ", ")
	}
	panic("BUG: the values of " + name + " cannot be shown")
}

// Named returns the field of a name, which must be there.
func Named(name string) *Field {
	for i := range Table {
		if Table[i].Name == name {
			return &Table[i]
		}
	}
	panic("BUG: a registration has no field " + name)
}

// FieldWriter makes a list of fields for a snapshot. It leaves out what is empty.
type FieldWriter []tape.Field

// Text adds a text.
func (w *FieldWriter) Text(name, value string) {
	if value != "" {
		*w = append(*w, tape.Field{Name: name, Value: value})
	}
}

// Number adds a number.
func (w *FieldWriter) Number(name string, v int64) {
	if v != 0 {
		w.Text(name, strconv.FormatInt(v, 10))
	}
}

// Flag adds a flag.
func (w *FieldWriter) Flag(name string, on bool) {
	if on {
		w.Text(name, "true")
	}
}

// FieldReader reads a list of fields. Err is the first mistake.
type FieldReader struct {
	Fields []tape.Field
	Err    error
}

// Text returns a text, "" if it is not there.
func (r *FieldReader) Text(name string) string { return tape.Value(r.Fields, name) }

// Flag returns a flag.
func (r *FieldReader) Flag(name string) bool { return r.Text(name) == "true" }

// Number returns a number of a size in bits, 0 if it is not there.
func (r *FieldReader) Number(name string, bits int) int64 {
	v := r.Text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, bits)
	r.KeepError(name, err)
	return n
}

// Unsigned returns a number of 64 bits that must be there.
func (r *FieldReader) Unsigned(name string) uint64 {
	n, err := strconv.ParseUint(r.Text(name), 10, 64)
	r.KeepError(name, err)
	return n
}

// KeepError makes err the mistake of a field, unless there is one already.
func (r *FieldReader) KeepError(name string, err error) {
	if err != nil && r.Err == nil {
		r.Err = fmt.Errorf("field %s: %w", name, err)
	}
}
