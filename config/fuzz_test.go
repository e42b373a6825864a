package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// FuzzLoad holds that no file stops the loader, that every complaint has a
// place, and that an accepted file is valid and can be printed and read again.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/[gb]*/*")
	must.Succeed(f, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.Succeed(f, err)
		if ext := filepath.Ext(file); ext != ".txt" {
			f.Add(ext == ".json", data)
		}
	}
	f.Fuzz(func(t *testing.T, isJSON bool, data []byte) {
		name := "c.yaml"
		if isJSON {
			name = "c.json"
		}
		d, err := newLoader().load(name, data, nil, Options{})
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, name) {
					t.Fatalf("no place in %q", line)
				}
			}
			return
		}
		if err := validate(&d.Config); err != nil {
			t.Fatalf("accepted, and invalid: %v", err)
		}
		again, err := newLoader().load("again.yaml", []byte(d.Config.YAML(false)), nil, Options{})
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Config.YAML(false))
		}
		if !reflect.DeepEqual(d.Config, again.Config) {
			t.Fatalf("printed and read again: %+v, want %+v", again.Config, d.Config)
		}
	})
}
