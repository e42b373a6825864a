package main

import (
	"strings"
	"testing"
)

// TestSimulateShards holds that the simulation of placements needs no server, that it ends in
// failure when a replica is too small, and that flags of the other mode are refused.
func TestSimulateShards(t *testing.T) {
	t.Parallel()
	f := func(fails string, args ...string) (out string) {
		t.Helper()
		data, err := command(append([]string{"simulate"}, args...)...).CombinedOutput()
		if out = string(data); (err != nil) != (fails != "") || !strings.Contains(out, fails) {
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
	decode(t, f("", "--shards", "--workers", "300", "--models", "20", "--replicas", "4", "--json", "--seed", "3"), &r)
	if r.Config.Workers != 300 || r.Blocks != 30e6 || len(r.Steps) != 4+7 || r.Steps[0].Replicas[0].Memory <= 697e6 {
		t.Errorf("%+v", r)
	}
	if out := f("", "--shards"); !strings.Contains(out, "replica-11 dies") || !strings.Contains(out, "replica at the start") {
		t.Error(out)
	}
	f("start: replica-", "--shards", "--replica-memory", "4")
	f("--shards: workers is 3; the least is 200", "--shards", "--workers", "3")
	f("--trace has no meaning with --shards", "--shards", "--trace", "t.jsonl")
	f("--replicas needs --shards", "--replicas", "4")
}
