package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/proctest"
)

// TestMain lets the test binary be the program itself, so that commands run as
// processes of their own. What a command starts in its turn is the program too, but for the
// workers that fuzzing starts.
func TestMain(m *testing.M) {
	if os.Getenv("RUN_AS_CONDUCTOR") == "1" && !slices.Contains(os.Args, "-test.fuzzworker") {
		if err := readFixed(os.Args); err != nil {
			panic(err)
		}
		main()
		os.Exit(0)
	}
	os.Setenv("RUN_AS_CONDUCTOR", "1")
	os.Setenv(config.EnvWait, "0s")
	os.Exit(m.Run())
}

var fixedLine = regexp.MustCompile(`(?m)^# fixed: (.*)$`)

// readFixed gives values that are no settings to a process of a test. They stand in its settings file, in a comment
// such as "# fixed: {silentafter: 1s}".
func readFixed(args []string) error {
	i := slices.Index(args, "--config")
	if i < 0 || i+1 == len(args) {
		return nil
	}
	text, err := os.ReadFile(args[i+1])
	if err != nil {
		return nil // the command says so
	}
	for _, line := range fixedLine.FindAllSubmatch(text, -1) {
		dec := yaml.NewDecoder(bytes.NewReader(line[1]))
		dec.KnownFields(true)
		if err := dec.Decode(&fixed); err != nil {
			return err
		}
	}
	return nil
}

// command is this program in another process, without the user's settings.
// The race detector would let each process sleep a second when it exits.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{"RUN_AS_CONDUCTOR=1", "GORACE=atexit_sleep_ms=10", "CONDUCTOR_SHUTDOWN_DRAIN=0s", config.EnvWait + "=0s",
		"HOME=" + os.TempDir() + "/nobody", "PATH=" + os.Getenv("PATH")}
	return cmd
}

// process is a running server.
type process struct {
	cmd  *exec.Cmd
	url  string
	said string // up to its address
	logs *transcript
	read chan struct{} // closed once logs has all that the process has written
}

// log is the lines that the process has written to standard error so far, all of them once cmd.Wait has returned.
func (p *process) log() string {
	if p.cmd.ProcessState != nil {
		<-p.read
	}
	text := p.logs.String()
	return text[:strings.LastIndexByte(text, '\n')+1]
}

type transcript = proctest.Transcript

var (
	get        = proctest.Get
	eventually = proctest.Eventually
)

// serveProcess starts a server on a free port, of the Conductor dialect unless told
// otherwise, and waits for its address.
func serveProcess(t *testing.T, config string, listen ...string) *process {
	t.Helper()
	return startCommand(t, serveCommandLine(t, config, listen...))
}

// serveCommandLine is the command that serveProcess starts.
func serveCommandLine(t *testing.T, config string, listen ...string) *exec.Cmd {
	t.Helper()
	if len(listen) == 0 {
		listen = []string{"127.0.0.1:0=conductor"}
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(config), 0o600))
	return command("serve", "--config", file, "--listen", listen[0])
}

// startProcess starts a command that logs an address, and waits for that.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, command(args...))
}

// startCommand is startProcess for a command that is made.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	return startBy(t, cmd, func() { must.Succeed(t, cmd.Start()) })
}

// startBy is startCommand for a command that start starts.
func startBy(t *testing.T, cmd *exec.Cmd, start func()) *process {
	t.Helper()
	p := &process{cmd: cmd, logs: new(transcript), read: make(chan struct{})}
	stderr, out, err := os.Pipe() // Wait closes a StderrPipe, with all in it that is not read yet
	must.Succeed(t, err)
	cmd.Stderr = out
	start()
	must.Succeed(t, out.Close())
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	lines := bufio.NewReader(stderr)
	address := regexp.MustCompile(`"address":"([^"]+)"`)
	for p.url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%s ended: %s%s", cmd.Args[1], p.logs, line)
		}
		p.logs.Write([]byte(line))
		if m := address.FindStringSubmatch(line); m != nil {
			p.url = "http://" + m[1]
		}
	}
	p.said = p.logs.String()
	go func() {
		defer close(p.read)
		defer stderr.Close()
		io.Copy(p.logs, lines)
	}()
	return p
}

// post sends JSON and returns the answer, which must have a status.
func post(t *testing.T, url, body string, status int) string {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	must.Succeed(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %d %s %v", url, resp.StatusCode, answer, err)
	}
	return string(answer)
}

