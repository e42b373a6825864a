package config

import (
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

// A described is a field of a registration or of its hash profile, as documents and the Go client have it.
type described struct {
	*registration.Field       // nil for hash_profile itself
	name, goName, description string
}

// describeRegistration returns the fields of a registration and those of its hash profile, with the comments above them.
func describeRegistration(t *testing.T) (fields, profile []described) {
	commentsIn := func(file string) map[string]string {
		source, err := os.ReadFile(file)
		must.Succeed(t, err)
		return commentsOf(string(source))
	}
	whole := reflect.TypeFor[registration.Registration]()
	comments, ofProfile := commentsIn("../conductor/registration/registration.go"), commentsIn("../index/hash/profile.go")
	describe := func(f *registration.Field, name, goName, comment string) described {
		if comment == "" {
			t.Errorf("the field %s of a registration has no comment", name)
		}
		return described{f, name, goName, strings.Join(strings.Fields(comment), " ")}
	}
	for i := range registration.Table {
		f := &registration.Table[i]
		member := whole.FieldByIndex(f.Index).Name
		if name, ok := strings.CutPrefix(f.Name, hashProfile+"."); ok {
			profile = append(profile, describe(f, name, member, ofProfile["Settings."+member]))
		} else {
			fields = append(fields, describe(f, f.Name, member, comments["Registration."+member]))
		}
	}
	return append(fields, describe(nil, hashProfile, "HashProfile", comments["Registration.Profile"])), profile
}

// schemaProperties renders fields as properties of a schema of openapi.yaml.
func schemaProperties(fields []described) (out string) {
	for _, f := range fields {
		shape := shapes[f.name]
		if shape == "" {
			shape = schemaOf(f.Field)
		}
		out += fmt.Sprintf("        %s: {%s, description: %s}\n", f.name, shape, strconv.Quote(f.description))
	}
	return out
}

// clientFields renders fields as those of a struct of the Go client.
func clientFields(fields []described) (out string) {
	for i, f := range fields {
		var kind string
		switch {
		case f.Field == nil:
			kind = "*HashProfile"
		case f.name == sourceTTL:
			kind = "any" // a time, or times by medium
		case f.name == "may_announce":
			continue // requests may not name any
		default:
			kind = strings.TrimPrefix(fmt.Sprintf("%T", f.Of(new(registration.Registration))), "*")
		}
		if f.name == "lora_name" {
			f.goName = "Adapter" // as in queries of the client
		}
		option := ",omitempty" // with discover the engine tells what is left out
		if f.name == "instance_id" || f.name == "dp_rank" {
			option = ""
		}
		if i > 0 {
			out += "\n"
		}
		out += "\t// " + strings.ReplaceAll(wrapText(f.description), "\n", "\n\t// ") + "\n"
		out += fmt.Sprintf("\t%s %s `json:\"%s%s\"`\n", f.goName, kind, f.name, option)
	}
	return out
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
