package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestRelayGivesHistory has a server come late to a fleet whose engines replay some batches
// only. From relays it learns all that a server knows which was there from the start.
func TestRelayGivesHistory(t *testing.T) {
	t.Parallel()
	f := newLiveFleet(t, 10)
	early := serveProcess(t, f.config(""), "127.0.0.1:0=dynamo")
	var config strings.Builder
	config.WriteString("sources:\n")
	var relays []*process
	serves := regexp.MustCompile(`"live":"([^"]+)","replays":"([^"]+)"`)
	for _, r := range f.ranks {
		p := startProcess(t, "relay", "--endpoint", r.pub.Endpoint(), "--replay-endpoint", r.pub.ReplayEndpoint(),
			"--bind", "tcp://127.0.0.1:0", "--bind-replay", "tcp://127.0.0.1:0", "--memory", "1", "--listen", "127.0.0.1:0")
		relays = append(relays, p)
		m := serves.FindStringSubmatch(p.said)
		if m == nil {
			t.Fatal(p.said)
		}
		fmt.Fprintf(&config, "- {endpoint: 'tcp://%s', replay_endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: '%d', "+
			"dp_rank: %d, block_size: %d}\n",
			m[1], m[2], r.worker, r.n, replicaBlock)
		eventually(t, "the relay follows its engine", func() (string, bool) {
			status, body := get(p.url + "/ready")
			return body, status == http.StatusOK
		})
	}
	eventually(t, "the early server follows all engines", func() (string, bool) {
		_, body := get(early.url + "/workers")
		return body, strings.Count(body, `"state":"synced"`) == len(f.ranks)
	})
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for range 60 { // more than the relays keep as batches
		for range 100 {
			f.step()
		}
		<-pace.C
	}
	stop := f.work()
	late := serveProcess(t, config.String(), "127.0.0.1:0=dynamo")
	stop()
	f.alike("one has its history from relays", early, late)
	for _, p := range relays {
		if _, body := get(p.url + "/metrics"); !strings.Contains(body, "\n"+`conductor_relay_dumps_total{rank="0"} 1`+"\n") {
			t.Errorf("the relay did not send one dump:\n%s", body)
		}
	}
}

// TestRelayRefuses names the flag that is wrong.
func TestRelayRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		out, err := command(append([]string{"relay"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	f("--endpoint is missing", "--bind", "tcp://*:1")
	f("--bind-replay is missing", "--endpoint", "tcp://e:1", "--bind", "tcp://*:1")
	with := func(want string, more ...string) {
		t.Helper()
		f(want, append([]string{"--endpoint", "tcp://127.0.0.1:1", "--bind", "tcp://127.0.0.1:0", "--bind-replay", "tcp://127.0.0.1:0"},
			more...)...)
	}
	with("--endpoint:", "--endpoint", "udp://x:1")
	with("--replay-endpoint:", "--replay-endpoint", "tcp://127.0.0.1")
	with("--cert and --key belong together", "--cert", "c.pem")
	with("--client-ca needs --cert", "--client-ca", "c.pem")
	with("--cert: open", "--cert", "none.pem", "--key", "none.pem")
	with("--disk needs --dir", "--disk", "1GiB")
	with("--dir needs --disk", "--dir", t.TempDir())
	with("--memory", "--memory", "lots")
	with("--memory: a relay needs memory", "--memory", "0")
	with("--ranks: 0 is less than 1", "--ranks", "0")
	with("has no port left for rank 1", "--ranks", "2", "--endpoint", "tcp://127.0.0.1:65535")
	with("has no port to count ranks from", "--ranks", "2", "--endpoint", "ipc:///tmp/e")
	with("--log-level", "--log-level", "loud")
	with("--bind:", "--bind", "tcp://192.0.2.1:1")
	with("--listen:", "--listen", "192.0.2.1:1")
}

// TestRelayNames holds that a web page whose name leads to this machine (DNS rebinding) reads nothing of a relay.
func TestRelayNames(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "relay", "--endpoint", "tcp://127.0.0.1:1", "--bind", "tcp://127.0.0.1:0", "--bind-replay", "tcp://127.0.0.1:0",
		"--listen", "127.0.0.1:0")
	for _, path := range []string{"/metrics", "/health", "/ready", "/other"} {
		if got := statusAs(t, p.url+path, "evil.example"); got != http.StatusForbidden {
			t.Errorf("%s for a foreign name: %d", path, got)
		}
	}
	if got := statusAs(t, p.url+"/health", "localhost:1"); got != http.StatusOK {
		t.Errorf("/health for localhost: %d", got)
	}
}

// statusAs returns the status of an answer to a request for a name.
func statusAs(t *testing.T, url, host string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	must.Succeed(t, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	resp.Body.Close()
	return resp.StatusCode
}

// TestRelayTLS holds that the listener of a relay answers clients with a certificate of its
// authority alone.
func TestRelayTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "operators")
	cert, key := ca.issue("relay", 2, time.Now().Add(time.Hour))
	p := startProcess(t, "relay", "--endpoint", "tcp://127.0.0.1:1", "--bind", "tcp://127.0.0.1:0", "--bind-replay", "tcp://127.0.0.1:0",
		"--listen", "127.0.0.1:0", "--cert", cert, "--key", key, "--client-ca", ca.file)
	at := strings.Replace(p.url, "http:", "https:", 1) + "/health"
	resp, err := ca.client(ca.issue("prometheus", 3, time.Now().Add(time.Hour))).Get(at)
	must.Succeed(t, err)
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("with a certificate: %d", resp.StatusCode)
	}
	if resp, err := ca.client("", "").Get(at); err == nil {
		t.Errorf("without a certificate: %d", resp.StatusCode)
	}
}
