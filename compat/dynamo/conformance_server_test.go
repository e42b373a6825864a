package dynamo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor"
	"kvconductor/compat/dynamo"
	"kvconductor/conductor"
	conductorhttp "kvconductor/conductor/http"
	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
	"kvconductor/events/zmq"
)

// target is the server under test.
type target struct {
	kind    string   // "ours" or "dynamo"
	shared  string   // base URL of a running one
	command []string // starts one with flags, empty if there is none
}

// underTest finds out which server the environment names.
func underTest(t *testing.T) *target {
	u := &target{shared: strings.TrimRight(os.Getenv("DYNAMO_CONFORMANCE_URL"), "/"), command: strings.Fields(os.Getenv("DYNAMO_CONFORMANCE_COMMAND"))}
	if u.shared == "" && len(u.command) == 0 {
		u.kind, u.shared = "ours", startServer(t)
		u.command = []string{ourBinary(t)}
		return u
	}
	resp, err := http.Get(u.url(t) + "/conductor/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	u.kind = "dynamo"
	if resp.StatusCode == http.StatusOK {
		u.kind = "ours"
	}
	return u
}

// url returns the address of a server without flags of its own.
func (u *target) url(t *testing.T) string {
	if u.shared == "" {
		return u.start(t, nil, nil)
	}
	return u.shared
}

// startServer starts our server in this process, on a port of its own.
func startServer(t *testing.T) string {
	c := conductor.New(conductor.Options{
		HashSeed: 1337, KeepLocals: true, Log: zerolog.Nop(),
		Stream: stream.Config{
			Transport:     &zmq.Sockets{Rank: wire.Rank, Transport: zmq.Transport{}},
			Decode:        func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) },
			ReplayTimeout: 5 * time.Second,
			StaleAfter:    30 * time.Second,
			Queue:         1024,
			Replays:       stream.NewLimiter(8),
		},
	})
	t.Cleanup(c.Close)
	d := dynamo.New(dynamo.Config{Conductor: c, MaxTokens: 1 << 21, TestEndpoints: true, Log: zerolog.Nop()})
	registry := prometheus.NewRegistry()
	registry.MustRegister(conductor.Collector{Conductor: c}, d)
	opts := conductorhttp.Options{
		MaxBody: 16 << 20, MaxTokens: 1 << 21, Version: "test", OpenAPI: kvconductor.OpenAPI, Gatherer: registry, Log: zerolog.Nop(),
	}
	r := conductorhttp.New(c, opts)
	d.MountRoot(r)
	conductorhttp.Mount(r.Group("/conductor/v1"), c, opts)
	d.Mount(r.Group("/dynamo/v1"))
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

// ourBinary builds the command, under the name that takes Dynamo's flags alone.
func ourBinary(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "dynamo-kv-indexer")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "kvconductor/cmd/conductor").CombinedOutput(); err != nil {
		t.Fatalf("cannot build the command: %v\n%s", err, out)
	}
	return bin
}

// process prepares the command with flags and an environment.
func (u *target) process(ctx context.Context, flags, env []string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, u.command[0], slices.Concat(u.command[1:], flags)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"DYN_KV_INDEXER_TEST_ENDPOINTS=1"}, env)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, out
}

// start runs a server on a free port until the test ends. Another process may
// take the port between the search for it and its use; then another is tried.
func (u *target) start(t *testing.T, flags, env []string) string {
	t.Helper()
	for range 10 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		base := fmt.Sprintf("http://127.0.0.1:%d", port)
		out, up := u.startOn(t, base, append([]string{"--port", fmt.Sprint(port)}, flags...), env)
		if up {
			return base
		}
		if !strings.Contains(out, "in use") {
			t.Fatalf("the server ended: %s", out)
		}
	}
	t.Fatal("no free port")
	return ""
}

// startOn runs a server and waits until it is healthy, or has ended.
func (u *target) startOn(t *testing.T, base string, flags, env []string) (output string, up bool) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cmd, out := u.process(ctx, flags, env)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	over := false
	if !until(func() bool {
		select {
		case <-ended:
			over = true
			return true
		default:
		}
		resp, err := http.Get(base + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	}) {
		t.Fatalf("no answer from %s", base)
	}
	if over {
		return out.String(), false
	}
	return "", true
}

// exits runs the command until it ends and compares code and output.
func (u *target) exits(t *testing.T, flags, env, want []string) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	cmd, out := u.process(ctx, flags, env)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code := fmt.Sprintf("rc %d", cmd.ProcessState.ExitCode())
	if ctx.Err() != nil {
		code = "runs on"
	}
	got := code + "\n" + out.String()
	if len(want) == 0 || want[0] != code {
		return got, fmt.Errorf("%s", code)
	}
	return got, compareBody(append([]string{"anything"}, want[1:]...), out.String())
}

// fakePeer serves a document as its dump, after something else has happened.
type fakePeer struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newFakePeer(t *testing.T, status int, document string, before func()) *fakePeer {
	p := &fakePeer{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.paths = append(p.paths, r.Method+" "+r.URL.Path)
		p.mu.Unlock()
		if r.URL.Path != "/dump" {
			http.NotFound(w, r)
			return
		}
		before()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, document)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *fakePeer) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.paths, "\n")
}
