package registration

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/tape"
)

// FieldSalt is the name of the field that has a salt, of sources and of contexts.
const FieldSalt = "additionalsalt"

// field is a field of a registration. One of text, number and list is set, but for times to live.
type field struct {
	name     string // the same in files, requests, snapshots, errors and on the tape
	maxBytes int    // of a text; 0 where only some words are allowed
	text     func(*Registration) *string
	number   func(*Registration) *int
	list     func(*Registration) *[]string
	always   bool // a number that is written even if it is 0
}

// fields are all fields, in the order in which a snapshot and the tape have them.
var fields = [...]field{
	{name: "endpoint", maxBytes: maxEndpoint, text: func(r *Registration) *string { return &r.Endpoint }},
	{name: "replay_endpoint", maxBytes: maxEndpoint, text: func(r *Registration) *string { return &r.ReplayEndpoint }},
	{name: "snapshot_endpoint", maxBytes: maxEndpoint, text: func(r *Registration) *string { return &r.SnapshotEndpoint }},
	{name: "type", maxBytes: maxName, text: func(r *Registration) *string { return &r.Type }},
	{name: "modelname", maxBytes: maxName, text: func(r *Registration) *string { return &r.Model }},
	{name: "lora_name", maxBytes: maxName, text: func(r *Registration) *string { return &r.Lora }},
	{name: "tenant_id", maxBytes: maxName, text: func(r *Registration) *string { return &r.Tenant }},
	{name: "instance_id", maxBytes: maxName, text: func(r *Registration) *string { return &r.Instance }},
	{name: FieldSalt, maxBytes: maxName, text: func(r *Registration) *string { return &r.Salt }},
	{name: "copies", text: func(r *Registration) *string { return &r.Copies }},
	{name: "reports", text: func(r *Registration) *string { return &r.Reports }},
	{name: "owned", text: func(r *Registration) *string { return &r.Owned }},
	{name: "clear", text: func(r *Registration) *string { return &r.Clear }},
	{name: "sequence", text: func(r *Registration) *string { return &r.Sequence }},
	{name: "events", text: func(r *Registration) *string { return &r.Events }},
	{name: "approximate", text: func(r *Registration) *string { return &r.Approximate }},
	{name: "hash_profile.strategy", text: func(r *Registration) *string { return &r.Profile.Strategy }},
	{name: "hash_profile.algorithm", text: func(r *Registration) *string { return &r.Profile.Algorithm }},
	{name: "hash_profile.python_hash_seed", text: func(r *Registration) *string { return &r.Profile.PythonHashSeed }},
	{name: "hash_profile.index_projection", text: func(r *Registration) *string { return &r.Profile.IndexProjection }},
	{name: "hash_profile.extra_keys", text: func(r *Registration) *string { return &r.Profile.ExtraKeys }},
	{name: "block_size", always: true, number: func(r *Registration) *int { return &r.BlockSize }},
	{name: "dp_rank", always: true, number: func(r *Registration) *int { return &r.Rank }},
	{name: "capacity_blocks", number: func(r *Registration) *int { return &r.CapacityBlocks }},
	{name: fieldTTL}, // TTL, and MediaTTL as ttl.MEDIUM
	{name: "serves", list: func(r *Registration) *[]string { return &r.Serves }},
	{name: "aliases", list: func(r *Registration) *[]string { return &r.Aliases }},
	{name: "may_announce", list: func(r *Registration) *[]string { return &r.MayAnnounce }},
}

const fieldTTL = "ttl"

// Fields returns the registration as a snapshot keeps it.
func (r Registration) Fields() []tape.Field { return r.AppendFields(nil, false) }

// AppendFields appends the registration as the tape keeps it: by names, without empty fields. static says that the
// configuration names the source.
func (r *Registration) AppendFields(to []tape.Field, static bool) []tape.Field {
	w := FieldWriter(to)
	for i := range fields {
		switch f := &fields[i]; {
		case f.text != nil:
			w.Text(f.name, *f.text(r))
		case f.number != nil && f.always:
			w.Text(f.name, strconv.Itoa(*f.number(r)))
		case f.number != nil:
			w.Number(f.name, int64(*f.number(r)))
		case f.list != nil:
			for _, element := range *f.list(r) {
				w.Text(f.name, element)
			}
		default:
			if r.TTL != 0 {
				w.Text(fieldTTL, r.TTL.String())
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
	for i := range fields {
		f := &fields[i]
		switch value := tape.Value(from, f.name); {
		case f.text != nil:
			*f.text(&r) = value
		case f.number != nil && (f.always || value != ""):
			n, bad := strconv.Atoi(value)
			*f.number(&r), err = n, cmp.Or(err, bad)
		case f.list != nil:
			for _, given := range from {
				if given.Name == f.name {
					*f.list(&r) = append(*f.list(&r), given.Value)
				}
			}
		case f.name == fieldTTL && value != "":
			d, bad := time.ParseDuration(value)
			r.TTL, err = d, cmp.Or(err, bad)
		}
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
// it is first. The key is the same, and aliases change without a new source.
var compared = [...]string{
	"events", "endpoint", "replay_endpoint", "snapshot_endpoint", "type", "modelname", "lora_name", "block_size", FieldSalt, fieldTTL,
	"serves", "copies", "reports", "owned", "clear", "may_announce", "hash_profile", "sequence", "capacity_blocks", "approximate",
}

// Diff names the first field in which want differs from the running r, and has the values of both; "" when they are equal.
// copies is the word of stream.copies, which both mean where they name none.
func (r *Registration) Diff(want *Registration, copies string) (field, have, got string) {
	for _, name := range compared {
		if have, got = r.shown(name, copies), want.shown(name, copies); have != got {
			return name, have, got
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
		return cmp.Or(r.Clear, ClearAll)
	case "hash_profile":
		return r.Profile.Summary()
	case "sequence":
		return r.sequenceWord()
	}
	switch f := fieldNamed(name); {
	case f.text != nil:
		return *f.text(r)
	case f.number != nil:
		return strconv.Itoa(*f.number(r))
	default:
		return strings.Join(*f.list(r), ", ")
	}
}

// fieldNamed returns a field of the table.
func fieldNamed(name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
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
