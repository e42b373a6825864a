package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// runConfig runs conductor config as a user does.
func runConfig(args ...string) (out, errs string, err error) {
	cmd := configCommand()
	var printed, complained strings.Builder
	cmd.SetOut(&printed)
	cmd.SetErr(&complained)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err = cmd.Execute()
	return printed.String(), complained.String(), err
}

// TestConfigCommands runs conductor config as a user does.
func TestConfigCommands(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("CONDUCTOR_LIMITS_MAX_SOURCES", "77")
	for name, text := range map[string]string{
		"good.yaml": "listeners: [{address: ':1'}]\nsources:\n- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, instance_id: a, " +
			"block_size: 16, cache_group: 2}\n",
		"bad.yaml": "log: {level: loud}\nhsah: {}\n",
	} {
		must.Succeed(t, os.WriteFile(name, []byte(text), 0o644))
	}
	f := func(args, wantOut, wantErr string, fails bool) {
		t.Helper()
		out, errs, err := runConfig(strings.Fields(args)...)
		if (err != nil) != fails || fails && !errors.Is(err, cli.ErrReported) {
			t.Errorf("%s: error %v", args, err)
		}
		if !strings.HasPrefix(out, wantOut) || errs != wantErr {
			t.Errorf("%s: printed\n%s\nand\n%s\nwant\n%s\nand\n%s", args, out, errs, wantOut, wantErr)
		}
	}
	f("check good.yaml", `good.yaml: ok
listeners: 1
  :1  conductor
sources: 1
  a|default|0  vLLM  m  block size 16  tcp://h:1  no replay
`, "warning: good.yaml:3:85: sources[0].cache_group: has no effect; groups are told apart by the events\n", false)
	f("check bad.yaml", "", `bad.yaml:1:14: log.level: "loud" is none of debug, info, warn, error
bad.yaml:2:1: hsah: unknown key; did you mean "hash"?
`, true)
	f("check gone.yaml", "", "gone.yaml: no such file\n", true)
	f("show --config good.yaml --max-sources 33", "listeners:\n  - address: :1\n",
		"warning: good.yaml:3:85: sources[0].cache_group: has no effect; groups are told apart by the events\n", false)
	f("show --config bad.yaml --max-sources=many", "", `bad.yaml:1:14: log.level: "loud" is none of debug, info, warn, error
bad.yaml:2:1: hsah: unknown key; did you mean "hash"?
flag --max-sources: limits.max_sources: "many" is no whole number
`, true)
	f("init", "conductor.yaml: edit it, then conductor config check conductor.yaml\n", "", false)
	f("check conductor.yaml", "conductor.yaml: ok\n",
		"warning: no source is configured: every answer is empty until engines are registered over HTTP\n", false)
	if _, _, err := runConfig("init"); err == nil || err.Error() != "conductor.yaml exists: name another file, or remove it first" {
		t.Errorf("init twice: %v", err)
	}
	if out, _, err := runConfig("init", "--help"); err != nil || !strings.Contains(out, "is not overwritten") {
		t.Errorf("init --help: %v %s", err, out)
	}
	f("defaults", "# Most servers set some of these: sources, listeners, snapshot.dir,", "", false)
}

// TestConfigCheckFiles checks every file of testdata/check. The file of the same name
// with .txt holds the expected warnings and errors.
func TestConfigCheckFiles(t *testing.T) {
	t.Chdir(filepath.Join("testdata", "check"))
	expected, err := filepath.Glob("*.txt")
	if err != nil || len(expected) == 0 {
		t.Fatal(expected, err)
	}
	for _, name := range expected {
		want, err := os.ReadFile(name)
		must.Succeed(t, err)
		if _, errs, _ := runConfig("check", strings.TrimSuffix(name, ".txt")); errs != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, errs, want)
		}
	}
}

// TestConfigDefaultsAreAFile holds that the printed defaults are a file that
// passes the check.
func TestConfigDefaultsAreAFile(t *testing.T) {
	out, _, err := runConfig("defaults")
	must.Succeed(t, err)
	file := filepath.Join(t.TempDir(), "defaults.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(out), 0o644))
	loaded, err := config.Load(config.Options{File: file})
	if err != nil || !reflect.DeepEqual(loaded.Config, config.Default()) {
		t.Errorf("%v\n%s", err, out)
	}
}
