package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// shapes are the types of fields that the tags of a registration do not tell.
var shapes = map[string]string{
	"type":    "type: string", // in upper or lower case, unlike other words
	"dp_rank": `allOf: [{$ref: "#/components/schemas/Rank"}]`,
	"ttl": "oneOf: [{type: string, nullable: true}, " +
		"{type: object, maxProperties: 64, additionalProperties: {type: string, nullable: true}}]",
	"may_announce": "type: array, nullable: true, maxItems: 0, items: {type: string}", // requests may not name any
	"hash_profile": `type: object, nullable: true, allOf: [{$ref: "#/components/schemas/HashProfile"}]`,
}

// registrationSchemas renders the properties of the schemas Registration and HashProfile of openapi.yaml from the
// fields of a registration and the comments above them.
func registrationSchemas(t *testing.T) (fields, profile string) {
	whole := reflect.TypeFor[registration.Registration]()
	describe := func(of reflect.Type, file, within string) map[string]string {
		source, err := os.ReadFile(file)
		must.Succeed(t, err)
		comments, out := commentsOf(string(source)), map[string]string{}
		for i := range of.NumField() {
			json, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			key := cmp.Or(of.Field(i).Tag.Get("name"), json)
			out[within+key] = strings.Join(strings.Fields(comments[of.Name()+"."+of.Field(i).Name]), " ")
		}
		return out
	}
	member, _ := whole.FieldByName("Profile")
	descriptions := describe(whole, "../conductor/registration/registration.go", "")
	ofProfile := describe(member.Type, "../index/hash/profile.go", "hash_profile.")
	write := func(out *string, name, shape, description string) {
		if description == "" {
			t.Errorf("the field %s of a registration has no comment", name)
		}
		*out += fmt.Sprintf("        %s: {%s, description: %s}\n", name, shape, strconv.Quote(description))
	}
	for i := range registration.Table {
		f := &registration.Table[i]
		if name, ok := strings.CutPrefix(f.Name, "hash_profile."); ok {
			write(&profile, name, schemaOf(f), ofProfile[f.Name])
			continue
		}
		write(&fields, f.Name, cmp.Or(shapes[f.Name], schemaOf(f)), descriptions[f.Name])
	}
	write(&fields, "hash_profile", shapes["hash_profile"], descriptions["hash_profile"])
	return fields, profile
}

// schemaOf renders the type of a field, with its bounds.
func schemaOf(f *registration.Field) string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	kind := fmt.Sprintf("%T", f.Of(new(registration.Registration)))
	switch kind {
	case "*string":
		add("type: string")
	case "*[]string":
		add("type: array")
	case "*int":
		add("type: integer")
	}
	if !f.Required {
		add("nullable: true")
	}
	switch kind {
	case "*string":
		if f.Required && f.Words == nil {
			add("minLength: 1")
		}
		if f.MaxBytes > 0 {
			add("maxLength: %d", f.MaxBytes)
		}
	case "*[]string":
		add("maxItems: %d, items: {type: string, minLength: 1, maxLength: %d}", f.MaxItems, f.MaxBytes)
	case "*int":
		add("minimum: %d, maximum: 2147483647", f.Least)
	}
	if f.Words != nil && f.Required {
		add("enum: [%s]", strings.Join(f.Words, ", "))
	} else if f.Words != nil {
		add("enum: [%s, null]", strings.Join(f.Words, ", "))
	}
	if f.Default != "" {
		add("default: %s", f.Default)
	}
	if text := strings.Join(out, ", "); f.Auto {
		return fmt.Sprintf("oneOf: [{%s}, {type: string, enum: [%s]}]", text, Auto)
	}
	return strings.Join(out, ", ")
}
