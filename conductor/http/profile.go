package http

import (
	"errors"
	"slices"
	"strings"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
)

// profileFields are the fields of a hash profile, with their names in it, and profileShape is the shape of that.
var profileFields, profileShape = func() (all []*registration.Field, shape body.Shape) {
	for i := range registration.Table {
		if name, ok := strings.CutPrefix(registration.Table[i].Name, "hash_profile."); ok {
			all, shape = append(all, &registration.Table[i]), append(shape, body.Field{Name: name})
		}
	}
	return all, shape
}()

// profile reads hash_profile; absent and null are none. Unlike the fields around it,
// an unknown one in it is an error: it would be a profile of another kind.
func (f *fields) profile() registration.HashProfile {
	const name = "hash_profile"
	_, raw := f.field(name)
	if raw == nil {
		return registration.HashProfile{}
	}
	members, _, err := new(body.Request).ScanText(raw, profileShape, body.Options{})
	if err != nil {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be an object", name))
		return registration.HashProfile{}
	}
	in := fields{body: members, shape: profileShape}
	var unknown []string
	profileShape.Strangers(body.JSON, raw, func(_, name string, _ body.Shape) { unknown = append(unknown, name) })
	if len(unknown) > 0 {
		field := slices.Min(unknown)
		in.keepError(invalid.Field(field, "unknown_field", "unsupported field in %s: %s", name, field))
	}
	if twice := body.Repeated(members); twice != "" {
		in.keepError(duplicateField(twice))
	}
	var r registration.Registration
	for i, at := range profileFields {
		read := in.text
		if at.Required {
			read = in.required
		}
		*at.Of(&r).(*string) = read(profileShape[i].Name)
	}
	var field *invalid.FieldError
	if errors.As(in.err, &field) {
		f.keepError(invalid.Field(name+"."+field.Field, field.Reason, "%s", field.Message))
	}
	return r.Profile
}
