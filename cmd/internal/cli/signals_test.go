package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/internal/must"
)

// TestThirdSignal sends signals to a command that hangs, in another process.
func TestThirdSignal(t *testing.T) {
	const hangs = "THIS_COMMAND_HANGS"
	if os.Getenv(hangs) != "" {
		cmd := new(cobra.Command)
		cmd.SetContext(context.Background())
		UntilSignal(cmd)
		fmt.Println("ready")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestThirdSignal$")
	cmd.Env = append(os.Environ(), hangs+"=1")
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	must.Succeed(t, err)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for again := time.Tick(20 * time.Millisecond); ; {
		select {
		case <-ended:
			if code := cmd.ProcessState.ExitCode(); code != ExitError {
				t.Errorf("ended with %v", cmd.ProcessState)
			}
			return
		case <-again:
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}
