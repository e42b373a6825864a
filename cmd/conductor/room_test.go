package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// TestRoom holds what open files and memory are enough for.
func TestRoom(t *testing.T) {
	t.Parallel()
	f := func(files int, bytes int64, sources, connections, asked int, reason string) {
		t.Helper()
		got := roomFor(config.Default().Limits, files, bytes)
		if got.sources != sources || got.connections != connections || got.asked != asked || got.by.Reason != reason {
			t.Errorf("%d open files and %d MiB: %d sources, %d connections, %d asked, %q, want %d, %d, %d, %q", files, bytes>>20,
				got.sources, got.connections, got.asked, got.by.Reason, sources, connections, asked, reason)
		}
		if got.sources+got.connections+min(ownFiles, files/3) > files {
			t.Errorf("%d open files: %d sources and %d connections are too many", files, got.sources, got.connections)
		}
	}
	f(1<<20, 0, 10_000, fixed.Connections, 16, "")
	f(1<<20, 4<<30, 10_000, fixed.Connections, 16, "")
	f(64, 4<<30, 21, 22, 3, reasonFiles)
	f(1024, 4<<30, 464, 464, 16, reasonFiles)
	f(1<<20, 256<<20, 2234, fixed.Connections, 16, reasonMemory)
	f(1024, 16<<20, 139, 789, 16, reasonMemory)
	f(1024, 128<<20, 464, 464, 16, reasonFiles)
	f(24_000, 4<<30, 10_000, 13_904, 16, "")
}

// limitFiles lets a command have so many open files at most.
func limitFiles(cmd *exec.Cmd, files int) {
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)}, cmd.Args...)
	cmd.Path = "/bin/sh"
}

// mutePublisher is a publisher that takes connections and never says anything.
func mutePublisher(t *testing.T) net.Listener {
	t.Helper()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { mute.Close() })
	go func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	return mute
}

// TestFewOpenFiles registers more sources at a server than its open files are enough for, none of whose engines ever says
// anything. Those beyond are refused, and every new connection of a client is answered.
func TestFewOpenFiles(t *testing.T) {
	t.Parallel()
	mute := mutePublisher(t)
	sources := ""
	for i := range 30 {
		sources += fmt.Sprintf("- {instance_id: s%d, endpoint: 'tcp://%s', type: vLLM, modelname: m, block_size: 16, dp_rank: 0}\n", i,
			mute.Addr())
	}
	cmd := serveCommandLine(t, "sources:\n"+sources)
	limitFiles(cmd, 64)
	p := startCommand(t, cmd)
	for _, want := range []string{"fewer sources than limits.max_sources: the limit of 64 open files is enough for 21 sources",
		"sources[29] is left out", `"sources":21,"connections":22`} {
		if !strings.Contains(p.said, want) {
			t.Errorf("the log has no %q:\n%s", want, p.said)
		}
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 40 {
		body := fmt.Sprintf(`{"endpoint":"tcp://%s","replay_endpoint":"tcp://%[1]s","type":"vLLM","modelname":"m","instance_id":"i%d",`+
			`"block_size":16,"dp_rank":0}`, mute.Addr(), i)
		resp, err := fresh.Post(p.url+"/register", "application/json", strings.NewReader(body))
		must.Succeed(t, err)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "limit of 64 open files") {
			t.Fatalf("registration %d: %d %s", i, resp.StatusCode, text)
		}
	}
	_, text := get(p.url + "/metrics")
	for _, want := range []string{`conductor_sources_refused_total{reason="open_files"} 49`, "conductor_sources_limit 21"} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	for range 100 {
		resp, err := fresh.Get(p.url + "/health")
		must.Succeed(t, err)
		resp.Body.Close()
	}
}

// TestFewOpenFilesForLearning lets a server whose open files are enough for 21 sources ask 21 engines that tell no block size, and
// publish nothing, beside one source. It listens to 20 of them, says why not to the last one, and takes no source beyond them.
func TestFewOpenFilesForLearning(t *testing.T) {
	t.Parallel()
	mute := mutePublisher(t)
	_, port, _ := net.SplitHostPort(mute.Addr().String())
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case "/kv_event_sources":
			fmt.Fprintf(w, `{"0":{"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":null,"topic":""}}`, port)
		default:
			http.NotFound(w, r)
		}
	}))
	defer engine.Close()
	cmd := serveCommandLine(t, fmt.Sprintf(
		"sources: [{instance_id: s, endpoint: 'tcp://%s', type: vLLM, modelname: m, block_size: 16}]\n", mute.Addr()))
	limitFiles(cmd, 64)
	p := startCommand(t, cmd)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	register := func(body string) (status int, text string) {
		t.Helper()
		resp, err := fresh.Post(p.url+"/register", "application/json", strings.NewReader(body))
		must.Succeed(t, err)
		defer resp.Body.Close()
		all, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(all)
	}
	const engines, sources = 21, 21
	for i := range engines {
		if status, text := register(fmt.Sprintf(`{"discover":%q,"instance_id":"e%d"}`, engine.URL, i)); status != http.StatusOK {
			t.Fatalf("engine %d: %d %s", i, status, text)
		}
	}
	eventually(t, "the engines are not listened to", func() (string, bool) {
		_, text := get(p.url + "/metrics")
		return text, strings.Contains(text, fmt.Sprintf(`conductor_discovery_targets{state="learning"} %d`, engines-1)) &&
			strings.Contains(text, `conductor_discovery_targets{state="waiting"} 1`)
	})
	if _, text := get(p.url + "/services"); !strings.Contains(text, "its block size cannot be learned from its events: "+
		"too many registered sources: the limit of 64 open files is enough for 21 sources") {
		t.Errorf("the engine without a place does not say so: %s", text)
	}
	for i := range sources {
		status, text := register(fmt.Sprintf(`{"endpoint":"tcp://%s","type":"vLLM","modelname":"m","instance_id":"i%d",`+
			`"block_size":16,"dp_rank":0}`, mute.Addr(), i))
		if status != http.StatusServiceUnavailable || !strings.Contains(text, "limit of 64 open files") {
			t.Fatalf("source %d: %d %s", i, status, text)
		}
	}
}

// TestFewOpenFilesForAsking lets a server follow as many mute publishers as its open files are enough for, and ask as many engines
// whose HTTP server never answers. The files for clients stay free.
func TestFewOpenFilesForAsking(t *testing.T) {
	t.Parallel()
	mute := mutePublisher(t)
	sources := "sources:\n"
	for i := range 21 {
		sources += fmt.Sprintf("- {instance_id: s%d, endpoint: 'tcp://%s', type: vLLM, modelname: m, block_size: 16}\n", i, mute.Addr())
	}
	cmd := serveCommandLine(t, sources)
	limitFiles(cmd, 64)
	p := startCommand(t, cmd)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 21 {
		resp, err := fresh.Post(p.url+"/register", "application/json",
			strings.NewReader(fmt.Sprintf(`{"discover":"http://%s","instance_id":"e%d"}`, mute.Addr(), i)))
		must.Succeed(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("engine %d: %d", i, resp.StatusCode)
		}
	}
	_, text := get(p.url + "/metrics")
	_, number, _ := strings.Cut(text, "\nprocess_open_fds ")
	number, _, _ = strings.Cut(number, "\n")
	if open, err := strconv.Atoi(number); err != nil || open > 64-22 {
		t.Errorf("%q files are open, 22 of them for clients: %v", number, err)
	}
}
