package main

import (
	"encoding/json"
	"strings"
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

// TestSimulateLookAhead holds that answers about engines with a drafter are right in one
// deployment with engines without, and with a pool that serves the latter alone. Small
// blocks let many prompts end within a look-ahead.
func TestSimulateLookAhead(t *testing.T) {
	server := serveProcess(t, "index: {recall_bytes: 512MiB}\n")
	out, err := command("simulate", "--server", server.url, "--pool", "--json", "--quiet", "--duration", "6s", "--block-size", "8",
		"--device-blocks", "2048", "--host-blocks", "1024", "--disk-blocks", "1024", "--pool-host-blocks", "3000", "--pool-disk-blocks", "4000").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r struct {
		Answers   struct{ Settled, Wrong int }
		Instances []struct {
			Publisher string
			Events    int
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if r.Answers.Settled == 0 || r.Answers.Wrong > 0 {
		t.Errorf("answers: %+v\n%s", r.Answers, out)
	}
	ranks := map[string]int{}
	for _, i := range r.Instances {
		if _, ahead, _ := strings.Cut(i.Publisher, "look-ahead "); i.Events > 0 {
			ranks[ahead]++
		}
	}
	if ranks[""] == 0 || ranks["1"] == 0 || ranks["4"] == 0 {
		t.Errorf("ranks that published, by look-ahead: %v", ranks)
	}
}

// TestSimulatePool holds that blocks which come from a pool as object keys alone count
// for all instances, in a server in its own process.
func TestSimulatePool(t *testing.T) {
	server := serveProcess(t, "index: {recall_bytes: 512MiB}\n")
	out, err := command("simulate", "--server", server.url, "--pool", "--json", "--quiet", "--duration", "6s", "--families", "vllm-map,vllm-array,sglang",
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
