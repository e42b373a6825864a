package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
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
		"--plots", dir, "--plot-blocks", "500,1000")
	must.Succeed(t, err)
	d := json.NewDecoder(strings.NewReader(out))
	var got map[string]any
	if err := d.Decode(&got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if err := d.Decode(&got); !errors.Is(err, io.EOF) {
		t.Errorf("more than one value on standard output: %v", err)
	}
	if got["events"] != "engine" || got["unique_blocks"] != 2000.0 || got["memberships"] != 4000.0 {
		t.Errorf("got %v", out)
	}
	if written, err := filepath.Glob(filepath.Join(dir, "*.csv")); err != nil || len(written) != 1 {
		t.Errorf("written: %v, %v", written, err)
	}
}

func TestBenchRefuses(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if _, err := runBench(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %q", args, err, want)
		}
	}
	f("exclude each other", "index", "--synthetic", "5", "--smg", "pinned")
	f("rounds is 0", "peers", "--rounds", "0")
	f("cannot open the recorded stream", "peers", "--quiet", "--streams", t.TempDir(), "--rows", "^recorded vLLM$")
	f("cannot choose rows", "peers", "--rows", "(")
	f("cannot open the trace", "index", "--quiet", "--trace", filepath.Join(t.TempDir(), "none"))
	f("prompts", "soak", "--prompts", "0")
}

// The loads of the table run in processes of their own, for both peers. The rival is one
// that answers at once.
func TestBenchPeers(t *testing.T) {
	t.Parallel()
	rival := filepath.Join(t.TempDir(), "rival")
	script := "#!/bin/sh\n[ \"$2\" != answers ] || : >\"$3\"\necho '{\"block_ops_per_sec\": 1000000, \"query\": {\"p50_ns\": 5000}}'\n"
	must.Succeed(t, os.WriteFile(rival, []byte(script), 0o700))
	dir := t.TempDir()
	f := func(rows string, want ...string) {
		t.Helper()
		cmd := command(t, "bench", "peers", "--quiet", "--rival", rival, "--dir", dir, "--streams", "../../lab/bench/streams", "--shrink",
			"1000", "--requests", "50", "--rounds", "1", "--rows", rows)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		must.Succeed(t, err)
		for _, w := range want {
			if !regexp.MustCompile(w).Match(out) {
				t.Errorf("%q lacks %s:\n%s", rows, w, out)
			}
		}
	}
	f("^recorded SGLang$", `recorded SGLang \| block ops, M/CPU s \| [0-9.]+ \| 1 \| [0-9.]+x \| >= 3x, (met|missed) \|`,
		`\| query p50, µs \| [0-9.]+ \| 5 \| [0-9.]+x \| >= 2x`,
		`\| answers equal to the oracle's \| 1000 \| 0 \|`)
	f("^128 workers", `\| block ops, M/CPU s \| [0-9.]+ \| 1 \| [0-9.]+x \| >= 3x, (met|missed) \|`,
		`\| query p50, µs \| [0-9.]+ \| 5 \| [0-9.]+x \|`,
		`\| answers equal to the oracle's \| 50 \| 0 \|`)
	f("case zip1|pools|tiers", `case zip1 \| writes.* \| [0-9.]+ \|  \|`, `pools, hash-only; CRTC without them \| block ops`,
		`three tiers, counted copies; .* \| answers.* \| 50 \|  \|`)
	f("shuf1", `case shuf1 \| block ops, M/CPU s \| [0-9.]+ \| 1 \| [0-9.]+x \|  \|`,
		`case shuf1; case split1 \| writes, M blocks/CPU s \| [0-9.]+ \| [0-9.]+ \| [0-9.]+x \| >= 0.5x, (met|missed) \|`)
	f("two writers", `written, M/s wall \| [0-9.e+]+ \| [0-9.e+]+ \| [0-9.e+]+x \| >= 1.7x`)
	f("events of 64|smg pinned", `write max, µs \| [0-9.]+ \|  \|  \| <= 5000, (met|missed)`, `smg pinned \| RSS.* \| 26.9 \|`)
}

func TestBenchSoak(t *testing.T) {
	t.Parallel()
	out, err := runBench(t, "soak", "--duration", "0s", "--prompts", "10", "--readers", "1", "--quiet")
	if err != nil || !strings.Contains(out, "soak passed") {
		t.Errorf("%q, %v", out, err)
	}
}
