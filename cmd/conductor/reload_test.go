package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestReload changes the settings file of a running server. Sources that are not named in a
// change keep their blocks and their connections.
func TestReload(t *testing.T) {
	t.Parallel()
	stays, leaves, comes := newRuledEngine(t, "stays", 0), newRuledEngine(t, "leaves", 0), newRuledEngine(t, "comes", 0)
	file := filepath.Join(t.TempDir(), "conductor.yaml")
	source := func(e *ruledEngine, more string) string {
		return "  - {endpoint: 'tcp://" + e.pub.Addr().String() + "', type: vLLM, modelname: m, instance_id: " + e.name +
			", block_size: 16" + more + "}\n"
	}
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("sources:\n" + source(stays, "") + source(leaves, ""))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor", "--max-tokens", "1000")
	stays.publish(ruledStored(0, 3))
	stays.settled(p)
	reload := func(query string, status int) string {
		t.Helper()
		return post(t, p.url+"/admin/reload"+query, "{}", status)
	}
	services := func() string {
		_, answer := get(p.url + "/services")
		return answer
	}
	if answer := reload("", 200); !strings.Contains(answer, `"unchanged"`) {
		t.Errorf("the same file: %s", answer)
	}

	// A change that needs a restart, next to ones that do not: nothing happens.
	write("hash: {seed: 7}\nlog: {level: debug}\nsources:\n" + source(stays, "") + source(comes, ""))
	answer := reload("", 409)
	for _, want := range []string{`"refused"`, "hash.seed: needs a restart (1337 is in use, *** is set)", `"path":"log.level"`,
		`"added":["comes|default|0"]`, `"removed":["leaves|default|0"]`} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s is not in %s", want, answer)
		}
	}
	if s := services(); strings.Contains(s, "comes") || !strings.Contains(s, "leaves") {
		t.Errorf("half of a refused file counts: %s", s)
	}
	out, err := command("config", "diff", "--server", p.url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "restart") || !strings.Contains(string(out), "source comes|default|0") {
		t.Errorf("config diff: %v %s", err, out)
	}

	// A file with mistakes.
	write("limits: {max_sources: many}\n")
	if answer := reload("", 409); !strings.Contains(answer, `"invalid"`) || !strings.Contains(answer, "conductor.yaml:1:23") {
		t.Errorf("a mistake: %s", answer)
	}

	// Sources come, change and go, and settings of limits, by a signal.
	write("limits: {max_sources: 2, max_tenant_sources: 3}\nregister: {allow: ['tcp://10.0.0.0/8']}\nready: {min_sources: 5}\nsources:\n" +
		source(stays, "") + source(comes, ""))
	if answer := reload("?dry_run=1", 200); !strings.Contains(answer, `"applied"`) || strings.Contains(services(), "comes") {
		t.Errorf("a dry run: %s", answer)
	}
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, "the reload is not over", func() (string, bool) { // the limits come behind the sources
		_, metrics := get(p.url + "/metrics")
		return p.log(), strings.Contains(metrics, `conductor_reloads_total{result="applied"} 1`)
	})
	if s := services(); !strings.Contains(s, "comes") || strings.Contains(s, "leaves") {
		t.Errorf("the new source is not there: %s", s)
	}
	if s := stays.settled(p); s.LastSeq == nil || !strings.Contains(services(), `"Blocks":3`) ||
		strings.Contains(services(), `"Reconnects":1`) {
		t.Errorf("a source that did not change was touched: %s", services())
	}
	comes.publish(ruledStored(0, 2))
	comes.settled(p)
	body := `{"endpoint":"tcp://ADDRESS:5557","type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0}`
	if answer := post(t, p.url+"/register", strings.Replace(body, "ADDRESS", "192.0.2.1", 1), 400); !strings.Contains(answer,
		"register.allow") {
		t.Errorf("register.allow: %s", answer)
	}
	post(t, p.url+"/register", strings.Replace(body, "ADDRESS", "10.0.0.1", 1), 503)
	if status, answer := get(p.url + "/ready"); status != 503 || !strings.Contains(answer, `"min_sources":5`) {
		t.Errorf("/ready: %s", answer)
	}

	// A changed source begins with nothing, and only that one.
	write("limits: {max_sources: 2, max_tenant_sources: 3}\nregister: {allow: ['tcp://10.0.0.0/8']}\nready: {min_sources: 5}\nsources:\n" +
		source(stays, "") + source(comes, ", additionalsalt: x"))
	if answer := reload("", 200); !strings.Contains(answer, `"changed":["comes|default|0"]`) {
		t.Errorf("a changed source: %s", answer)
	}
	if s := services(); !strings.Contains(s, `"Blocks":3`) || strings.Contains(s, `"Blocks":2`) {
		t.Errorf("after a changed source: %s", s)
	}
	if _, metrics := get(p.url + "/metrics"); !strings.Contains(metrics, `conductor_reloads_total{result="applied"} 2`) ||
		!strings.Contains(metrics, `conductor_reloads_total{result="invalid"} 1`) {
		t.Errorf("metrics of reloads are missing")
	}
}

