package main

import (
	"bufio"
	"io"
	"os"
	"syscall"
	"testing"
)

// TestInterruptedBenchQuery holds that the serving process ends with the one that asks,
// also while it is far from done loading the index.
func TestInterruptedBenchQuery(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command("bench", "query", "--tokens", "300", "--workers", "4", "--holders", "4", "--blocks", "1000000000")
	cmd.Stderr = w // of both processes
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r)
	if _, err := lines.ReadString('\n'); err != nil { // it loads
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the interrupt went unnoticed")
	}
	rest, err := io.ReadAll(lines) // ends when no process is left that could write
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", rest)
}
