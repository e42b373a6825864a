package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"io"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/demo"
)

// simulatedFleet is the report of conductor-lab simulate.
type simulatedFleet struct {
	Answers   struct{ Settled, Wrong int }
	Instances []struct {
		Publisher  string
		Events     int
		Faults     struct{ Cuts, Restarts int }
		Recoveries struct{ Reconnects, Restarts int }
	}
}

// simulated runs a fleet against a real server for six seconds. Settled answers are
// never wrong.
func simulated(t *testing.T, settings string, args ...string) (r simulatedFleet) {
	t.Helper()
	s, err := demo.Launch(t.Context(), server(t), t.Output(), func(string, string) string { return settings })
	must.Succeed(t, err)
	defer s.Stop()
	cmd := command(t, append([]string{"simulate", "--server", s.URL, "--json", "--quiet", "--duration", "6s"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	decode(t, string(out), &r)
	if r.Answers.Settled == 0 || r.Answers.Wrong > 0 {
		t.Errorf("answers: %+v\n%s", r.Answers, out)
	}
	return r
}

// TestSimulateWaitsForTheServer starts the fleet before the server, as lines pasted in one go do.
func TestSimulateWaitsForTheServer(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	must.Succeed(t, err)
	cmd := command(t, "simulate", "--requests", "20", "--quiet", "--json")
	cmd.Env = append(cmd.Env, "CONDUCTOR_SERVER="+address, "CONDUCTOR_WAIT=10m")
	errs, err := cmd.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	defer cmd.Process.Kill()
	said := bufio.NewReader(errs)
	if line, err := said.ReadString('\n'); err != nil ||
		line != "conductor-lab: no server listens at "+address+" yet; waiting for it up to 10m0s\n" {
		t.Fatalf("%q, %v", line, err)
	}
	serves := server(t)("serve", "--listen", address)
	must.Succeed(t, serves.Start())
	defer serves.Wait()
	defer serves.Process.Kill()
	rest, err := io.ReadAll(said)
	must.Succeed(t, err)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, rest)
	}
}

// TestSimulateFaults holds that a disturbed fleet is noticed and reported.
func TestSimulateFaults(t *testing.T) {
	t.Parallel()
	r := simulated(t, "", "--faults",
		"--device-blocks", "1024", "--host-blocks", "512", "--disk-blocks", "512", "--clear-every", "50")
	cuts, reconnects := 0, 0
	for _, i := range r.Instances {
		cuts += i.Faults.Cuts + i.Faults.Restarts
		reconnects += i.Recoveries.Reconnects
	}
	if cuts == 0 || reconnects == 0 {
		t.Errorf("%d connections ended, %d came back: %+v", cuts, reconnects, r)
	}
}

// TestSimulateLookAhead holds that answers about engines with a drafter are right in one
// deployment with engines without, and with a pool that serves the latter alone. Small
// blocks let many prompts end within a look-ahead.
func TestSimulateLookAhead(t *testing.T) {
	t.Parallel()
	r := simulated(t, "", "--pool", "--block-size", "8",
		"--device-blocks", "2048", "--host-blocks", "1024", "--disk-blocks", "1024", "--pool-host-blocks", "3000", "--pool-disk-blocks",
		"4000")
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
	t.Parallel()
	simulated(t, "", "--pool", "--families", "vllm-map,vllm-array,sglang",
		"--device-blocks", "1024", "--host-blocks", "512", "--disk-blocks", "512", "--pool-host-blocks", "3000", "--pool-disk-blocks",
		"4000")
}

// TestSimulateWithToken runs a fleet against a server that knows its clients by tokens, over TLS.
func TestSimulateWithToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	credentials, token, authority := filepath.Join(dir, "credentials.yaml"), filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	must.Succeed(t, os.WriteFile(credentials,
		fmt.Appendf(nil, "tokens:\n  - {name: simulator, sha256: %x, roles: [register, query, peer, admin], tenants: ['*']}\n",
			sha256.Sum256([]byte("simulator"))), 0o600))
	must.Succeed(t, os.WriteFile(token, []byte("simulator\n"), 0o600))
	s, err := demo.Launch(t.Context(), server(t), t.Output(), func(string, string) string { return "auth: {file: " + credentials + "}\n" })
	must.Succeed(t, err)
	defer s.Stop()
	target, err := url.Parse(s.URL)
	must.Succeed(t, err)
	proxy := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(target))
	defer proxy.Close()
	must.Succeed(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw}), 0o600))
	args := []string{"simulate", "--server", proxy.URL, "--cacert", authority, "--quiet", "--duration", "2s"}
	if out, err := command(t, append(args, "--token-file", token)...).CombinedOutput(); err != nil {
		t.Errorf("with the token: %v\n%s", err, out)
	}
	if out, err := command(t, args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "401") {
		t.Errorf("without the token: %v\n%s", err, out)
	}
}
