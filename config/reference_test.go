package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/internal/must"
)

// TestReference compares docs/settings.md with the settings, the registration
// fields and openapi.yaml. -rewrite writes the tables between its markers.
func TestReference(t *testing.T) {
	const name = "../docs/settings.md"
	data, err := os.ReadFile(name)
	must.Succeed(t, err)
	text := string(data)
	for table, rows := range map[string]string{"settings": settingTables(t), "registration": registrationTable(t)} {
		begin, end := "<!-- "+table+": written by make docs -->\n", "<!-- end of "+table+" -->"
		head, rest, ok := strings.Cut(text, begin)
		_, tail, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s lacks the markers of %s", name, table)
		}
		text = head + begin + "\n" + rows + "\n" + end + tail
	}
	golden(t, name, text)
}

// settingTables renders a table for each section of scalar settings.
func settingTables(t *testing.T) string {
	c := Default()
	reasons := defaultReasons(t)
	var out strings.Builder
	last := ""
	for _, k := range keys {
		section, _, _ := strings.Cut(k.path, ".")
		if section != last {
			if last != "" {
				out.WriteString("\n")
			}
			last = section
			fmt.Fprintf(&out, "## %s\n\n| Setting | Default | Meaning | Type | Flag | Change needs | Why this default |\n|---|---|---|---|---|---|---|\n", section)
		}
		def := k.show(&c)
		if def != "" {
			def = "`" + def + "`"
		}
		change := "restart"
		if Live(k.path) {
			change = "reload"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s | `--%s` | %s | %s |\n", k.path, def, cell(k.help), cell(k.kind.word), k.flag, change, cell(reasons[k.path]))
	}
	return out.String()
}

// defaultReasons returns the comments next to the values of Default, by path.
func defaultReasons(t *testing.T) map[string]string {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "config.go", nil, parser.ParseComments)
	must.Succeed(t, err)
	byLine := map[int]string{}
	for _, c := range file.Comments {
		byLine[set.Position(c.Pos()).Line] = strings.TrimSpace(c.Text())
	}
	out := map[string]string{}
	config := reflect.TypeFor[Config]()
	tag := func(of reflect.Type, n ast.Expr) (reflect.StructField, string) {
		f, _ := of.FieldByName(n.(*ast.Ident).Name)
		return f, f.Tag.Get("mapstructure")
	}
	fn := file.Scope.Lookup("Default").Decl.(*ast.FuncDecl)
	for _, e := range fn.Body.List[0].(*ast.ReturnStmt).Results[0].(*ast.CompositeLit).Elts {
		section := e.(*ast.KeyValueExpr)
		values, ok := section.Value.(*ast.CompositeLit)
		f, name := tag(config, section.Key)
		if !ok || f.Type.Kind() != reflect.Struct {
			continue
		}
		for _, e := range values.Elts {
			_, key := tag(f.Type, e.(*ast.KeyValueExpr).Key)
			out[name+"."+key] = byLine[set.Position(e.Pos()).Line]
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d reasons were found", len(out))
	}
	return out
}

// unlessDiscovered is what tables say of fields that an engine tells where it is asked.
const unlessDiscovered = "**required** without `discover`"

// registrationTable renders the fields of a source in a file and of POST /register.
func registrationTable(t *testing.T) string {
	data, err := os.ReadFile("../openapi.yaml")
	must.Succeed(t, err)
	var api struct {
		Components struct {
			Schemas map[string]struct {
				Required   []string
				AnyOf      []struct{ Required []string } `yaml:"anyOf"`
				Properties yaml.Node
			}
		}
	}
	must.Succeed(t, yaml.Unmarshal(data, &api))
	schema := api.Components.Schemas["Registration"]
	inFile := map[string]string{}
	for _, f := range sourceFields {
		inFile[f.name] = "optional"
	}
	for _, c := range (&Source{}).complaints() {
		inFile[c.Path] = unlessDiscovered
	}
	for _, c := range (&Source{Discover: "http://engine:8000", BlockSize: AutoCount}).complaints() {
		inFile[c.Path] = "**required**"
	}
	var out strings.Builder
	out.WriteString("| Field | In a file | In `POST /register` | Meaning |\n|---|---|---|---|\n")
	for i := 0; i < len(schema.Properties.Content); i += 2 {
		name := schema.Properties.Content[i].Value
		var property struct{ Description string }
		must.Succeed(t, schema.Properties.Content[i+1].Decode(&property))
		if property.Description == "" {
			t.Errorf("openapi.yaml: Registration.%s has no description", name)
		}
		file, post := inFile[name], "optional"
		if file == "" {
			file = "unknown"
		}
		switch {
		case slices.Contains(schema.Required, name):
			post = "**required**"
		case slices.Contains(schema.AnyOf[0].Required, name): // what a registration with endpoint needs
			post = unlessDiscovered
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", name, file, post, cell(property.Description))
		delete(inFile, name)
	}
	for name := range inFile {
		t.Errorf("openapi.yaml: Registration lacks %s, which files have", name)
	}
	return out.String()
}

// cell escapes a text for a cell of a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
