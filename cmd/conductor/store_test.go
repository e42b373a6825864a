package main

import (
	"strings"
	"testing"

	"kvconductor/internal/redistest"
)

// TestReplicasShareAStore starts two servers with a store, kills the store and brings it back.
func TestReplicasShareAStore(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	settings := "store: {url: '" + shared.URL() + "', timeout: 500ms}\n"
	one, other := serveProcess(t, settings), serveProcess(t, settings)
	says := func(p *process, lines ...string) {
		t.Helper()
		eventually(t, "the metrics never say so", func() (string, bool) {
			_, text := get(p.url + "/metrics")
			for _, line := range lines {
				if !strings.Contains(text, "\n"+line+"\n") {
					return line, false
				}
			}
			return "", true
		})
	}
	says(one, "conductor_replicas 2", "conductor_store_up 1")
	says(other, "conductor_replicas 2", "conductor_store_up 1")
	shared.Kill()
	says(one, "conductor_store_up 0", "conductor_replicas 2")
	if status, body := get(one.url + "/health"); status != 200 {
		t.Errorf("without its store the server answers %d %s", status, body)
	}
	shared.Run()
	says(one, "conductor_store_up 1", "conductor_store_lost_total 1", "conductor_replicas 2")
}
