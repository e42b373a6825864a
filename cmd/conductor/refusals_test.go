package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestCheckRefusesWhatServeRefuses requires that config check finds what ends the start of a server, and says the same.
func TestCheckRefusesWhatServeRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	none, file := filepath.Join(dir, "none"), write("file", "nothing that is used\n")
	type files struct{ cert, key string }
	var pair, other files
	ca := newAuthority(t, "ca")
	pair.cert, pair.key = ca.issue("one", 1, time.Now().Add(time.Hour))
	other.cert, other.key = ca.issue("two", 2, time.Now().Add(time.Hour))
	bad := write("headers", "no header\n")
	const port = "listeners: [{address: '127.0.0.1:0', dialect: conductor}]\n"
	for _, c := range []struct{ settings, want string }{
		{"auth: {file: " + none + "}", "auth.file: "},
		{"auth: {file: " + file + "}", "auth.file: "},
		{"tls: {cert: " + pair.cert + "}", ":2:13: tls.cert: cert and key belong together"},
		{"tls: {key: " + pair.key + "}", ":2:12: tls.key: cert and key belong together"},
		{"tls: {client_ca: " + pair.cert + "}", "tls.client_ca: only a listener with TLS"},
		{"tls: {cert: " + pair.cert + ", key: " + pair.key + ", require_client_cert: true}", "tls.require_client_cert: no authority"},
		{"tls: {cert: " + none + ", key: " + pair.key + "}", "tls.cert: "},
		{"tls: {cert: " + pair.cert + ", key: " + other.key + "}", "tls.cert: "},
		{"tls: {cert: " + pair.cert + ", key: " + pair.key + ", client_ca: " + none + "}", "tls.client_ca: "},
		{"peer: {cacert: " + none + "}", "peer.cacert: "},
		{"peer: {cert: " + pair.cert + "}", "peer.cert: "},
		{"peer: {cert: " + pair.cert + ", key: " + other.key + "}", "peer.cert: "},
		{"peer: {token_file: " + none + "}", "peer.token_file: "},
		{"store: {url: 'rediss://127.0.0.1:1', cacert: " + none + "}", "store.cacert: "},
		{"store: {url: 'rediss://127.0.0.1:1', cert: " + pair.cert + "}", "store.cert: "},
		{"store: {url: 'redis://127.0.0.1:1', password_file: " + none + "}", "store.password_file: "},
		{"snapshot: {dir: " + file + "}", "snapshot.dir: " + file + " is a file, and a folder is needed"},
		{"snapshot: {dir: " + file + "/below}", "snapshot.dir: "},
		{"snapshot: {dir: /proc/x}", "snapshot.dir: cannot write to /proc: it shows the state of the system"},
		{"snapshot: {dir: " + dir + "/s, key_file: " + none + "}", "snapshot.key_file: "},
		{"journal: {dir: " + file + "}", "journal.dir: " + file + " is a file, and a folder is needed"},
		{"journal: {dir: /sys/a/b}", "journal.dir: cannot write to "},
		{"journal: {dir: " + dir + "/j, key_file: " + none + "}", "journal.key_file: "},
		{"journal: {dir: " + dir + "/same}\nsnapshot: {dir: " + dir + "/same/}", "journal.dir: "},
		{"dynamo: {access_log: " + dir + "}", "failed to open access log "},
		{"tracing: {endpoint: 'http://127.0.0.1:1', headers_file: " + bad + "}", "tracing.headers_file: "},
		{"auth: {file: " + none + "}\nsnapshot: {dir: " + file + "}", "snapshot.dir: "}, // all of them at once
	} {
		settings := write("settings.yaml", port+c.settings+"\n")
		says := func(args ...string) string {
			t.Helper()
			cmd := command(args...)
			var errs strings.Builder
			cmd.Stderr = &errs
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Fatalf("%s: %q: %v: %s", c.settings, args, err, errs.String())
			}
			return errs.String()
		}
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(says("config", "check", settings)), "\n") {
			if !strings.HasPrefix(line, "warning: ") {
				lines = append(lines, line)
			}
		}
		sentence := strings.Join(lines, "\n")
		if !strings.Contains(sentence, c.want) {
			t.Errorf("%s: config check says %q, want %q", c.settings, sentence, c.want)
		}
		if served := says("serve", "--config", settings); !strings.Contains(served, sentence) {
			t.Errorf("%s: serve says %q, config check %q", c.settings, served, sentence)
		}
	}
	for _, path := range []string{"s", "j", "same"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
			t.Errorf("the check has made %s", path)
		}
	}
}

