package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/lab/sim/publisher"
)

// TestShardsOverTLS holds that replicas which know each other by certificates send queries on, over
// connections that last, and that the client of such a query needs no more rights than it has.
func TestShardsOverTLS(t *testing.T) {
	t.Parallel()
	const models = 6
	ca := newAuthority(t, "fleet")
	credentials := certificateEntries(t, "  - {name: replica, subject: spiffe://fleet/replica, roles: [peer], tenants: ['*']}",
		"  - {name: router, subject: spiffe://fleet/router, roles: [query, register], tenants: ['*']}")
	hour := time.Now().Add(time.Hour)
	replicaCert, replicaKey := ca.issue("replica", 20, hour)
	router := ca.client(ca.issue("router", 21, hour))
	settings := fmt.Sprintf("store: {url: '%s'}\ncluster: {mode: shards, owners: 1}\nauth: {file: %s}\n"+
		"peer: {cacert: %s, cert: %s, key: %s}\n",
		redistest.Start(t).URL(), credentials, ca.file, replicaCert, replicaKey)
	a, _, _ := tlsProcess(t, ca, settings)
	b, _, _ := tlsProcess(t, ca, settings)
	send := func(p *process, path string, body map[string]any) (status int, text, by string) {
		t.Helper()
		raw, err := json.Marshal(body)
		must.Succeed(t, err)
		resp, err := router.Post(p.url+path, "application/json", bytes.NewReader(raw))
		must.Succeed(t, err)
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		return resp.StatusCode, string(answer), resp.Header.Get("Conductor-Replica")
	}
	for i := range models {
		e, err := publisher.Listen(publisher.Options{Host: "127.0.0.1", BlockSize: recordedBlock, Wire: publisher.VLLMMap{}, Ring: 1})
		must.Succeed(t, err)
		t.Cleanup(func() { e.Close() })
		if status, text, _ := send(a, "/register", map[string]any{"endpoint": e.Endpoint(), "replay_endpoint": e.ReplayEndpoint(),
			"type":      "vLLM",
			"modelname": fmt.Sprintf("m%d", i), "instance_id": fmt.Sprintf("e%d", i), "block_size": recordedBlock, "dp_rank": 0}); status !=
			http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	sent := map[*process]int{}
	for _, p := range []*process{a, b} {
		for i := range models {
			eventually(t, fmt.Sprintf("m%d is never answered", i), func() (string, bool) {
				status, text, by := send(p, "/query", shardQuery(i))
				right := status == http.StatusOK && strings.HasPrefix(text, fmt.Sprintf(`{"default":{"e%d":`, i))
				if right && by != "" {
					sent[p]++
				}
				return fmt.Sprint(status, text, p.log()), right
			})
		}
	}
	eventually(t, "no query was sent on", func() (string, bool) { // shards may have moved while they were asked
		for _, p := range []*process{a, b} {
			for i := range models {
				if _, _, by := send(p, "/query", shardQuery(i)); by != "" {
					sent[p]++
				}
			}
		}
		return fmt.Sprint(sent), sent[a]+sent[b] > 0
	})
	stranger := ca.client(ca.issue("stranger", 22, hour))
	for _, p := range []*process{a, b} {
		if got, _ := requestStatus(stranger, p.url); got != http.StatusUnauthorized {
			t.Errorf("an unknown certificate: %d", got)
		}
	}
}
