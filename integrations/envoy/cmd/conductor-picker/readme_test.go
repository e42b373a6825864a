package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/integrations/envoy/extproc"
)

// TestReadme holds that the table of flags in the README is that of the program. README=write go test -run Readme . writes it.
func TestReadme(t *testing.T) {
	const name = "../../README.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| Flag \| Default \| Meaning \|\n\|---\|---\|---\|\n(?:\|.*\n)*`)
	want := flagTable(t)
	switch got := rows.Find(text); {
	case got == nil:
		t.Fatalf("%s has no table of flags", name)
	case string(got) == want:
	case os.Getenv("README") == "write":
		if err := os.WriteFile(name, rows.ReplaceAllLiteral(text, []byte(want)), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the flags in %s are not those of the program; README=write writes\n%s", name, want)
	}
}

// flagTable returns the flags as a table in Markdown.
func flagTable(t *testing.T) string {
	t.Helper()
	f, _ := newFlags()
	var b strings.Builder
	b.WriteString("| Flag | Default | Meaning |\n|---|---|---|\n")
	f.VisitAll(func(g *flag.Flag) {
		value, usage := flag.UnquoteUsage(g)
		name := "--" + g.Name
		if value != "" {
			name += " " + value
		}
		shown := g.DefValue
		if shown != "" {
			shown = "`" + shown + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, shown, strings.ReplaceAll(usage, "|", `\|`))
	})
	return b.String()
}

// TestDocumentedFlags holds that the program understands the flags that documents and manifests give it.
func TestDocumentedFlags(t *testing.T) {
	const root = "../../../.."
	found := 0
	f := func(where string, args []string) {
		t.Helper()
		found++
		if _, err := parseSettings(args, environment(nil), os.Stderr); err != nil {
			t.Errorf("%s: %q: %v", where, args, err)
		}
	}
	command := regexp.MustCompile(`(?m)^[# ]*(?:bin/)?conductor-picker (--.*(?:\\\n.*)*)`)
	for _, name := range []string{"docs/envoy.md", "integrations/envoy/README.md", "integrations/envoy/deploy/envoy.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllSubmatch(text, -1) {
			line, _, _ := strings.Cut(strings.ReplaceAll(string(m[1]), "\\\n", " "), " >")
			words, err := exec.Command("bash", "-c", "printf '%s\\n' "+line).Output()
			if err != nil {
				t.Fatalf("%s: %s: %v", name, line, err)
			}
			f(name, strings.Split(strings.TrimSuffix(string(words), "\n"), "\n"))
		}
	}
	manifests, err := os.ReadFile(filepath.Join(root, "integrations/envoy/deploy/kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args []string
						Env  []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(manifests, &deployment); err != nil {
		t.Fatal(err)
	}
	for _, c := range deployment.Spec.Template.Spec.Containers {
		args := c.Args
		for _, e := range c.Env {
			if name, ours := strings.CutPrefix(e.Name, envPrefix); ours {
				args = append(args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-")), e.Value)
			}
		}
		f("kubernetes.yaml", args)
	}
	if found < 4 {
		t.Errorf("only %d command lines were found", found)
	}
}

// described is a registry that knows the names of metrics, also of those that have no value yet.
type described struct {
	*prometheus.Registry
	names map[string]bool
}

var metricName = regexp.MustCompile(`fqName: "([^"]*)"`)

func (d described) note(c prometheus.Collector) {
	descs := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	for desc := range descs {
		d.names[metricName.FindStringSubmatch(desc.String())[1]] = true
	}
}

func (d described) Register(c prometheus.Collector) error {
	d.note(c)
	return d.Registry.Register(c)
}

func (d described) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		d.note(c)
	}
	d.Registry.MustRegister(all...)
}

// TestDocumentedMetrics holds that the metrics which documents and alerts name are there.
func TestDocumentedMetrics(t *testing.T) {
	s, err := parseSettings([]string{"--conductor", "http://c:1"}, environment(nil), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	d := described{prometheus.NewRegistry(), map[string]bool{}}
	c, err := newChooser(s, d, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	extproc.New(c, extproc.Options{Registry: d})
	found := 0
	for _, name := range []string{"docs/envoy.md", "integrations/envoy/README.md", "integrations/envoy/deploy/alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range regexp.MustCompile(`\bconductor_picker_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			found++
			if !d.names[metric] {
				t.Errorf("%s: there is no metric %s", name, metric)
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d metrics were found", found)
	}
}
