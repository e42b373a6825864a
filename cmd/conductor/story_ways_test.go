package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/conductor/internal/apitest"
)

// TestStoryOfWays is about an engine that does not tell where it publishes, and an instance of LMCache that
// no source is registered for.
func TestStoryOfWays(t *testing.T) {
	t.Parallel()
	p, doc := serveProcess(t, "sources:\n  - {discover: 'http://127.0.0.1:1', instance_id: deaf, block_size: 16}\n"), apitest.Load(t)
	tokens := make([]uint32, chunkTokens)
	report(t, p, lmcacheReport{Instance: "node:n1", Incarnation: 1, Seq: 1, Type: "store", Tier: "l1", Backend: "dram",
		Entries: entriesOf(chunksOf(tokens), 0, 1, "", 0), Time: 1})
	says := func(wants string, args ...string) string {
		t.Helper()
		var text string
		eventually(t, args[0]+" does not say "+wants, func() (string, bool) {
			out, _ := command(append(args, "--server", p.url)...).Output()
			text = string(out)
			return text, strings.Contains(text, wants)
		})
		return text
	}
	says("error discovery: deaf|default\n", "doctor")
	text := says("error unclaimed: node:n1\n", "doctor")
	if !strings.Contains(text, `instance_id "node:n1", modelname "m"`) {
		t.Errorf("doctor does not say what to register: %s", text)
	}
	says("node:n1 unclaimed: LMCache reports 1 entry", "services")
	says("discovery: 1 of 1 target waits, 0 learn; LMCache: 1 of 1 instance reports what no source takes\n", "top")
	_, metrics := get(p.url + "/metrics")
	for _, want := range []string{`conductor_discovery_targets{state="waiting"} 1`, "conductor_lmcache_unclaimed_entries_total 1"} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("no metric %s", want)
		}
	}
	for size, want := range map[int]string{recordedBlock: "not_registered not_discovered?", 2 * recordedBlock: "not_registered"} {
		question := explainedPrompt()
		question["block_size"] = size
		if got := words(askExplain(t, p, doc, question).Reasons); got != want {
			t.Errorf("explain says %q of blocks of %d, want %q", got, size, want)
		}
	}
	for _, path := range []string{"/admin/stats", "/services"} {
		_, answer := get(p.url + path)
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/json")
		rec.WriteString(answer)
		doc.CheckAnswer(t, httptest.NewRequest("GET", path, nil), rec)
		if !strings.Contains(answer, `"node:n1"`) {
			t.Errorf("%s: %s", path, answer)
		}
	}
	post(t, p.url+"/register", `{"endpoint":"push:","type":"LMCache","modelname":"m","instance_id":"node:n1","block_size":16,"dp_rank":0}`,
		200)
	if out, _ := command("doctor", "--server", p.url).Output(); strings.Contains(string(out), "unclaimed") {
		t.Errorf("a source is registered: %s", out)
	}
}
