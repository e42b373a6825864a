package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// metric returns a value of /metrics, -1 if there is none.
func metric(p *process, name string) float64 {
	_, text := get(p.url + "/metrics")
	_, after, ok := strings.Cut("\n"+text, "\n"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !ok || err != nil {
		return -1
	}
	return n
}

// TestLateListenerIsAdvertised starts a replica whose only listener has the dialect of Dynamo and a
// port that the system chooses. It advertises the port that it listens on once it is ready.
func TestLateListenerIsAdvertised(t *testing.T) {
	t.Parallel()
	settings := "store: {url: '" + redistest.Start(t).URL() + "'}\n"
	late, other := serveProcess(t, settings, "127.0.0.1:0=dynamo"), serveProcess(t, settings)
	eventually(t, "the other replica hears of no such listener", func() (string, bool) {
		_, text := get(other.url + "/admin/stats")
		return late.url + " in " + text, strings.Contains(text, `"url":"`+late.url+`"`)
	})
}

// TestReplicasShareAStore starts two servers with a store, kills the store and brings it back.
func TestReplicasShareAStore(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	settings := "store: {url: '" + shared.URL() + "'}\n"
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

// TestNewerStoreIsLeftAlone starts a server with a store that a newer program writes to: it writes
// nothing there, and follows its engine.
func TestNewerStoreIsLeftAlone(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: shared.Addr})
	defer client.Close()
	must.Succeed(t, client.Set(t.Context(), "kvconductor:{default}:version", 99, 0).Err())
	e := newRuledEngine(t, "new", 0)
	p := serveProcess(t, fmt.Sprintf("store: {url: %q}\nsources: [{endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: new, "+
		"block_size: %d}]\n",
		shared.URL(), e.pub.Addr(), recordedBlock))
	e.publish(ruledStored(0, 2))
	e.settled(p)
	if n := metric(p, "conductor_store_up"); n != 0 {
		t.Errorf("the store is %v", n)
	}
	keys, err := client.Keys(t.Context(), "*").Result()
	must.Succeed(t, err)
	if len(keys) != 1 {
		t.Errorf("the store has %q", keys)
	}
}
