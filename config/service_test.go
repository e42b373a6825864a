package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// published are the structs of a row of /services, which openapi.yaml and the Go client have under the same names.
var published = []struct {
	of  reflect.Type
	doc string // of the type in the client
}{
	{reflect.TypeFor[status.Service](), "Service is one source of GET /services."},
	{reflect.TypeFor[status.EngineSnapshots](), "EngineSnapshots are the requests for snapshots of an engine."},
	{reflect.TypeFor[status.ServiceGroup](), "ServiceGroup is an attention group of a rank."},
	{reflect.TypeFor[status.ServiceFinding](), "ServiceFinding is what the doctor of the server found about a source."},
	{reflect.TypeFor[status.ServiceExpectations](), "ServiceExpectations is how good the expectations of an instance were, in tokens."},
}

// publishedShapes are the types of fields that Go does not tell.
var publishedShapes = map[string]string{
	"Service.DPRank":         refTo("Rank"),
	"ServiceGroup.DPRank":    refTo("Rank"),
	"ServiceFinding.Code":    refTo("FindingCode"),
	"EngineSnapshots.Failed": "type: object, nullable: true, additionalProperties: {type: integer, minimum: 0}",
}

// describePublished renders the structs of a row of /services as schemas of openapi.yaml, and as types of the Go client.
func describePublished(t *testing.T) (schemas, types string) {
	source, err := os.ReadFile("../conductor/status/service.go")
	must.Succeed(t, err)
	comments := commentsOf(string(source))
	for _, p := range published {
		var required []string
		properties, fields := "", ""
		for i := range p.of.NumField() {
			f := p.of.Field(i)
			name := p.of.Name() + "." + f.Name
			comment := strings.Join(strings.Fields(comments[name]), " ")
			if comment == "" {
				t.Errorf("the field %s has no comment", name)
			}
			words, least := boundsOf(f)
			shape := cmp.Or(publishedShapes[name], shapeOf(f.Type, words, least))
			if strings.HasPrefix(shape, "$ref") {
				shape = "allOf: [{" + shape + "}]" // nothing may stand beside $ref
			}
			if f.Tag.Get("json") != ",omitempty" {
				required = append(required, f.Name)
				if f.Type.Kind() == reflect.Pointer {
					shape += ", nullable: true"
				}
			}
			properties += fmt.Sprintf("        %s: {%s, description: %s}\n", f.Name, shape, strconv.Quote(comment))
			above := strings.ReplaceAll(wrapText(comment), "\n", "\n\t// ")
			fields += fmt.Sprintf("\t// %s\n\t%s %s\n", above, f.Name, clientType(f.Type))
		}
		schemas += fmt.Sprintf("    %s:\n      type: object\n      required: [%s]\n      additionalProperties: false\n", p.of.Name(),
			strings.Join(required, ", ")) + "      properties:\n" + properties
		types += fmt.Sprintf("\n// %s\ntype %s struct {\n%s}\n", p.doc, p.of.Name(), fields)
	}
	return schemas, types + "\n"
}

// boundsOf returns the values of a text that is one of a few, and the least value of a number: those of the tags, or of the
// registration. The default of a registration is left out of rows.
func boundsOf(f reflect.StructField) (words []string, least int) {
	if words := f.Tag.Get("words"); words != "" {
		return strings.Split(words, "|"), 0
	}
	if f.Tag.Get("least") == "0" {
		return nil, 0
	}
	of := strings.TrimPrefix(cmp.Or(f.Tag.Get("of"), f.Name), "Registration.")
	member, _ := reflect.TypeFor[registration.Registration]().FieldByName(of)
	for _, r := range registration.Table {
		if slices.Equal(r.Index, member.Index) {
			return slices.DeleteFunc(slices.Clone(r.Words), func(word string) bool { return word == r.Default }), r.Least
		}
	}
	return nil, 0
}

// shapeOf renders a type.
func shapeOf(of reflect.Type, words []string, least int) string {
	switch {
	case of == reflect.TypeFor[stream.State]():
		return refTo("StateName")
	case of == reflect.TypeFor[time.Time]():
		return "type: string, format: date-time"
	case len(words) > 0:
		return fmt.Sprintf("type: string, enum: [%s]", strings.Join(words, ", "))
	}
	switch of.Kind() {
	case reflect.Pointer:
		return shapeOf(of.Elem(), nil, least)
	case reflect.Struct:
		return refTo(of.Name())
	case reflect.Slice:
		return fmt.Sprintf("type: array, items: {%s}", shapeOf(of.Elem(), nil, 0))
	case reflect.Map:
		return fmt.Sprintf("type: object, additionalProperties: {%s}", shapeOf(of.Elem(), nil, 0))
	case reflect.String:
		return "type: string"
	case reflect.Float64:
		return "type: number, minimum: 0"
	}
	return fmt.Sprintf("type: integer, minimum: %d", least)
}

// refTo renders a reference to a schema.
func refTo(schema string) string { return fmt.Sprintf(`$ref: "#/components/schemas/%s"`, schema) }

// clientType renders a type as the client has it, which imports nothing of the server.
func clientType(of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[time.Time]():
		return of.String()
	case of.Kind() == reflect.Struct:
		return of.Name()
	case of.Kind() == reflect.Pointer:
		return "*" + clientType(of.Elem())
	case of.Kind() == reflect.Slice:
		return "[]" + clientType(of.Elem())
	case of.Kind() == reflect.Map:
		return "map[" + clientType(of.Key()) + "]" + clientType(of.Elem())
	}
	return of.Kind().String()
}