// decode reads JSON.
func decode(t *testing.T, text string, out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatal(err, text)
	}
}

// TestServeStops sends both signals, one with a client that keeps its
// connection open and a source whose engine is not there.
func TestServeStops(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := serveProcess(t, `sources: [{endpoint: "tcp://127.0.0.1:1", type: vLLM, modelname: m, instance_id: a, block_size: 16}]`)
			if status, body := get(p.url + "/health"); status != 200 || !strings.Contains(body, `"ok"`) {
				t.Fatalf("health: %d %s", status, body)
			}
			if status, body := get(p.url + "/ready"); status != 503 || !strings.Contains(body, `"a|default|0"`) {
				t.Errorf("ready: %d %s", status, body)
			}
			must.Succeed(t, p.cmd.Process.Signal(sig))
			done := make(chan error, 1)
			go func() { done <- p.cmd.Wait() }()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("exit: %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("still running after a minute")
			}
		})
	}
}

// TestServeRefuses starts servers that cannot run: one clear line, exit 1, or 2 for a flag that
// there is not.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer taken.Close()
	f := func(want string, args ...string) {
		t.Helper()
		out, err := command(append([]string{"serve"}, args...)...).CombinedOutput()
		status := cli.ExitError
		if want == "unknown flag" {
			status = cli.ExitUsage
		}
		if exit := new(exec.ExitError); err == nil || !asExit(err, &exit) || exit.ExitCode() != status {
			t.Errorf("%v: exit %v, want %d", args, err, status)
		}
		if !strings.Contains(string(out), want) || strings.Count(strings.TrimSpace(string(out)), "\n") > 0 {
			t.Errorf("%v: output %q, want one line with %q", args, out, want)
		}
	}
	f("the port is in use", "--listen", taken.Addr().String()+"=conductor")
	f("no-such-file.yaml", "--config", "no-such-file.yaml")
	f("log.level", "--log-level", "loud", "--listen", "127.0.0.1:0=conductor")
	f("unknown flag", "--frobnicate")
	f("journal.dir: ", "--journal-dir", os.Args[0], "--listen", "127.0.0.1:0=conductor")
	f("journal.key_file: ", "--journal-dir", t.TempDir(), "--journal-key-file", os.Args[0], "--listen", "127.0.0.1:0=conductor")
	f("journal.max_bytes", "--journal-max-bytes", "1MiB", "--listen", "127.0.0.1:0=conductor")
}

func asExit(err error, target **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError)
	*target = e
	return ok
}

// TestServicesAsTable registers an engine that is not there and prints it.
func TestServicesAsTable(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "log: {format: json}\n")
	post(t, p.url+"/register", `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"engine-a","block_size":16,`+
		`"dp_rank":3}`, 200)
	f := func(want string, args ...string) {
		t.Helper()
		out, err := command(append(args, "--server", p.url)...).CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%v: %v\n%s\nwant %s", args, err, out, want)
		}
	}
	f(`engine-a +default +3 +vLLM +m +16 +connecting +`, "services")
	f(`default +engine-a +0 +0 +0 +0 +3:0 +connecting`, "query", "--model", "m", "--block-size", "16", "--tokens", "1,2 3")
	f(`default +engine-a +0 +0 +0 +0 +3:0 +connecting`, "query", "--model", "m", "--block-size", "16", "--seq-hashes",
		"[18446744073709551615]")
	f(`warning: model "other" is not registered for tenant "default"; these models are: "m"(?s:.*)no instance is registered`, "query",
		"--model", "other", "--block-size", "16", "--tokens", "1")
	out, err := command("query", "--server", p.url, "--model", "m", "--block-size", "16", "--tokens", "1,x").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `"x"`) {
		t.Errorf("bad token: %v %s", err, out)
	}
	out, err = command("services", "--server", "http://127.0.0.1:1").CombinedOutput()
	if err == nil || string(out) != "conductor: no server listens at 127.0.0.1:1: start one with conductor serve, or name it with "+
		"--server\n" {
		t.Errorf("no server: %v %s", err, out)
	}
}

