package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// Command starts a server as a process.
type Command struct {
	Line []string // with arguments every start has
	Env  []string // added to that of this process
}

// Build builds our command, under a name that decides what flags it takes.
func Build(t *testing.T, name string) Command {
	bin := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin, "example.com/conductor/cmd/conductor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // what make check has built, also where the race detector is on
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the command: %v\n%s", err, out)
	}
	return Command{Line: []string{bin}}
}

func (c Command) process(ctx context.Context, args, env []string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, c.Line[0], slices.Concat(c.Line[1:], args)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"CONDUCTOR_SHUTDOWN_DRAIN=0s", "CONDUCTOR_REGISTER_ALLOW=default,tcp://127.0.0.0/8"},
		c.Env, env)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, out
}

// Start runs a server on a free port until the test ends, and waits until it answers at
// a path. with returns arguments and environment for a port.
func (c Command) Start(t *testing.T, healthy string, with func(port int) (args, env []string)) (base string) {
	t.Helper()
	address, err := freeport.Address()
	must.Succeed(t, err)
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	must.Succeed(t, err)
	base = "http://" + address
	args, env := with(port)
	ctx, stop := context.WithCancel(context.Background())
	cmd, out := c.process(ctx, args, env)
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
	if !scripttest.Until(func() bool {
		select {
		case <-ended:
			over = true
			return true
		default:
		}
		resp, err := http.Get(base + healthy)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	}) {
		t.Fatalf("no answer from %s", base+healthy)
	}
	if over {
		t.Fatalf("the server ended: %s", out)
	}
	return base
}

// Exits runs the command until it ends and compares code ("rc 1", or "runs on") and
// output.
func (c Command) Exits(t *testing.T, args, env, want []string) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), scripttest.Patience)
	defer stop()
	cmd, out := c.process(ctx, args, env)
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
	return got, CompareBody(append([]string{"anything"}, want[1:]...), out.String())
}
