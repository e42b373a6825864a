package main

import (
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
		{"tls: {cert: " + pair.cert + "}", ":2:13: tls.cert and tls.key belong together"},
		{"tls: {key: " + pair.key + "}", ":2:12: tls.cert and tls.key belong together"},
		{"tls: {client_ca: " + pair.cert + "}", "tls.client_ca: only a listener with TLS"},
		{"tls: {cert: " + pair.cert + ", key: " + pair.key + ", require_client_cert: true}", "tls.require_client_cert: no authority"},
		{"tls: {cert: " + none + ", key: " + pair.key + "}", "tls.cert: "},
		{"tls: {cert: " + pair.cert + ", key: " + other.key + "}", "tls.cert: "},
		{"tls: {cert: " + pair.cert + ", key: " + pair.key + ", client_ca: " + none + "}", "tls.cert: "},
		{"peer: {cacert: " + none + "}", "peer: "},
		{"peer: {cert: " + pair.cert + "}", "peer: "},
		{"peer: {cert: " + pair.cert + ", key: " + other.key + "}", "peer: "},
		{"peer: {token_file: " + none + "}", "peer: "},
		{"store: {url: 'rediss://127.0.0.1:1', cacert: " + none + "}", "store.cacert: "},
		{"store: {url: 'rediss://127.0.0.1:1', cert: " + pair.cert + "}", "store.cert: "},
		{"store: {url: 'redis://127.0.0.1:1', password_file: " + none + "}", "store.password_file: "},
		{"snapshot: {dir: " + file + "}", "snapshot.dir: " + file + " is a file, and a folder is needed"},
		{"snapshot: {dir: " + file + "/below}", "snapshot.dir: "},
		{"snapshot: {dir: " + dir + "/s, key_file: " + none + "}", "snapshot.key_file: "},
		{"journal: {dir: " + file + "}", "journal.dir: " + file + " is a file, and a folder is needed"},
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