// TestAllMistakesAtOnce requires that config check, serve and a reload tell every mistake, and not the next one once the first is
// mended: those of the text, those of files that it names, and ports.
func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ca := newAuthority(t, "ca")
	cert, _ := ca.issue("one", 1, time.Now().Add(time.Hour))
	_, key := ca.issue("two", 2, time.Now().Add(time.Hour))
	file := write("file", "no folder\n")
	credentials := write("credentials.yaml", "tokens: [{sha256: short, roles: [king], tenants: [], rolls: 1}]\n"+
		"certificates: [{roles: [query], tenants: ['']}, {name: a, subject: a, roles: query, tenants: [x]}]\n")
	headers := write("headers", "first\nsecond\n")
	settings := write("settings.yaml", strings.NewReplacer("DIR", dir, "CERT", cert, "KEY", key, "FILE", file).Replace(`
log: {level: loud}
no_such_setting: 1
auth: {file: `+credentials+`, anonymous: [king]}
tls: {cert: CERT, key: KEY, client_ca: DIR/none-ca}
peer: {cert: DIR/none-cert, key: DIR/none-key, cacert: FILE, token_file: DIR/none-token}
store: {url: 'rediss://127.0.0.1:1/x', cert: CERT, cacert: DIR/none-store-ca, password_file: DIR/none-password,
  sentinel_password_file: DIR/none-sentinel}
snapshot: {dir: FILE, interval: 5, key_file: DIR/none-snapshot-key}
journal: {dir: FILE/below, key_file: DIR/none-journal-key}
tracing: {endpoint: 'http://127.0.0.1:1', sample: many, headers_file: `+headers+`}
dynamo: {access_log: DIR}
listeners: [{address: '127.0.0.1:99999', dialect: conductor}]
sources:
  - {endpoint: 'tcp://e', type: vLLM, modelname: m, instance_id: a, block_size: 16}
  - {endpoint: 'tcp://e:1', type: v, instance_id: b}
`))
	wants := []string{
		`log.level: "loud"`, "no_such_setting", "auth.file: " + credentials + ":1:19: tokens[0].sha256: ",
		":1:10: tokens[0].name: is required", ":1:34: tokens[0].roles[0]: ", "tokens[0].tenants: ",
		`1:54: tokens[0].rolls: unknown key; did you`,
		"credentials.yaml:2:16: certificates[0].subject: ", "certificates[0].name: ", "certificates[0].tenants[0]: ",
		"certificates[1].roles: must be a list, not a text", `auth.anonymous[0]: "king"`,
		"tls.cert: tls: private key does not match", "tls.client_ca: open ", "peer.cert: open ", "peer.key: open ",
		"peer.cacert: " + file + ": there is no certificate", "peer.token_file: open ", "store.url: invalid database number",
		"store.cert: cert and key belong together", "store.cacert: open ", "store.password_file: open ",
		"store.sentinel_password_file: open ", "snapshot.dir: " + file + " is a file", "snapshot.interval: 5 has no unit",
		"snapshot.key_file: open ", "journal.dir: ", "journal.key_file: open ", "tracing.sample: must be a number",
		"headers:1: ", "headers:2: ", "failed to open access log ", "listeners[0].address: ", "sources[0].endpoint: ",
		"sources[1].type: ", "sources[1].modelname: ",
		"sources[1].block_size: ",
	}
	tells := func(want []string, args ...string) {
		t.Helper()
		cmd := command(args...)
		said, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%q: no error: %s", args, said)
		}
		for _, w := range want {
			if !strings.Contains(string(said), w) {
				t.Errorf("%q does not tell %q", args, w)
			}
		}
		seen := make(map[string]bool)
		for line := range strings.Lines(string(said)) {
			if seen[line] {
				t.Errorf("%q tells twice: %s", args, line)
			}
			seen[line] = true
		}
		if t.Failed() {
			t.Log(string(said))
		}
	}
	tells(wants, "config", "check", settings)
	tells(wants, "serve", "--config", settings)

	// A server tells which ports are taken together with the rest.
	taken := []net.Listener{}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.Succeed(t, err)
		defer l.Close()
		taken = append(taken, l)
	}
	first, second := taken[0].Addr().String(), taken[1].Addr().String()
	ports := write("ports.yaml", "auth: {file: "+dir+"/none}\nlisteners: [{address: '"+first+"', dialect: conductor}, {address: '"+second+
		"', dialect: dynamo}]\n")
	tells([]string{"auth.file: open ", "cannot listen on " + first, "cannot listen on " + second}, "serve", "--config", ports)

	// A reload too.
	auth := "auth: {file: " + write("fine.yaml", "tokens: []\n") + ", loopback: [admin]}\n"
	live := write("live.yaml", auth)
	p := startProcess(t, "serve", "--config", live, "--listen", "127.0.0.1:0")
	write("live.yaml", "log: {level: loud}\n"+auth)
	write("fine.yaml", "tokens: [{}]\n")
	tells([]string{`log.level: "loud"`, "auth.file: " + dir + "/fine.yaml:1:10: tokens[0].sha256: ",
		"fine.yaml:1:10: tokens[0].name: "}, "config", "diff", "--server",
		p.url)
}

// TestCheckWarns requires that config check warns of what a server would start with and an operator did not mean.
func TestCheckWarns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := func(settings, want string) {
		t.Helper()
		file := filepath.Join(dir, "settings.yaml")
		must.Succeed(t, os.WriteFile(file, []byte(settings), 0o600))
		out, err := command("config", "check", file).CombinedOutput()
		if err != nil || (want == "") == strings.Contains(string(out), "warning: ") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s, want %q", settings, err, out, want)
		}
	}
	const one = "{endpoint: 'tcp://e:1', type: vLLM, modelname: m, instance_id: a, block_size: 16}"
	f("sources: []\n", "no source is configured")
	f("sources: ["+one+"]\n", "")
	f("sources: ["+one+", "+strings.Replace(one, "instance_id: a", "instance_id: b", 1)+"]\n", "several sources follow one publisher")
	f("listeners: [{address: '127.0.0.1:1333', dialect: conductor}, {address: ':1333', dialect: dynamo}]\nsources: ["+one+"]\n",
		"listeners[1]: the port of :1333 is also that of listeners[0]")
	f("discovery: {sources_dir: "+dir+"/none}\n", "no source comes from there")
	f("discovery: {sources_dir: "+dir+"}\n", "all of this file of discovery.sources_dir") // the settings are no file of sources
	f("discovery: {token_file: "+dir+"/none}\nsources: ["+one+"]\n", "discovery.token_file: ")
}
