package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// TestHealthOfThisMachine asks servers by their settings alone: each dialect, TLS under another name, and
// certificates of clients.
func TestHealthOfThisMachine(t *testing.T) {
	t.Setenv(config.EnvServer, "")
	ca := newAuthority(t, "fleet")
	cert, key := ca.issue("elsewhere", 10, time.Now().Add(time.Hour))
	other := newAuthority(t, "other")
	otherCert, otherKey := other.issue("stranger", 11, time.Now().Add(time.Hour))
	secured := fmt.Sprintf("cert: %s, key: %s", cert, key)
	f := func(settings, dialect, wrong string, more ...string) {
		t.Helper()
		p := serveProcess(t, settings, "127.0.0.1:0="+dialect)
		file, at := p.cmd.Args[3], strings.TrimPrefix(p.url, "http://")
		for _, ready := range []string{"--ready=false", "--ready"} {
			args := append([]string{"health", ready, "--config", file, "--listen", at + "=" + dialect, "--log-level=info"}, more...)
			status, out, errs := runCLI(args...)
			switch {
			case wrong == "" && (status != cli.ExitFine || out != "ok\n" || errs != ""):
				t.Errorf("%s %s %s: %d %q %q", settings, dialect, ready, status, out, errs)
			case wrong != "" && (status != cli.ExitError || !strings.Contains(errs, wrong)):
				t.Errorf("%s %s %s: %d %q %q, want %q", settings, dialect, ready, status, out, errs, wrong)
			}
		}
	}
	f("log: {level: info}\n", "conductor", "")
	f("log: {level: info}\n", "conductor-msgpack", "")
	f("log: {level: info}\n", "conductor-json-v2", "")
	f("log: {level: info}\n", "dynamo", "")
	f("log: {level: info}\n", "grpc", "")
	f("tls: {"+secured+"}\n", "conductor", "")
	f("tls: {"+secured+"}\n", "grpc", "")
	f("tls: {"+secured+"}\n", "conductor", "", "--cacert", ca.file)
	f("tls: {"+secured+"}\n", "conductor", "does not trust", "--cacert", other.file)
	f("tls: {"+secured+", client_ca: "+other.file+"}\n", "conductor", "") // certificates are asked for, and not required
	f("tls: {"+secured+", client_ca: "+ca.file+", require_client_cert: true}\n", "conductor", "")
	f("tls: {"+secured+", client_ca: "+ca.file+", require_client_cert: true}\n", "grpc", "")
	f("tls: {"+secured+", client_ca: "+other.file+", require_client_cert: true}\n", "conductor", "wants the certificate of a client")
	f("tls: {"+secured+", client_ca: "+other.file+", require_client_cert: true}\n", "conductor", "", "--cert", otherCert, "--key", otherKey)
	f("tls: {"+secured+", client_ca: "+other.file+", require_client_cert: true}\npeer: {cert: "+otherCert+", key: "+otherKey+"}\n",
		"conductor", "")
}

// TestHealthFindsSettings finds them in a file and in the environment, and a mistake in them does not make a
// server that runs dead.
func TestHealthFindsSettings(t *testing.T) {
	p := serveProcess(t, "log: {level: info}\n")
	at := strings.TrimPrefix(p.url, "http://")
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) { must.Succeed(t, os.WriteFile(file, []byte(text), 0o600)) }
	f := func(status int, want string, args ...string) {
		t.Helper()
		got, out, errs := runCLI(append([]string{"health"}, args...)...)
		if got != status || !strings.Contains(out+errs, want) {
			t.Errorf("%v: %d %q %q, want %d %q", args, got, out, errs, status, want)
		}
	}
	t.Setenv(config.EnvServer, "")
	write("listeners: [{address: 127.0.0.1:1, dialect: grpc}, {address: '" + at + "', dialect: conductor}]\n")
	f(0, "ok", "--config", file)
	f(1, "no server listens at 127.0.0.1:1: ", "--config", file, "--server", "127.0.0.1:1")
	t.Setenv("CONDUCTOR_CONFIG_PATH", file)
	f(0, "ok")
	write("listeners: [{address: '" + at + "'}]\nhash: {sed: 1}\n")
	f(0, "ok")
	write("listeners: [{address: 127.0.0.1:1}]\nhash: {sed: 1}\n")
	f(1, "no server listens at 127.0.0.1:1: ")
	f(1, "hash.sed: unknown key; did you mean \"seed\"?")
	write("listeners: [{address: 127.0.0.1:0}]\n")
	f(1, "name the server with --server")
	t.Setenv("CONDUCTOR_LISTENERS", "0.0.0.0"+at[strings.LastIndexByte(at, ':'):])
	f(0, "ok")
	f(0, `"status"`, "--json")
	t.Setenv(config.EnvServer, "127.0.0.1:2")
	f(1, "no server listens at 127.0.0.1:2: ")
	f(0, "ok", "--server", at)
	f(2, "has a path", "--server", at+"/ui")
}

// TestHealthNotReady says why a server is not ready.
func TestHealthNotReady(t *testing.T) {
	p := serveProcess(t, "stream: {stale_after: 1h}\nsources:\n  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, "+
		"instance_id: engine-a, block_size: 16}\n")
	for _, asJSON := range []bool{false, true} {
		status, out, errs := runCLI("health", "--ready", "--server", p.url, fmt.Sprintf("--json=%t", asJSON))
		want := "conductor: not ready: the source engine-a|default|0 is not synced yet\n"
		if asJSON {
			want = ""
		}
		if status != cli.ExitError || errs != want || asJSON != strings.Contains(out, `"ready": false`) {
			t.Errorf("%t: %d %q %q", asJSON, status, out, errs)
		}
	}
	if status, _, errs := runCLI("health", "--server", p.url); status != cli.ExitFine {
		t.Errorf("alive: %d %s", status, errs)
	}
}
