package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/bench/ingest"
)

// A small recording comes from several processes into a real server, whose figures are all there and which
// holds what the publishers do.
func TestBenchIngestRecorded(t *testing.T) {
	conductorPath(t)
	dir := t.TempDir()
	recording, profile := filepath.Join(dir, "recording"), filepath.Join(dir, "profile")
	var stream bytes.Buffer
	e := msgpack.NewEncoder(&stream)
	const engines, batches = 3, 300
	for i := range batches {
		// Each batch begins a prompt of two blocks; from the fourth of its engine on it removes the tail of an older one.
		events := []any{[]any{"S", []int{2 * i, 2*i + 1}, nil, []int{2 * i, 2*i + 1}}}
		if old := i - 3*engines; old >= 0 {
			events = append(events, []any{"R", []int{2*old + 1}})
		}
		must.Succeed(t, e.Encode([]any{i % engines, events}))
	}
	must.Succeed(t, os.WriteFile(recording, stream.Bytes(), 0o600))

	out, err := runBench(t, "ingest", "--stream", recording, "--publishers", "7", "--processes", "2", "--rate", "700", "--rounds", "1",
		"--json", "--profile", profile)
	must.Succeed(t, err)
	var r ingest.ComparedReport
	must.Succeed(t, json.Unmarshal([]byte(out), &r))
	// Engine 0 has three publishers, the others two.
	if r.Batches < 7*batches/engines || r.Blocks != 7*(batches/engines+3) || len(r.Servers) != 1 {
		t.Fatalf("%s", out)
	}
	s := r.Servers[0]
	if s.Missing > 0 || s.Excess > 0 || s.Markers == 0 {
		t.Errorf("%d blocks are missing, %d in excess, %d markers", s.Missing, s.Excess, s.Markers)
	}
	for name, figure := range map[string]float64{"processor time": s.Micros, "lag": s.LagP50Ms, "query": s.QueryMs,
		"memory": float64(s.RSS), "rate": s.PerSecond} {
		if figure <= 0 {
			t.Errorf("%s: %v", name, figure)
		}
	}
	if text, err := os.ReadFile(profile); err != nil || len(text) == 0 {
		t.Errorf("a profile of %d bytes: %v", len(text), err)
	}
	if _, err := runBench(t, "ingest", "--stream", recording, "--publishers", "1", "--processes", "2"); err == nil {
		t.Error("a process without a publisher runs")
	}
	if _, err := runBench(t, "ingest", "--stream", filepath.Join(dir, "none")); err == nil {
		t.Error("a recording that is not there is sent")
	}
}
