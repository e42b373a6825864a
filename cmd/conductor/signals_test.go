package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/config"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// newPipe makes a pipe with a name, whose reader hangs until somebody writes to it.
func newPipe(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pipe")
	must.Succeed(t, syscall.Mkfifo(path, 0o600))
	return path
}

// TestStartHangs ends a server that hangs on a file while it starts.
func TestStartHangs(t *testing.T) {
	t.Parallel()
	pipe := newPipe(t)
	loaded, err := config.Load(config.Options{Env: []string{}})
	must.Succeed(t, err)
	loaded.Config.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: config.Conductor}}
	loaded.Config.Snapshot.Dir, loaded.Config.Snapshot.KeyFile = t.TempDir(), pipe
	var log strings.Builder
	ctx, stop := context.WithCancel(t.Context())
	life := newLifecycle(ctx, zerolog.New(&log))
	life.over = func(p part) <-chan time.Time {
		if p.name != "the start" {
			return nil
		}
		now := make(chan time.Time)
		close(now)
		return now
	}
	stop()
	must.Succeed(t, serveDuring(life, loaded, nil, nil))
	if !strings.Contains(log.String(), "the start did not stop in time") {
		t.Errorf("the log has %s", log.String())
	}
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // lets the start go on
	must.Succeed(t, err)
	must.Succeed(t, writer.Close())
}

// TestHangupWhileStarting sends SIGHUP to a server that waits for an engine before it listens, and to one that drains.
func TestHangupWhileStarting(t *testing.T) {
	t.Parallel()
	engine, asked, let := slowPeer(t)
	cmd := serveCommandLine(t, "sources: [{discover: '"+engine+"', instance_id: slow}]\n")
	cmd.Env = append(cmd.Env, "CONDUCTOR_SHUTDOWN_DRAIN=1h")
	p := startBy(t, cmd, func() {
		must.Succeed(t, cmd.Start())
		<-asked
		must.Succeed(t, cmd.Process.Signal(syscall.SIGHUP))
		let()
	})
	said := func(what string) {
		t.Helper()
		eventually(t, "it does not say "+what, func() (string, bool) { return p.log(), strings.Contains(p.log(), what) })
	}
	said("reload: ")
	must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	said("draining")
	must.Succeed(t, cmd.Process.Signal(syscall.SIGHUP))
	must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, p.log())
	}
}

// TestLogIsNotRead has a log that nobody reads, and one whose reader is gone. Clients notice nothing, and the server ends as ever.
func TestLogIsNotRead(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		address, err := freeport.Address()
		must.Succeed(t, err)
		cmd := command("serve", "--listen", address+"=conductor")
		reader, writer, err := os.Pipe()
		must.Succeed(t, err)
		defer reader.Close()
		cmd.Stderr = writer
		must.Succeed(t, cmd.Start())
		defer cmd.Process.Kill()
		must.Succeed(t, writer.Close())
		url := "http://" + address
		eventually(t, "it does not answer", func() (string, bool) {
			resp, err := http.Get(url + "/health")
			if err != nil {
				return err.Error(), false
			}
			return resp.Status, resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
		})
		if gone {
			must.Succeed(t, reader.Close())
		}
		for range 400 { // a pipe has room for 64 KiB
			post(t, url+"/unregister", `{"instance_id":"`+strings.Repeat("i", 200)+`","dp_rank":0}`, http.StatusNotFound)
		}
		must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("reader gone: %v: %v", gone, err)
		}
	}
}

// TestLogQueue has a writer that hangs.
func TestLogQueue(t *testing.T) {
	reader, writer := io.Pipe()
	q := startLogQueue(writer, 2)
	told := make(chan int64, 1)
	q.tellLost = func(n int64) { told <- n }
	for range 10 { // one is being written, two wait
		_, err := q.Write([]byte("line\n"))
		must.Succeed(t, err)
	}
	_, err := io.ReadFull(reader, make([]byte, 5))
	must.Succeed(t, err)
	lost := <-told
	go func() {
		q.close()
		writer.Close()
	}()
	rest, err := io.ReadAll(reader)
	must.Succeed(t, err)
	if written := 1 + strings.Count(string(rest), "line\n"); lost < 7 || written+int(lost) != 10 {
		t.Errorf("of 10 lines %d are written and %d lost", written, lost)
	}
}
