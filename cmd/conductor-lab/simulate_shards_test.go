package main

import (
	"os"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
)

// TestSimulateShards holds that the simulation of placements needs no server, that its exit
// status is 1 when a replica is too small and 2 for flags of the other mode, and that the
// documentation has its output.
func TestSimulateShards(t *testing.T) {
	t.Parallel()
	f := func(status int, has string, args ...string) (out string) {
		t.Helper()
		cmd := command(t, append([]string{"simulate"}, args...)...)
		data, err := cmd.CombinedOutput()
		if out = string(data); cmd.ProcessState.ExitCode() != status || !strings.Contains(out, has) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	var r struct {
		Config struct{ Workers int }
		Blocks float64
		Steps  []struct {
			Name     string
			Replicas []struct {
				ID     string
				Shards int
				Memory float64 `json:"memory_bytes"`
			}
		}
	}
	decode(t, f(cli.ExitFine, "{", "--shards", "--workers", "300", "--models", "20", "--replicas", "4", "--json", "--seed", "3"), &r)
	if r.Config.Workers != 300 || r.Blocks != 30e6 || len(r.Steps) != 4+7 || r.Steps[0].Replicas[0].Memory <= 697e6 {
		t.Errorf("%+v", r)
	}
	page, err := os.ReadFile("../../docs/scale.md")
	must.Succeed(t, err)
	if out := f(cli.ExitFine, "replica-11 dies", "--shards"); !strings.Contains(string(page), "```text\n"+out+"```") {
		t.Errorf("docs/scale.md has not the output of simulate --shards:\n%s", out)
	}
	f(cli.ExitError, "replica-0 dies: replica-1 needs", "--shards", "--replicas", "8")
	f(cli.ExitUsage, "--workers is 3; the least is 200", "--shards", "--workers", "3")
	f(cli.ExitUsage, "--trace has no meaning with --shards", "--shards", "--trace", "t.jsonl")
	f(cli.ExitUsage, "--replicas needs --shards", "--replicas", "4")
}
