package dynamo

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/scope"
)

// Dynamo's instance ids are integers, ours are strings. An integer is kept as its
// decimal text, and an id that reads as such a text is printed as an integer, so
// that neither side sees a difference. "01" and "+1" are strings.

// numeric reports whether an id is the canonical text of an integer of 64 bits.
func numeric(id string) (uint64, bool) {
	if id == "" || id[0] == '0' && id != "0" || id[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(id, 10, 64)
	return n, err == nil
}

// appendID appends an id as a JSON value.
func appendID(dst []byte, id string) []byte {
	if _, ok := numeric(id); ok {
		return append(dst, id...)
	}
	return body.AppendString(dst, id, false)
}

// InstanceID encodes as appendID does.
type instanceID string

func (id instanceID) MarshalJSON() ([]byte, error) { return appendID(nil, string(id)), nil }

// compareIDs orders integers by value, before strings.
func compareIDs(a, b string) int {
	x, xok := numeric(a)
	y, yok := numeric(b)
	switch {
	case xok && yok:
		return cmp.Compare(x, y)
	case xok:
		return -1
	case yok:
		return 1
	}
	return strings.Compare(a, b)
}

// Members of request bodies. A member that is not required may be left out;
// whether it may be null is said here.

// identity reads an instance id.
func identity(into *string) member {
	return member{name: "instance_id", required: true, read: func(d *decoder, f *body.Member) {
		if isString(f.Raw) && paired(f.Raw) {
			*into = d.text(f)
			return
		}
		*into = strconv.FormatUint(d.unsigned(f, math.MaxUint64, "u64"), 10)
	}}
}

// model reads a model's name.
func model(into *string) member {
	return member{name: "model_name", spare: "modelname", required: true, read: func(d *decoder, f *body.Member) { *into = d.text(f) }}
}

// stringMember reads a string that is not null.
func stringMember(name string, into *string) member {
	return member{name: name, read: func(d *decoder, f *body.Member) { *into = d.text(f) }}
}

// stringOrNull reads a string or null, which is as good as nothing.
func stringOrNull(name string, into **string) member {
	return member{name: name, read: func(d *decoder, f *body.Member) {
		if !isNull(f) {
			s := d.text(f)
			*into = &s
		}
	}}
}

// rankOrNull reads a data-parallel rank or null, which is as good as nothing.
func rankOrNull(into **uint64) member {
	return member{name: "dp_rank", read: func(d *decoder, f *body.Member) {
		if !isNull(f) {
			n := d.unsigned(f, math.MaxUint32, "u32")
			*into = &n
		}
	}}
}

// Lists of numbers, which the scanner reads into the request's buffers.
var (
	tokens      = member{name: "token_ids", required: true, read: func(d *decoder, f *body.Member) { d.list(f, "u32") }}
	blockHashes = member{name: "block_hashes", required: true, read: func(d *decoder, f *body.Member) { d.list(f, "i64") }}
)

// group is how a request names the routing group: by that, or by the tenant of
// older clients.
type group struct{ routing, tenant *string }

// name is the tenant that the group is here: rule ID-2.
func (p group) name() string {
	for _, name := range []*string{p.routing, p.tenant} {
		if name != nil && *name != "" {
			return *name
		}
	}
	return scope.DefaultTenant
}

// named reports whether the request says anything about the group; an empty name is
// nothing.
func (p group) named() bool {
	return p.routing != nil && *p.routing != "" || p.tenant != nil && *p.tenant != ""
}

// required makes a member one that a request must have.
func required(m member) member {
	m.required = true
	return m
}
