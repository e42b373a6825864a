package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// runBench runs a command line and returns its standard output.
func runBench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := benchCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(t.Output())
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return out.String(), err
}

func TestBenchIndexPrintsOneObject(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	out, err := runBench(t, "index", "--synthetic", "2000", "--holders", "2", "--workers", "8", "--idle", "0", "--json", "--quiet",
		"--structure", "index,map", "--plots", dir, "--plot-blocks", "500,1000")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(out))
	var got map[string]any
	if err := d.Decode(&got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if err := d.Decode(&got); !errors.Is(err, io.EOF) {
		t.Errorf("more than one value on standard output: %v", err)
	}
	if got["structure"] != "index" || got["unique_blocks"] != 2000.0 || got["memberships"] != 4000.0 {
		t.Errorf("got %v", out)
	}
	if drawn, err := filepath.Glob(filepath.Join(dir, "*.svg")); err != nil || len(drawn) != 1 {
		t.Errorf("drawn: %v, %v", drawn, err)
	}
}

func TestBenchRefuses(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if _, err := runBench(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %q", args, err, want)
		}
	}
	f("either a trace", "index")
	f("cannot open the trace", "index", "--quiet", "--trace", filepath.Join(t.TempDir(), "none"))
	f("workers", "soak", "--workers", "0")
}

func TestBenchSoak(t *testing.T) {
	out, err := runBench(t, "soak", "--duration", "50ms", "--workers", "6", "--prompts", "100", "--quiet")
	if err != nil || !strings.Contains(out, "soak passed") {
		t.Errorf("%q, %v", out, err)
	}
}
