package main

import (
	"encoding/json"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/lab/bench/cluster"
)

func TestBenchClusterHasNoOtherParts(t *testing.T) {
	if _, err := runBench(t, "cluster", "--part", "nothing", "--store", "redis://127.0.0.1:1"); err == nil {
		t.Error("there is no part of that name")
	}
}

// runPart runs a small part of bench cluster.
func runPart(t *testing.T, part string, flags ...string) (r cluster.Report, out string) {
	t.Helper()
	redistest.Binary(t)
	conductorPath(t)
	out, err := runBench(t, append([]string{"cluster", "--part", part, "--json"}, flags...)...)
	must.Succeed(t, err)
	must.Succeed(t, json.Unmarshal([]byte(out), &r))
	return r, out
}

// A small run sends queries on.
func TestBenchClusterForward(t *testing.T) {
	t.Parallel()
	r, out := runPart(t, "forward", "--models", "2", "--tokens", "64", "--clients", "2", "--duration", "200ms")
	f := r.Forward
	if f == nil || f.Direct.P50 <= 0 || f.Forwarded.P50 <= 0 || len(f.Rates) != 3 || f.Rates[2].Queries <= 0 {
		t.Errorf("%s", out)
	}
}

// The replicas that are left answer for a shard as the killed one did, and hold the same blocks.
func TestBenchClusterTakeover(t *testing.T) {
	t.Parallel()
	r, out := runPart(t, "takeover", "--sources", "2", "--blocks", "8", "--shard-blocks", "256")
	if len(r.Takeover) != 2 {
		t.Fatalf("%s", out)
	}
	for i, k := range r.Takeover {
		if k.Owners != i+1 || k.Blocks != 256 || k.Seconds <= 0 || k.Right == 0 || k.Wrong != 0 || k.Equal != 2 {
			t.Errorf("%+v", k)
		}
	}
	if _, err := runBench(t, "cluster", "--part", "takeover", "--owners", "3", "--store", "redis://127.0.0.1:1"); err == nil {
		t.Error("of three owners of three replicas none is left to take over")
	}
}

// Replicas fill a store that was emptied.
func TestBenchClusterReseed(t *testing.T) {
	t.Parallel()
	r, out := runPart(t, "reseed", "--sources", "2", "--blocks", "8", "--shard-blocks", "256", "--registrations", "3")
	if s := r.Reseed; s == nil || s.Sources != 5 || s.Blocks != 256 || s.Bytes == 0 || s.Registry <= 0 || s.Shelf <= 0 {
		t.Errorf("%s", out)
	}
}