// A source that a file of the folder has cannot come to the settings: nothing of the reload counts,
// and the file keeps it.
func TestReloadRefusesSourceOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder, file := filepath.Join(dir, "sources"), filepath.Join(dir, "conductor.yaml")
	must.Succeed(t, os.Mkdir(folder, 0o700))
	source := func(name string) string {
		return "  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: " + name + ", block_size: 16}\n"
	}
	settings := func(more string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte("discovery: {sources_dir: "+folder+"}\n"+more), 0o600))
	}
	one := filepath.Join(folder, "one.yaml")
	must.Succeed(t, os.WriteFile(one, []byte("sources:\n"+source("listed")), 0o600))
	settings("sources:\n" + source("leaves"))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	has := func(want string) {
		t.Helper()
		var names []string
		rows, _ := servicesOf[struct{ InstanceID string }](t, p.url)
		for _, r := range rows {
			names = append(names, r.InstanceID)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("the sources are %s, want %s", got, want)
		}
	}
	has("leaves listed")
	settings("limits: {max_sources: 7}\nsources:\n" + source("comes") + source("listed"))
	for _, query := range []string{"?dry_run=1", ""} {
		answer := post(t, p.url+"/admin/reload"+query, "{}", 409)
		if !strings.Contains(answer, `"refused"`) ||
			!strings.Contains(answer, `"source listed|default|0: is a source of one.yaml in discovery.sources_dir"`) {
			t.Errorf("reload%s: %s", query, answer)
		}
		has("leaves listed")
	}
	if _, metrics := get(p.url + "/metrics"); !strings.Contains(metrics, `conductor_source_files{state="used"} 1`) {
		t.Error("the file is not in use")
	}

	// Once the file has let it go, the settings may have it, and then the file may not.
	must.Succeed(t, os.Remove(one))
	eventually(t, "the source of a file that is gone stays", func() (string, bool) {
		_, s := get(p.url + "/services")
		return s, !strings.Contains(s, `"listed"`)
	})
	if answer := post(t, p.url+"/admin/reload", "{}", 200); !strings.Contains(answer, `"applied"`) {
		t.Errorf("without the file: %s", answer)
	}
	has("comes listed")
	must.Succeed(t, os.WriteFile(one, []byte("sources:\n"+source("listed")), 0o600))
	if answer := post(t, p.url+"/admin/reload", "{}", 200); !strings.Contains(answer,
		`"one.yaml":"listed|default|0 is a source of the settings"`) {
		t.Errorf("with the file again: %s", answer)
	}
	must.Succeed(t, os.Remove(one))
	post(t, p.url+"/admin/reload", "{}", 200)
	has("comes listed")
}

// TestReloadOfBounds raises a bound together with the sources that need it, and keeps everything if
// the sources do not fit after all.
func TestReloadOfBounds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conductor.yaml")
	write := func(bound, sources int) {
		t.Helper()
		text := fmt.Sprintf("limits: {max_sources: %d}\nsources:\n", bound)
		for i := range sources {
			text += fmt.Sprintf("  - {endpoint: 'tcp://127.0.0.1:%d', type: vLLM, modelname: m, instance_id: i-%d, block_size: 16}\n",
				i+1, i)
		}
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(1, 1)
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	write(3, 3)
	if answer := post(t, p.url+"/admin/reload", "{}", 200); !strings.Contains(answer, `"applied"`) {
		t.Errorf("raised: %s", answer)
	}
	count := func(want int) {
		t.Helper()
		if _, answer := get(p.url + "/services"); !strings.Contains(answer, fmt.Sprintf(`"count":%d,`, want)) {
			t.Errorf("%s, want %d", answer, want)
		}
	}
	count(3)
	write(4, 3)
	post(t, p.url+"/admin/reload", "{}", 200)
	body := `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"NAME","block_size":16,"dp_rank":0}`
	post(t, p.url+"/register", strings.Replace(body, "NAME", "of-a-client", 1), 200)
	write(5, 5)
	if answer := post(t, p.url+"/admin/reload", "{}", 409); !strings.Contains(answer, `"refused"`) || !strings.Contains(answer, "i-4") {
		t.Errorf("too many: %s", answer)
	}
	count(4)
	post(t, p.url+"/register", strings.Replace(body, "NAME", "another", 1), 503) // the bound is still 4
	write(1, 1)
	post(t, p.url+"/admin/reload", "{}", 200)
	count(2)
}

// TestReportsSurviveReload reads what a reload leaves of a report.
func TestReportsSurviveReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conductor.yaml")
	write := func(before string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file,
			[]byte(before+"sources:\n  - {events: none, capacity_blocks: 100, type: Standard, modelname: m, instance_id: llama, "+
				"block_size: 2}\n"), 0o600))
	}
	write("")
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	has := func(line string) {
		t.Helper()
		if _, text := get(p.url + "/metrics"); !strings.Contains(text, line+"\n") {
			t.Errorf("/metrics has no line %q", line)
		}
	}
	has("conductor_expected_bytes_limit 6.7108864e+07")
	post(t, p.url+"/routed", `{"model":"m","block_size":2,"token_ids":[1,2,3,4],"instance_id":"llama","ttl":"10m"}`, 204)
	has("conductor_expected_pending_tokens 4")
	has(`conductor_instance_expected_prompts_total{instance_id="llama",tenant_id="default"} 1`)
	write("log: {slow_query: 1s}\n")
	if answer := post(t, p.url+"/admin/reload", "{}", 200); !strings.Contains(answer, `"applied"`) {
		t.Error(answer)
	}
	has("conductor_expected_pending_tokens 4")
	out, err := command("doctor", "--server", p.url).Output()
	if want := "nothing to do\nllama|default: expectations\n  prompts reported: 1, tokens expected now: 4\n"; err != nil ||
		string(out) != want {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// TestReloadWatch changes a file that is watched.
func TestReloadWatch(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conductor.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("reload: {watch: true}\nlog: {level: info}\n"), 0o600))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	must.Succeed(t, os.WriteFile(file, []byte("reload: {watch: true}\nlog: {level: debug}\nready: {min_sources: 3}\n"), 0o600))
	must.Succeed(t, os.Chtimes(file, time.Now(), time.Now().Add(-time.Hour)))
	eventually(t, "the change is not in use", func() (string, bool) {
		_, answer := get(p.url + "/ready")
		return answer + p.log(), strings.Contains(answer, `"min_sources":3`)
	})
}
