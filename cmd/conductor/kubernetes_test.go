package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// TestEndpointSlices runs the example of docs/kubernetes.md on answers of the API server, and
// reads its files as serve does.
func TestEndpointSlices(t *testing.T) {
	t.Parallel()
	if exec.Command("python3", "-c", "").Run() != nil {
		must.Skip(t, "no python3")
	}
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "own.yaml"), []byte("sources: []\n"), 0o600))
	slice := func(endpoints string) string {
		return `{"kind":"List","items":[{"addressType":"IPv4","ports":[{"name":"kv-events","port":5557},{"name":"http","port":8000}],` +
			`"endpoints":[` + endpoints + `]},{"endpoints":null,"ports":null}]}`
	}
	f := func(endpoints string, want ...string) {
		t.Helper()
		cmd := exec.Command("python3", "../../deploy/kubernetes/endpointslices.py", dir)
		cmd.Stdin = strings.NewReader(slice(endpoints))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		names, err := sourceFiles(dir)
		must.Succeed(t, err)
		var got []string
		for _, name := range names {
			sources, err := config.ReadSources(filepath.Join(dir, name))
			must.Succeed(t, err)
			for _, s := range sources {
				got = append(got, name+" "+s.Key().String()+" "+s.Discover)
			}
		}
		if !slices.Contains(names, "own.yaml") || !slices.Equal(got, want) {
			t.Errorf("%s: got %q of %q, want %q", endpoints, got, names, want)
		}
	}
	one := `{"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"kind":"Pod","name":"engine-0"}}`
	f(one+`,{"addresses":["10.0.0.2"],"conditions":{"ready":false},"targetRef":{"kind":"Pod","name":"engine-1"}},{"addresses":["fd00::3"]}`,
		"pod-engine-0.yaml 10.0.0.1:8000|default|0 http://10.0.0.1:8000", "pod-fd00--3.yaml [fd00::3]:8000|default|0 http://[fd00::3]:8000")
	f(one, "pod-engine-0.yaml 10.0.0.1:8000|default|0 http://10.0.0.1:8000")
	f("")
}
