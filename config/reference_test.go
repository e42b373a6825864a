package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/internal/must"
)

// TestReference compares openapi.yaml and the Go client with the fields of a registration and with those of a row of
// /services, and docs/settings.md with the settings and openapi.yaml. -rewrite writes what is between their markers.
func TestReference(t *testing.T) {
	fields, profile := describeRegistration(t)
	compareBlocks(t, "../openapi.yaml", "        # %s: written by make docs\n", "        # end of %s\n",
		map[string]string{"registration": schemaProperties(fields), "hash_profile": schemaProperties(profile)})
	compareBlocks(t, "../client/registry.go", "\t// %s: written by make docs\n", "\t// end of %s\n",
		map[string]string{"registration": "\n" + clientFields(fields) + "\n", "hash_profile": "\n" + clientFields(profile) + "\n"})
	schemas, types := describePublished(t)
	compareBlocks(t, "../openapi.yaml", "    # %s: written by make docs\n", "    # end of %s\n", map[string]string{"services": schemas})
	compareBlocks(t, "../client/service.go", "// %s: written by make docs\n", "// end of %s\n", map[string]string{"services": types})
	compareBlocks(t, "../docs/settings.md", "<!-- %s: written by make docs -->\n", "<!-- end of %s -->",
		map[string]string{"settings": "\n" + settingTables() + "\n", "registration": "\n" + registrationTable(t) + "\n"})
}

// compareBlocks compares blocks of a file, each between the markers of its name.
func compareBlocks(t *testing.T, name, begin, end string, blocks map[string]string) {
	t.Helper()
	data, err := os.ReadFile(name)
	must.Succeed(t, err)
	text := string(data)
	for block, want := range blocks {
		begin, end := fmt.Sprintf(begin, block), fmt.Sprintf(end, block)
		head, rest, ok := strings.Cut(text, begin)
		_, tail, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s lacks the markers of %s", name, block)
		}
		text = head + begin + want + end + tail
	}
	golden(t, name, text)
}

// settingTables renders a table for each section of settings.
func settingTables() string {
	var out strings.Builder
	last := ""
	for _, s := range settings {
		if section := s.sectionName(); section != last {
			if last != "" {
				out.WriteString("\n")
			}
			last = section
			fmt.Fprintf(&out, "## %s\n\n| Setting | Default | Meaning | Type | Flag | Change needs | Why this default |\n"+
				"|---|---|---|---|---|---|---|\n", section)
		}
		def := formatValue(s.initial)
		if def != "" {
			def = "`" + def + "`"
		}
		change := "restart"
		if s.live {
			change = "reload"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s | `--%s` | %s | %s |\n",
			s.path, def, cell(s.help), cell(s.kind.word), s.flag, change, cell(s.reason))
	}
	return out.String()
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
	inFiles := map[string]bool{}
	for _, f := range sourceFields {
		inFiles[f.name] = true
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
		post := "optional"
		switch {
		case slices.Contains(schema.Required, name):
			post = "**required**"
		case slices.Contains(schema.AnyOf[0].Required, name): // what a registration with endpoint needs
			post = unlessDiscovered
		}
		file := post
		if !inFiles[name] {
			file = "unknown"
		} else if name == "dp_rank" {
			file = "optional" // 0
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", name, file, post, cell(property.Description))
		delete(inFiles, name)
	}
	for name := range inFiles {
		t.Errorf("openapi.yaml: Registration lacks %s, which files have", name)
	}
	return out.String()
}

// cell escapes a text for a cell of a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
