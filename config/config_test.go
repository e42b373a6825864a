package config

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

var rewrite = flag.Bool("rewrite", false, "write what is printed to the expected files")

// TestLoadFiles loads every file under testdata. Next to each stands a .txt with
// what loading it says: warnings, then errors, or the effective settings.
func TestLoadFiles(t *testing.T) {
	for _, dir := range []string{"good", "bad"} {
		t.Run(dir, func(t *testing.T) {
			t.Chdir(filepath.Join("testdata", dir))
			entries, err := os.ReadDir(".")
			must.Succeed(t, err)
			for _, e := range entries {
				if filepath.Ext(e.Name()) == ".txt" {
					continue
				}
				t.Run(e.Name(), func(t *testing.T) {
					got, err := say(Load(Options{File: e.Name()}))
					if (err != nil) != (dir == "bad") {
						t.Errorf("err = %v", err)
					}
					golden(t, e.Name()+".txt", got)
				})
			}
		})
	}
}

// say renders the outcome of Load.
func say(d *Loaded, err error) (string, error) {
	var out strings.Builder
	for _, w := range d.Warnings {
		out.WriteString("warning: " + w.Error() + "\n")
	}
	if err != nil {
		out.WriteString(err.Error() + "\n")
	} else {
		out.WriteString(d.Config.YAML(false))
	}
	return out.String(), err
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *rewrite {
		must.Succeed(t, os.WriteFile(name, []byte(got), 0o644))
	}
	want, err := os.ReadFile(name)
	must.Succeed(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestRenderingLoadsBack holds that printed settings load to the same config,
// with and without comments.
func TestRenderingLoadsBack(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*[nl]")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		d, err := Load(Options{File: file})
		must.Succeed(t, err)
		for _, comments := range []bool{false, true} {
			text := d.Config.YAML(comments)
			again, err := newLoader().load("again.yaml", []byte(text), nil, Options{})
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			if !reflect.DeepEqual(d.Config, again.Config) {
				t.Errorf("%s: %+v, want %+v", file, again.Config, d.Config)
			}
		}
	}
}

// TestStarterYAML holds that the file of config init is the defaults, and that each of its examples can be taken as
// it stands.
func TestStarterYAML(t *testing.T) {
	load := func(text string) (*Loaded, error) {
		return newLoader().load("conductor.yaml", []byte(text), nil, Options{})
	}
	d, err := load(StarterYAML())
	if err != nil || len(d.Warnings) > 0 || !reflect.DeepEqual(d.Config, Default()) {
		t.Errorf("as written: %v %v %+v", err, d.Warnings, d.Config)
	}
	var taken []string
	for line := range strings.Lines(StarterYAML()) {
		for _, s := range settings {
			if strings.HasPrefix(line, "  # "+s.name+": ") && strings.Contains(line, s.example) && s.example != "" {
				line = strings.Replace(line, "# ", "", 1)
			}
		}
		if strings.HasPrefix(line, "# sources:") || strings.HasPrefix(line, "#  ") {
			line = strings.Replace(strings.Replace(line, "# ", "", 1), "#", "", 1)
		}
		taken = append(taken, line)
	}
	d, err = load(strings.Join(taken, ""))
	must.Succeed(t, err)
	if len(d.Config.Sources) != 2 {
		t.Errorf("%d sources", len(d.Config.Sources))
	}
	def, dozen := Default(), 2 // sources and listeners
	for _, s := range settings {
		if s.example != "" {
			dozen++
		}
		if (s.example != "") != (s.format(&d.Config) != s.format(&def)) {
			t.Errorf("%s: example %q, is %s", s.path, s.example, s.format(&d.Config))
		}
	}
	if dozen != 12 {
		t.Errorf("the dozen has %d", dozen)
	}
}
