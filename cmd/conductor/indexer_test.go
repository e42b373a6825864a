package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/spf13/pflag"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// asIndexer is this program under Dynamo's name, in another process.
func asIndexer(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := filepath.Abs(os.Args[0])
	must.Succeed(t, err)
	link := filepath.Join(t.TempDir(), indexerName)
	must.Succeed(t, os.Symlink(self, link))
	cmd := command(args...)
	cmd.Path, cmd.Args[0] = link, link
	return cmd
}

// TestIndexerFlags holds what Dynamo's flags make of listeners and sources.
func TestIndexerFlags(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	load := func(args ...string) (*config.Loaded, *indexerFlags, error) {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		config.Flags(fs)
		flags := addIndexerFlags(fs, 0)
		must.Succeed(t, fs.Parse(args))
		loaded, err := flags.loadConfig()
		return loaded, flags, err
	}
	f := func(want string, args ...string) {
		t.Helper()
		loaded, _, err := load(args...)
		var got []string
		for _, l := range loaded.Config.Listeners {
			got = append(got, l.Address)
		}
		for _, s := range loaded.Config.Sources {
			got = append(got, fmt.Sprintf("%s %s %s %d %s", s.Key(), s.Type, s.Model, s.BlockSize, s.Endpoint))
		}
		if text := strings.Join(got, ", "); err != nil || text != want {
			t.Errorf("%v: %s, %v\nwant %s", args, text, err, want)
		}
	}
	const usual = ":13333, :8090"
	f(usual)
	f(":13333, 0.0.0.0:8095", "--port", "8095")
	f(":13333, 0.0.0.0:0", "--port=0", "--threads=0")
	f(usual, "--block-size", "16", "--model-name", "m", "--tenant-id", "t", "--routing-group", "g") // as harnesses start it
	f(usual, "--workers", ", ,", "--block-size", "0x10", "--threads", "1")
	workers := []string{"--block-size", "16", "--workers", "1=tcp://a:5557, 18446744073709551615:1 = tcp://b:5558 ,"}
	sources := func(group, model string) string {
		return usual + ", 1|" + group + "|0 vLLM " + model + " 16 tcp://a:5557, 18446744073709551615|" + group + "|1 vLLM " + model +
			" 16 tcp://b:5558"
	}
	f(sources("default", "default"), workers...)
	f(sources("default", "m"), append(workers, "--model-name", "m")...)
	f(sources("acme", "default"), append(workers, "--tenant-id", "acme")...)
	f(sources("g", "default"), append(workers, "--routing-group", "g")...)
	f(sources("g", "default"), append(workers, "--routing-group", "g", "--tenant-id", "acme")...)
	f(sources("acme", "default"), append(workers, "--routing-group", "", "--tenant-id", "acme")...)
	f(sources("default", "default"), append(workers, "--routing-group", "", "--tenant-id", "")...)
	// Dynamo accepts them, so the command line does.
	f(usual+", 1|default|0 vLLM default 16 tcp://*:5557, 2|default|0 vLLM default 16 inproc://x", "--block-size=16",
		"--workers=1=tcp://*:5557,2=inproc://x")

	r := func(want string, args ...string) {
		t.Helper()
		_, flags, _ := load(args...)
		if got := strings.Join(flags.remarks(), "; "); got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	r("", "--tenant-id", "acme")
	r("", "--tenant-id", "acme", "--routing-group", "acme")
	r(`--tenant-id "acme" has no effect beside --routing-group "g"`, "--tenant-id", "acme", "--routing-group", "g")
	r("--threads has no effect: sources are followed in parallel on all processors; GOMAXPROCS bounds those", "--threads=1")

	// One run tells everything that is wrong.
	_, _, err := load("--workers", "1=h:1", "--block-size", "16", "--max-sources=0", "--port=1", "--listen=:2=dynamo")
	want := `flag --max-sources: limits.max_sources: 0 is too small; the least is 1
flag --port: listeners: --listen says where the dynamo dialect listens; keep one of the two
flag --workers: invalid ZMQ endpoint ` + "`h:1`: missing scheme"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestIndexerRefuses compares exit status and words under both names.
func TestIndexerRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "0.0.0.0:0")
	must.Succeed(t, err)
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	run := func(cmd *exec.Cmd) (int, string) {
		out, err := cmd.CombinedOutput()
		exit := new(exec.ExitError)
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	f := func(status int, want string, env []string, args ...string) {
		t.Helper()
		cmd := asIndexer(t, args...)
		cmd.Env = append(cmd.Env, env...)
		if got, out := run(cmd); got != status || !strings.HasPrefix(out, want+"\n") {
			t.Errorf("%v: exit %d, %q; want %d, %q", args, got, out, status, want)
		}
		if status != 1 {
			return
		}
		cmd = command(append([]string{"serve", "--listen=127.0.0.1:0=conductor"}, args...)...)
		cmd.Env = append(cmd.Env, env...)
		if got, out := run(cmd); got != 1 || !strings.HasSuffix(out, strings.TrimPrefix(want, "Error: ")+"\n") {
			t.Errorf("serve %v: exit %d, %q; want 1, %q", args, got, out, want)
		}
	}
	f(1, "Error: --block-size is required when --workers is specified", nil, "--workers", "1=tcp://h:1")
	f(1, "Error: --block-size is required when --workers is specified", nil, "--workers", "")
	f(1, "Error: invalid worker entry `1`; expected worker_id[:dp_rank]=endpoint", nil, "--workers", "1", "--block-size=16")
	f(1, "Error: invalid worker id in `-1=tcp://h:1`: invalid digit found in string", nil, "--workers=-1=tcp://h:1", "--block-size=16")
	f(1, "Error: invalid dp_rank in `1:z=tcp://h:1`: invalid digit found in string", nil, "--workers=1:z=tcp://h:1", "--block-size=16")
	f(1, "Error: invalid ZMQ endpoint `udp://h:1`: unsupported scheme `udp`", nil, "--workers=1=udp://h:1", "--block-size=16")
	f(1, "Error: instance 1 dp_rank 0 already registered", nil, "--workers=1=tcp://h:1,1=tcp://h:2", "--block-size=16")
	f(1, "Error: --block-size 0 is out of range 1 to 2147483647", nil, "--workers=1=tcp://h:1", "--block-size=0")
	f(1, "Error: dp_rank 4294967295 of instance 1 is out of range 0 to 2147483647", nil, "--workers=1:4294967295=tcp://h:1",
		"--block-size=16")
	f(1, `Error: DYN_ROUTER_MIN_INITIAL_WORKERS must be a non-negative integer, got "x": invalid digit found in string`,
		[]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=x"})
	f(1, `Error: flag --peers: dynamo.peers: "peer:8090" is no URL; write http://peer:8090`, nil, "--peers",
		"http://a,peer:8090")
	f(1, `Error: flag --trace-id-header: dynamo.trace_id_header: invalid HTTP header name "a b"`, nil, "--trace-id-header", "a b")
	f(1, "Error: failed to open access log no/such/dir: no such file or directory", nil, "--access-log", "no/such/dir", "--port=0")
	f(1, "Error: cannot listen on 0.0.0.0:"+port+" for the dynamo dialect: the port is in use", nil, "--port", port)
	f(2, "error: unknown flag --nosuch; dynamo-kv-indexer --help lists the flags", nil, "--nosuch")
	f(2, "error: unknown flag --prot; did you mean --port?", nil, "--prot", "1")
	f(2, "error: unknown flag --listen; dynamo-kv-indexer --help lists the flags", nil, "--listen", ":1")
	f(2, `error: dynamo-kv-indexer takes no arguments, and got "serve"`, nil, "serve")
	f(2, `error: --port: "99999" is not a whole number from 0 to 65535`, nil, "--port", "99999")
	f(2, `error: --block-size: "x" is not a whole number from 0 to 4294967295`, nil, "--block-size", "x")
}

// TestIndexerName tells when the program is called by Dynamo's name.
func TestIndexerName(t *testing.T) {
	t.Parallel()
	for arg0, want := range map[string]bool{
		"dynamo-kv-indexer": true, "/usr/bin/dynamo-kv-indexer": true, "./dynamo-kv-indexer.exe": true,
		"conductor": false, "dynamo-kv-indexer-old": false, "dynamo-kv-indexer/conductor": false, "": false,
	} {
		if calledAsIndexer(arg0) != want {
			t.Errorf("%q: want %t", arg0, want)
		}
	}
	out, err := asIndexer(t, "--help").Output()
	must.Succeed(t, err)
	var flags []string
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-., )?(--[a-z-]+)`).FindAllSubmatch(out, -1) {
		flags = append(flags, string(m[1]))
	}
	want := strings.Fields("--port --threads --block-size --model-name --tenant-id --routing-group --workers --peers --access-log " +
		"--trace-id-header --access-log-local-time --help --version")
	if !slices.Equal(flags, want) || !bytes.Contains(out, []byte("(default 8090)")) {
		t.Errorf("flags %v\n%s", flags, out)
	}
}

// TestIndexerVersion holds that --version prints the version alone, as the other programs do.
func TestIndexerVersion(t *testing.T) {
	t.Parallel()
	own, err := command("--version").Output()
	must.Succeed(t, err)
	if out, err := asIndexer(t, "--version").Output(); err != nil || !bytes.Equal(out, own) {
		t.Errorf("%q, want %q: %v", out, own, err)
	}
}

// TestIndexerServes starts the program under Dynamo's name with a worker that is
// not there, rotates its access log and stops it.
func TestIndexerServes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	access := filepath.Join(dir, "access.log")
	file := filepath.Join(dir, "config.yaml")
	must.Succeed(t, os.WriteFile(file,
		[]byte("listeners: [{address: 'nowhere:1'}]\nsources: [{endpoint: 'tcp://127.0.0.1:1', type: SGLang, modelname: m, instance_id: "+
			"a, block_size: 16}]\n"), 0o600))
	cmd := asIndexer(t, "--port", "0", "--block-size", "16", "--model-name", "m", "--workers", "1:3=tcp://127.0.0.1:1", "--threads=4",
		"--access-log", access, "--trace-id-header", "x-request-id", "--access-log-local-time")
	cmd.Env = append(cmd.Env, "CONDUCTOR_CONFIG_PATH="+file, "CONDUCTOR_LISTENERS=nowhere:2=dynamo", "TZ=UTC")
	stderr, err := cmd.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	var logged strings.Builder
	lines := bufio.NewReader(stderr)
	until := func(pattern string) []string {
		t.Helper()
		for re := regexp.MustCompile(pattern); ; {
			line, err := lines.ReadString('\n')
			logged.WriteString(line)
			if m := re.FindStringSubmatch(line); m != nil {
				return m
			}
			if err != nil {
				t.Fatalf("no %q in\n%s", pattern, &logged)
			}
		}
	}
	url := "http://127.0.0.1:" + until(`"address":"[^"]*:([0-9]+)","dialect":"dynamo"`)[1]
	ask := func(path, trace string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("GET", url+path, nil)
		must.Succeed(t, err)
		req.Header.Set("X-Request-Id", trace)
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if status, body := ask("/health", "-"); status != 200 {
		t.Errorf("health: %d %s", status, body)
	}
	_, body := ask("/conductor/v1/services", "first")
	for _, want := range []string{`"InstanceID":"1"`, `"InstanceID":"a"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
	if _, body := ask("/metrics", "-"); !strings.Contains(body, "\nconductor_access_log_dropped_total 0\n") {
		t.Error("the metrics do not count what the access log lost")
	}
	must.Succeed(t, os.Rename(access, access+".1"))
	must.Succeed(t, cmd.Process.Signal(syscall.SIGHUP))
	until("the access log was reopened")
	ask("/nosuch", "second")
	must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(lines)
	must.Succeed(t, err)
	logged.Write(rest)
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if n := strings.Count(logged.String(), `"message":"listening"`); n != 1 {
		t.Errorf("%d listeners:\n%s", n, &logged)
	}
	f := func(name, trace, path string) {
		t.Helper()
		data, err := os.ReadFile(name)
		must.Succeed(t, err)
		var seen []string
		for line := range bytes.Lines(data) {
			var one struct {
				TS, Path string
				TraceID  string `json:"trace_id"`
			}
			if err := json.Unmarshal(line, &one); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if one.TraceID == "-" {
				continue // /health
			}
			seen = append(seen, one.TraceID+" "+one.Path)
			if !strings.HasSuffix(one.TS, "+00:00") {
				t.Errorf("%s is no local time", one.TS)
			}
		}
		if !slices.Equal(seen, []string{trace + " " + path}) {
			t.Errorf("%s: %q", name, seen)
		}
	}
	f(access+".1", "first", "/conductor/v1/services")
	f(access, "second", "unknown")
}
