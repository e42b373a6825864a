package main

import (
	"encoding/json"
	"testing"
)

// A disturbed fleet against a real server: settled answers are never wrong, what
// was done is noticed, and the report says both.
func TestSimulateFaults(t *testing.T) {
	server := serveProcess(t, "stream: {replay_timeout: 1s}\n")
	out, err := command("simulate", "--server", server.url, "--faults", "--json", "--quiet", "--duration", "6s",
		"--device-blocks", "1024", "--host-blocks", "512", "--disk-blocks", "512", "--clear-every", "50").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r struct {
		Answers   struct{ Settled, Wrong int }
		Instances []struct {
			Faults     struct{ Cuts, Restarts int }
			Recoveries struct{ Reconnects, Restarts int }
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if r.Answers.Settled == 0 || r.Answers.Wrong > 0 {
		t.Errorf("answers: %+v", r.Answers)
	}
	cuts, reconnects := 0, 0
	for _, i := range r.Instances {
		cuts += i.Faults.Cuts + i.Faults.Restarts
		reconnects += i.Recoveries.Reconnects
	}
	if cuts == 0 || reconnects == 0 {
		t.Errorf("%d connections ended, %d came back:\n%s", cuts, reconnects, out)
	}
}

// TestSimulatePool holds that blocks which come from a pool as object keys alone count
// for all instances, in a server in its own process.
func TestSimulatePool(t *testing.T) {
	server := serveProcess(t, "index: {recall_bytes: 512MiB}\n")
	out, err := command("simulate", "--server", server.url, "--pool", "--json", "--quiet", "--duration", "6s",
		"--device-blocks", "1024", "--host-blocks", "512", "--disk-blocks", "512", "--pool-host-blocks", "3000", "--pool-disk-blocks", "4000").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r struct{ Answers struct{ Settled, Wrong int } }
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if r.Answers.Settled == 0 || r.Answers.Wrong > 0 {
		t.Errorf("answers: %+v\n%s", r.Answers, out)
	}
}
