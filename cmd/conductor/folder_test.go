package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestMistakeCostsOneSourceOfAFile requires that the sources of a file are registered if another one has a mistake, which
// names its file, line and field, and that no source of the file leaves because of it.
func TestMistakeCostsOneSourceOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder, settings := filepath.Join(dir, "sources"), filepath.Join(dir, "conductor.yaml")
	must.Succeed(t, os.Mkdir(folder, 0o700))
	must.Succeed(t, os.WriteFile(settings, []byte("discovery: {sources_dir: "+folder+"}\n"), 0o600))
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(filepath.Join(folder, ".new"), []byte(text), 0o600))
		must.Succeed(t, os.Rename(filepath.Join(folder, ".new"), filepath.Join(folder, "one.yaml")))
	}
	source := func(name, more string) string {
		return "- {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, block_size: 16, instance_id: " + name + more + "}\n"
	}
	mistake := source("b", ", ttl: 1ns")
	write("sources:\n" + source("a", "") + mistake + source("c", ""))
	p := startProcess(t, "serve", "--config", settings, "--listen", "127.0.0.1:0=conductor")
	has := func(sources, fault string) {
		t.Helper()
		answer := post(t, p.url+"/admin/reload", "{}", 200)
		if strings.Contains(answer, `"files":{"one.yaml":`) != (fault != "") || !strings.Contains(answer, fault) {
			t.Errorf("a reload answers %s, want the fault %q", answer, fault)
		}
		rows, _ := servicesOf[struct{ InstanceID, AdditionalSalt string }](t, p.url)
		var names []string
		for _, r := range rows {
			names = append(names, r.InstanceID+r.AdditionalSalt)
		}
		if slices.Sort(names); strings.Join(names, " ") != sources {
			t.Errorf("the sources are %q, want %s", names, sources)
		}
		state := `conductor_source_files{state="used"} 1`
		if fault != "" {
			state = `conductor_source_files{state="bad"} 1`
		}
		if _, metrics := get(p.url + "/metrics"); !strings.Contains(metrics, state) {
			t.Errorf("the metrics have no %s", state)
		}
	}
	has("a c", "one.yaml:3:98: sources[1].ttl: ")

	// A source whose new settings have a mistake keeps its old ones, and one that is not named any more stays, because it
	// may be the one that the mistake is about. Other changes count.
	write("sources:\n" + source("a", ", ttl: 1ns") + source("d", "") + strings.Replace(mistake, "instance_id: b", "instance_id: ''", 1))
	has("a c d", "sources[2].instance_id: ")
	write("sources:\n" + source("a", ", ttl: 1ns") + source("d", ", additionalsalt: x"))
	has("a c dx", "sources[0].ttl: ")
	write("sources: [\n")
	has("a c dx", "no valid YAML")
	write("sources:\n" + source("a", ""))
	has("a", "")
}
