package main

import (
	"encoding/json"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/bench/recovery"
)

// A small run restarts and fills real servers. What they hold is what the engines published.
func TestBenchRecovery(t *testing.T) {
	conductorPath(t)
	out, err := runBench(t, "recovery", "--blocks", "8192", "--instances", "4", "--event-blocks", "64", "--interval", "100ms", "--rounds",
		"2", "--json")
	must.Succeed(t, err)
	var r recovery.Report
	must.Succeed(t, json.Unmarshal([]byte(out), &r))
	for name, f := range map[string]recovery.Figure{
		"write": r.Write, "load": r.Load, "bytes": r.Bytes, "without sets": r.BytesWithoutSets, "restart": r.Restart, "peer": r.Peer,
		"pause": r.Pause,
	} {
		if len(f.Rounds) == 0 || f.Median <= 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if r.Equal != 4 || r.SnapshotBlocks != 8192 || r.BytesWithoutSets.Median > r.Bytes.Median {
		t.Errorf("%s", out)
	}
	if _, err := runBench(t, "recovery", "--instances", "3"); err == nil {
		t.Error("3 instances are no multiple of 2 holders")
	}
}
