package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// slowPeer is a server that a starting one asks for blocks. It answers once let is called.
func slowPeer(t *testing.T) (url string, asked <-chan struct{}, let func()) {
	t.Helper()
	first, released := make(chan struct{}), make(chan struct{})
	tell := sync.OnceFunc(func() { close(first) })
	let = sync.OnceFunc(func() { close(released) })
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tell()
		<-released
		http.NotFound(w, r)
	}))
	t.Cleanup(func() { let(); peer.Close() })
	return peer.URL, first, let
}

// TestLatePortTaken lets another program take the port of a late listener while the server recovers, with everything else at
// work that a server may have. The server says which port it is, once, and ends.
func TestLatePortTaken(t *testing.T) {
	t.Parallel()
	f := func(more string) {
		t.Helper()
		peer, asked, let := slowPeer(t)
		engine, err := freeport.Address()
		must.Succeed(t, err)
		late, err := freeport.Address()
		must.Succeed(t, err)
		dir := t.TempDir()
		must.Succeed(t, os.Mkdir(filepath.Join(dir, "sources"), 0o700))
		settings := "listeners: [{address: '127.0.0.1:0', dialect: conductor}, {address: '127.0.0.1:0', dialect: grpc}, " +
			"{address: '" + late + "', dialect: dynamo}]\n" +
			"dynamo: {peers: ['" + peer + "'], access_log: " + dir + "/access.log}\n" +
			"snapshot: {dir: " + dir + "/snapshots}\njournal: {dir: " + dir + "/journal}\n" +
			"discovery: {sources_dir: " + dir + "/sources}\nreload: {watch: true}\n" +
			"sources:\n- {discover: 'http://" + engine + "', instance_id: absent}\n" +
			"- {instance_id: i, endpoint: 'tcp://" + engine + "', type: vLLM, modelname: m, block_size: 16, dp_rank: 0}\n" + more
		file := filepath.Join(dir, "config.yaml")
		must.Succeed(t, os.WriteFile(file, []byte(settings), 0o600))
		p := startProcess(t, "serve", "--config", file)
		<-asked
		taken, err := net.Listen("tcp", late)
		must.Succeed(t, err)
		defer taken.Close()
		let()
		requireFailure(t, p, "cannot listen on "+late+" for the dynamo dialect: the port is in use")
	}
	f("")
	f("# fixed: {compareevery: 1ms}\nstore: {url: '" + redistest.Start(t).URL() + "'}\n")
}

// requireFailure requires that a process ends with an error, which it says once.
func requireFailure(t *testing.T, p *process, why string) {
	t.Helper()
	err := p.cmd.Wait()
	exit, _ := err.(*exec.ExitError)
	if log := p.log(); exit == nil || exit.ExitCode() != cli.ExitError || strings.Count(log, why) != 1 {
		t.Errorf("ended with %v, want status %d and once %q:\n%s", err, cli.ExitError, why, log)
	}
}

// hangingLog is a log that hangs at a line, like a full pipe.
type hangingLog struct {
	at            string
	reached, free chan struct{}

	mu    sync.Mutex
	lines bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *hangingLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(l.at)) {
		close(l.reached)
		<-l.free
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(line)
}

func (l *hangingLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

// TestRecoveryHangs ends a server whose recovery hangs. The server says that the recovery did not stop.
func TestRecoveryHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("snapshot: {dir: "+dir+"/snapshots}\n"), 0o600))
	loaded, err := config.Load(config.Options{File: file, Env: []string{}})
	must.Succeed(t, err)
	loaded.Config.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: config.Conductor}}
	loaded.Config.Shutdown.Drain = 0
	log := &hangingLog{at: "no snapshot, starting with", reached: make(chan struct{}), free: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	life := newLifecycle(ctx, zerolog.New(log))
	recoveryEnded := make(chan struct{})
	life.over = func(p part) <-chan time.Time {
		if p.name != "the recovery" {
			return nil // any other part may take as long as it needs
		}
		go func() { p.end(); close(recoveryEnded) }()
		now := make(chan time.Time)
		close(now)
		return now
	}
	ended := make(chan error, 1)
	go func() { ended <- serveDuring(life, loaded, nil, nil) }()
	<-log.reached
	stop()
	must.Succeed(t, <-ended)
	if text := log.String(); !strings.Contains(text, "the recovery did not stop in time") {
		t.Errorf("the log has %s", text)
	}
	close(log.free)
	<-recoveryEnded
}

// TestLateFaults spoils all that a running server reads, writes and asks: its folders, its files, its store and its engine.
// It tells of each, goes on answering, and ends as well as ever.
func TestLateFaults(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	engine := httptest.NewServer(http.NotFoundHandler())
	defer engine.Close()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must.Succeed(t, os.Mkdir(in("sources"), 0o700))
	must.Succeed(t, os.WriteFile(in("auth.yaml"), []byte("tokens: []\n"), 0o600))
	cert, key := newAuthority(t, "ours").issue("localhost", 2, time.Now().Add(time.Hour))
	settings := "auth: {file: " + in("auth.yaml") + "}\ntls: {cert: " + cert + ", key: " + key + "}\n" +
		"snapshot: {dir: " + in("snapshots") + ", interval: 100ms}\njournal: {dir: " + in("journal") + "}\n" +
		"discovery: {sources_dir: " + in("sources") + "}\nreload: {watch: true}\nstore: {url: '" + store.URL() + "'}\n" +
		"sources: [{discover: '" + engine.URL + "', instance_id: absent}]\n"
	file := in("config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(settings), 0o600))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")

	store.Kill()
	engine.Close()
	for _, folder := range []string{"snapshots", "journal", "sources"} {
		must.Succeed(t, os.RemoveAll(in(folder)))
		must.Succeed(t, os.WriteFile(in(folder), nil, 0o600)) // which is no folder
	}
	for _, text := range []string{in("auth.yaml"), cert, file} {
		must.Succeed(t, os.WriteFile(text, []byte("{ no such thing"), 0o600))
	}
	for _, want := range []string{
		"no snapshot could be written", in("sources"), "the credentials are not replaced", "the certificate is not replaced",
		"reload: invalid", "the store cannot be used",
	} {
		eventually(t, "the log has no "+want, func() (string, bool) {
			log := p.logs.String()
			return log, strings.Contains(log, want)
		})
	}
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil || !strings.Contains(p.log(), `"stopped"`) {
		t.Errorf("ended with %v:\n%s", err, p.log())
	}
}
