package main

import (
	"bufio"
	"io"
	"os"
	"strings"
	"testing"

	"example.com/conductor/config"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// TestCommandsWaitForTheServer starts commands before the server that they ask, as lines pasted in one go do.
func TestCommandsWaitForTheServer(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	must.Succeed(t, err)
	waiting := make(map[string]io.Reader)
	for _, line := range []string{"services", "doctor", "top", "dump", "query --model m --block-size 16 --tokens 1",
		"register tcp://127.0.0.1:1 --instance a --model m --type vLLM --block-size 16"} {
		cmd := command(strings.Fields(line)...)
		cmd.Env = append(cmd.Env, config.EnvServer+"="+address, config.EnvWait+"=10m")
		errs, err := cmd.StderrPipe()
		must.Succeed(t, err)
		must.Succeed(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		want := "conductor: no server listens at " + address + " yet; waiting for it up to 10m0s\n"
		rest := bufio.NewReader(errs)
		if said, err := rest.ReadString('\n'); err != nil || said != want {
			t.Fatalf("%s: %q, %v, want %q", line, said, err, want)
		}
		waiting[line] = rest
	}
	out, err := command("health", "--server", address).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no server listens") {
		t.Errorf("health: %v %s", err, out)
	}
	startProcess(t, "serve", "--listen", address)
	for line, errs := range waiting {
		if said, err := io.ReadAll(errs); err != nil || strings.Contains(string(said), "no server") {
			t.Errorf("%s: %v %s", line, err, said)
		}
	}
}

// TestInterruptedWait ends a command that waits.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	cmd := command("services", "--server", "127.0.0.1:1")
	cmd.Env = append(cmd.Env, config.EnvWait+"=10m")
	errs, err := cmd.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	said := bufio.NewReader(errs)
	_, err = said.ReadString('\n')
	must.Succeed(t, err)
	must.Succeed(t, cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(said)
	must.Succeed(t, err)
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 || string(rest) != "conductor: interrupted\n" {
		t.Errorf("%v %q", err, rest)
	}
}

// TestImpatience refuses a duration that cannot be read.
func TestImpatience(t *testing.T) {
	t.Setenv(config.EnvWait, "soon")
	if status, _, errs := runCLI("services"); status != 2 || !strings.Contains(errs, `CONDUCTOR_WAIT: "soon" is not a duration`) {
		t.Errorf("%d %s", status, errs)
	}
}
