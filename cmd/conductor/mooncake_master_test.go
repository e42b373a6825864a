package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/master"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

// storeClient is a client of a Mooncake Store that obeys lines: put and remove with a
// key, clear.
const storeClient = `
import sys
from mooncake.store import MooncakeDistributedStore
s = MooncakeDistributedStore()
rc = s.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1])
print("answer", rc, flush=True)
for line in sys.stdin:
    verb, _, key = line.strip().partition(" ")
    if verb == "clear":
        rc = s.remove_all(True)
    else:
        rc = s.put(key, b"kv") if verb == "put" else s.remove(key, True)
    print("answer", rc, flush=True)
`

// freePorts returns ports of this machine that nothing listens on.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		address, err := freeport.Address()
		must.Succeed(t, err)
		_, port, _ := net.SplitHostPort(address)
		ports = append(ports, port)
	}
	return ports
}

// objectsOf returns how many objects a pool holds.
func objectsOf(t *testing.T, url, pool string) string {
	t.Helper()
	type row struct {
		InstanceID string
		Objects    *int
	}
	rows, body := servicesOf[row](t, url)
	for _, s := range rows {
		if s.InstanceID == pool && s.Objects != nil {
			return strconv.Itoa(*s.Objects)
		}
	}
	return body
}

// TestPoolTTL: objects of a configured pool go after its time to live, those of the
// same master on another medium, or without one, stay.
func TestPoolTTL(t *testing.T) {
	t.Parallel()
	m, err := publisher.ListenMaster("127.0.0.1", "default", "store")
	must.Succeed(t, err)
	defer m.Close()
	source := `{endpoint: "` + m.Endpoint() + `", type: Mooncake, modelname: m, block_size: 16, instance_id: `
	p := serveProcess(t, "sources: ["+source+"forgets, ttl: {cpu: 1s}}, "+source+"half, ttl: {DISK: 1s}}, "+source+"keeps}]")
	var put []master.Event
	for i := range 3 {
		put = append(put, master.Event{Key: fmt.Sprintf("m@tp_rank:0@%064x", i+1), Tier: truth.Host})
	}
	put[2].Tier = truth.Disk
	counts := func() string {
		return objectsOf(t, p.url, "forgets") + " " + objectsOf(t, p.url, "half") + " " + objectsOf(t, p.url, "keeps")
	}
	eventually(t, "the objects do not arrive", func() (string, bool) {
		if _, err := m.Publish(put); err != nil {
			t.Fatal(err)
		}
		got := counts()
		return got, got == "3 3 3"
	})
	eventually(t, "objects do not expire, or others do", func() (string, bool) {
		got := counts()
		return got, got == "1 2 3"
	})
}

// TestMooncakeMaster follows a real master of a Mooncake Store: what its client puts
// serves an engine's prompt, what it removes does not. docs/pools.md says what to set.
func TestMooncakeMaster(t *testing.T) {
	t.Parallel()
	wheel, client := os.Getenv("MOONCAKE_MASTER"), os.Getenv("MOONCAKE_CLIENT")
	if wheel == "" || client == "" {
		t.Skip("MOONCAKE_MASTER and MOONCAKE_CLIENT are not set to directories of unpacked wheels, see docs/contributing/mooncake.md")
	}
	ports := freePorts(t, 3)
	rpc, admin, endpoint := "127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1], "tcp://127.0.0.1:"+ports[2]
	m := exec.Command(filepath.Join(wheel, "mooncake", "mooncake_master"), "--rpc_port="+ports[0], "--metrics_port="+ports[1],
		"--enable_kv_events", "--kv_events_bind_endpoint="+endpoint, "--kv_events_backend_id=store")
	must.Succeed(t, m.Start())
	t.Cleanup(func() { m.Process.Kill(); m.Wait() })
	eventually(t, "the master does not publish", func() (string, bool) {
		_, body := get(admin + "/kv_events/status")
		return body, strings.Contains(body, `"enabled":true`)
	})

	store := exec.Command(cmp.Or(os.Getenv("CONDUCTOR_PYTHON"), "python3"), "-c", storeClient, rpc)
	store.Env = append(os.Environ(), "PYTHONPATH="+client)
	in, err := store.StdinPipe()
	must.Succeed(t, err)
	out, err := store.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, store.Start())
	t.Cleanup(func() { store.Process.Kill(); store.Wait() })
	lines := bufio.NewScanner(out)
	answer := func() string {
		t.Helper()
		for lines.Scan() {
			if rc, ok := strings.CutPrefix(lines.Text(), "answer "); ok {
				return rc
			}
		}
		t.Fatal("the client of the store ended")
		return ""
	}
	do := func(line string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, line); err != nil {
			t.Fatal(err)
		}
		if rc := answer(); strings.HasPrefix(rc, "-") {
			t.Fatalf("%s: %s", line, rc)
		}
	}
	if rc := answer(); rc != "0" {
		t.Fatalf("the client cannot be set up: %s", rc)
	}

	p := serveProcess(t, "")
	body := fmt.Sprintf(`{"endpoint":%q,"type":"Mooncake","modelname":"m","instance_id":"pool","block_size":%d,"dp_rank":0}`, endpoint,
		recordedBlock)
	post(t, p.url+"/register", body, 200)
	e := recordEngine(t, p, "vllm", 7)
	e.publish(engine.Stored, 0, 3)
	e.publish(engine.Removed, 0, 3)
	e.settle(p, "vllm")

	key := func(i int) string { return fmt.Sprintf("m@tp_rank:0@%064x", 7+i) }
	prompt, _ := json.Marshal(recordedTokens(3))
	expect := func(when, count string, tokens int) {
		t.Helper()
		want := fmt.Sprintf(`"vllm":{"longest_matched":%d,"GPU":0,"CPU":%d,`, tokens, tokens)
		eventually(t, when, func() (string, bool) {
			got := objectsOf(t, p.url, "pool")
			row := answerOf(t, p.url, fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":%s}`, recordedBlock, prompt))
			return fmt.Sprintf("%s objects and %s, want %s and %s", got, row, count, want), got == count && strings.Contains(row, want)
		})
	}
	eventually(t, "no event arrives", func() (string, bool) { // until the subscription has
		do("put " + key(0))
		do("remove " + key(0))
		do("put " + key(0))
		got := objectsOf(t, p.url, "pool")
		return got, got == "1"
	})
	expect("one is put", "1", recordedBlock)
	do("put " + key(1))
	do("put " + key(2))
	expect("three are put", "3", 3*recordedBlock)
	do("put " + key(2)) // is there, so the master says nothing
	do("remove " + key(1))
	expect("one is removed", "2", recordedBlock)
	do("clear")
	expect("all are removed", "0", 0)
}