// TestMsgpackListener asks a listener of the msgpack dialect, and one of the Conductor
// dialect by the type of the body.
func TestMsgpackListener(t *testing.T) {
	t.Parallel()
	none := "\x81\xa9instances\x80"
	ask := "\x83\xa5model\xa1m\xaablock_size\x10\xa9token_ids\x90"
	for _, listen := range []string{"127.0.0.1:0=conductor-msgpack", "127.0.0.1:0=conductor"} {
		p := serveProcess(t, "log: {level: info}\n", listen)
		for _, path := range []string{"/query", "/conductor/v1/query"} {
			resp, err := http.Post(p.url+path, "application/msgpack", strings.NewReader(ask))
			must.Succeed(t, err)
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/msgpack" || string(body) != none {
				t.Errorf("%s %s: %d %q", listen, path, resp.StatusCode, body)
			}
		}
		if status, body := get(p.url + "/conductor/v1/services"); status != 200 || body != `{"count":0,"services":[]}` {
			t.Errorf("%s: services: %d %s", listen, status, body)
		}
		if status, _ := get(p.url + "/ready"); status != 200 {
			t.Errorf("%s: ready: %d", listen, status)
		}
	}
	p := serveProcess(t, "log: {level: info}\n", "127.0.0.1:0=conductor-msgpack")
	if status, body := get(p.url + "/nothing"); status != 404 || body != "\x81\xa5error\xb6no such path: /nothing" {
		t.Errorf("nothing: %d %q", status, body)
	}
}

// TestJSONV2Listener asks a listener of the second server's dialect in JSON, and by the
// query string one of the Conductor dialect and the prefix that is everywhere.
func TestJSONV2Listener(t *testing.T) {
	t.Parallel()
	f := func(p *process, target, want string) {
		t.Helper()
		resp, err := http.Post(p.url+target, "application/json", strings.NewReader(`{"model":"m","block_size":16,"token_ids":[]}`))
		must.Succeed(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != want {
			t.Errorf("%s: %d %q, want %q", target, resp.StatusCode, body, want)
		}
	}
	const none = "{\"instances\":{}}\n"
	p := serveProcess(t, "log: {level: info}\n", "127.0.0.1:0=conductor-json-v2")
	f(p, "/query", none)
	f(p, "/conductor/v1/query", "{}")
	f(p, "/conductor/v1/query?dialect=v2", none)
	f(p, "/nothing", "no such path: /nothing\n")
	if status, _ := get(p.url + "/ready"); status != 200 {
		t.Errorf("ready: %d", status)
	}
	p = serveProcess(t, "log: {level: info}\n", "127.0.0.1:0=conductor")
	f(p, "/query", "{}")
	f(p, "/query?dialect=v2", none)
	f(p, "/nothing?dialect=v2", "no such path: /nothing\n")
}

// TestListenersServeDialects checks that both dialects are up, that every listener has the
// common paths and prefixes, and that each answers at its root in its own way.
func TestListenersServeDialects(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "log: {level: info}\n")
	for _, path := range []string{"/health", "/ready", "/metrics", "/openapi.yaml", "/services", "/conductor/v1/services", "/admin/check",
		"/dynamo/v1/workers"} {
		if status, body := get(p.url + path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get(p.url + "/nothing"); status != 404 || !strings.Contains(body, `"not_found"`) {
		t.Errorf("nothing: %d %s", status, body)
	}
	if _, body := get(p.url + "/metrics"); !strings.Contains(body, "conductor_query_seconds") && !strings.Contains(body, "go_goroutines") {
		t.Error("metrics lack the process")
	}
	if _, body := get(p.url + "/metrics"); !strings.Contains(body, "conductor_hash_memo_hits_total 0\n") ||
		!strings.Contains(body, "conductor_hash_memo_bytes ") {
		t.Error("metrics lack the memo of digests")
	}
	p = serveProcess(t, "log: {level: info}\n", "127.0.0.1:0=dynamo")
	for path, want := range map[string]string{"/health": "", "/workers": "[]", "/peers": "[]",
		"/conductor/v1/services": `{"count":0,"services":[]}`, "/conductor/v1/health": ""} {
		if status, body := get(p.url + path); status != 200 || want != "" && body != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get(p.url + "/nothing"); status != 404 || body != "" {
		t.Errorf("nothing: %d %q", status, body)
	}
	// One index behind both dialects, and one set of metrics.
	post(t, p.url+"/register", `{"instance_id":7,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`, 201)
	if _, body := get(p.url + "/conductor/v1/services"); !strings.Contains(body, `"InstanceID":"7"`) {
		t.Errorf("services: %s", body)
	}
	if _, body := get(p.url + "/metrics"); !strings.Contains(body, "dynamo_kvindexer_workers 1\n") ||
		!strings.Contains(body, "conductor_sources{") {
		t.Error("metrics lack a dialect")
	}
}
