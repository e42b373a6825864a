package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/config"
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

// TestForgedReplicaGetsNoToken lets a server start whose store names a replica that somebody has written there: it is asked
// nothing, as it starts, when routers report, and as a peer that a client has registered. A replica that has the same
// token is asked.
func TestForgedReplicaGetsNoToken(t *testing.T) {
	t.Parallel()
	shared, asked := redistest.Start(t), make(chan string, 100)
	forged := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization")
	}))
	defer forged.Close()
	dir := t.TempDir()
	token, credentials := filepath.Join(dir, "token"), filepath.Join(dir, "credentials.yaml")
	must.Succeed(t, os.WriteFile(token, []byte("secret-of-the-replicas\nthe-one-before\n"), 0o600))
	digest := sha256.Sum256([]byte("secret-of-the-replicas"))
	must.Succeed(t, os.WriteFile(credentials, fmt.Appendf(nil,
		"tokens: [{name: replicas, sha256: %x, roles: [peer, query], tenants: ['*']}]\n", digest), 0o600))
	settings := fmt.Sprintf("store: {url: '%s'}\nauth: {file: %s, loopback: [query, register, metrics, admin]}\npeer: {token_file: %s}\n",
		shared.URL(), credentials, token)
	client := redis.NewClient(&redis.Options{Addr: shared.Addr})
	defer client.Close()
	lease := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "forged"}
	must.Succeed(t, client.ZAdd(t.Context(), "kvconductor:{default}:replicas", lease).Err())
	must.Succeed(t, client.HSet(t.Context(), "kvconductor:{default}:says", "forged", `{"id":"forged","url":"`+forged.URL+
		`","started":"2020-01-01T00:00:00Z","version":"1","weight":1}`).Err())
	one, other := serveProcess(t, settings), serveProcess(t, settings)
	for _, p := range []*process{one, other} {
		eventually(t, "the replicas do not know each other", func() (string, bool) {
			return p.log(), metric(p, "conductor_replicas") == 2 && metric(p, "conductor_replicas_unproven") == 1
		})
	}
	post(t, one.url+"/register", registered("e", "127.0.0.1:9"), 200)
	follow(t, []*process{one, other}, "e")
	eventually(t, "no report is mirrored", func() (string, bool) {
		post(t, one.url+"/routed",
			`{"model":"m","block_size":16,"instance_id":"e","token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`, 200)
		_, text := get(one.url + "/metrics")
		return text, metric(one, `conductor_reports_mirrored_total{result="delivered"}`) > 0
	})
	select {
	case request := <-asked:
		t.Errorf("the forged replica is asked: %s", request)
	default:
	}
	if !strings.Contains(one.log(), "do not prove that they know the token of peer.token_file") {
		t.Errorf("the log does not tell of it:\n%s", one.log())
	}
}

// TestTokenGoesToKnownPeers asks a peer of the settings, and one that a client may have registered.
func TestTokenGoesToKnownPeers(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") })
	known, other := httptest.NewServer(handler), httptest.NewServer(handler)
	defer known.Close()
	defer other.Close()
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	client, err := peerClient(&config.Loaded{Config: config.Config{Dynamo: config.DynamoDialect{Peers: []string{known.URL + "/"}},
		Peer: config.Peer{TokenFile: token}}})
	must.Succeed(t, err)
	for url, want := range map[string]string{known.URL: "Bearer secret", other.URL: ""} {
		resp, err := client.Get(url + "/admin/digest")
		must.Succeed(t, err)
		resp.Body.Close()
		if sent := <-got; sent != want {
			t.Errorf("%s is sent %q, not %q", url, sent, want)
		}
	}
}
