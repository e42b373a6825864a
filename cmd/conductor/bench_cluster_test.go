package main

import (
	"encoding/json"
	"testing"

	"kvconductor/cmd/internal/bench/cluster"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
)

// A small run follows engines and logs, and loses nothing.
func TestBenchCluster(t *testing.T) {
	redistest.Binary(t)
	t.Setenv("RUN_AS_CONDUCTOR", "1")
	out, err := runBench(t, "cluster", "--part", "log", "--sources", "2", "--blocks", "8", "--duration", "300ms", "--rate", "200", "--leases", "20", "--json")
	must.Succeed(t, err)
	var r cluster.Report
	must.Succeed(t, json.Unmarshal([]byte(out), &r))
	for name, role := range map[string]cluster.LogRole{"engine": r.Log.Engine, "tail": r.Log.Tail, "log": r.Log.Log} {
		if role.BatchesPerSec <= 0 || role.LagP50Ms <= 0 || role.Lost != 0 {
			t.Errorf("%s: %+v", name, role)
		}
	}
	if r.Log.AppendedPerSec <= 0 || r.Log.Leases.Sources != 20 {
		t.Errorf("%s", out)
	}
	if _, err := runBench(t, "cluster", "--part", "nothing", "--store", "redis://127.0.0.1:1"); err == nil {
		t.Error("there is no part of that name")
	}
}
