package main

import (
	"bufio"
	"io"
	"os"
	"syscall"
	"testing"

	"example.com/conductor/internal/must"
)

// TestInterruptedBenchQuery holds that the serving process ends with the one that asks,
// also while it is far from done loading the index.
func TestInterruptedBenchQuery(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	must.Succeed(t, err)
	defer r.Close()
	cmd := command(t, "bench", "query", "--tokens", "300", "--workers", "4", "--holders", "4", "--blocks", "1000000000")
	cmd.Stderr = w // of both processes
	err = cmd.Start()
	w.Close()
	must.Succeed(t, err)
	lines := bufio.NewReader(r)
	if _, err := lines.ReadString('\n'); err != nil { // it loads
		t.Fatal(err)
	}
	must.Succeed(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil {
		t.Error("the interrupt went unnoticed")
	}
	rest, err := io.ReadAll(lines) // ends when no process is left that could write
	must.Succeed(t, err)
	t.Logf("%s", rest)
}
