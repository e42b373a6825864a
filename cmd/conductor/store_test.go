package main

import (
	"strings"
	"testing"
	"time"

	"kvconductor/conductor/fleet"
	"kvconductor/internal/redistest"
)

// TestLateListenerIsAdvertised starts a replica whose only listener has the dialect of Dynamo and a
// port that the system chooses. It advertises the port that it listens on once it is ready.
func TestLateListenerIsAdvertised(t *testing.T) {
	t.Parallel()
	settings := "store: {url: '" + redistest.Start(t).URL() + "', timeout: 500ms}\n"
	late, other := serveProcess(t, settings, "127.0.0.1:0=dynamo"), serveProcess(t, settings)
	eventually(t, "the other replica hears of no such listener", func() (string, bool) {
		_, text := get(other.url + "/admin/stats")
		return late.url + " in " + text, strings.Contains(text, `"url":"`+late.url+`"`)
	})
}

// TestStoreTimeoutFitsTheLease holds that the longest store.timeout is half of a replica's lease.
func TestStoreTimeoutFitsTheLease(t *testing.T) {
	t.Parallel()
	for timeout, fails := range map[time.Duration]bool{fleet.Lease / 2: false, fleet.Lease/2 + time.Millisecond: true} {
		_, errs, err := runConfig("show", "--store-timeout", timeout.String())
		if fails != (err != nil) || fails && !strings.Contains(errs, "store.timeout: ") {
			t.Errorf("%s: %v %s", timeout, err, errs)
		}
	}
}

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
