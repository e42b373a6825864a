package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/cmd/internal/clitest"
	"example.com/conductor/internal/doctest"
	"example.com/conductor/lab/demo"
)

// programs is the directory of the server that tests start.
var programs string

// TestMain lets the test binary be the program itself, so that commands run as
// processes of their own. The workers that fuzzing starts are tests.
func TestMain(m *testing.M) {
	if os.Getenv("RUN_AS_LAB") == "1" && !slices.Contains(os.Args, "-test.fuzzworker") {
		main()
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "conductor-lab-test")
	if err != nil {
		panic(err)
	}
	programs = dir
	// Commands that tests run in this process find the server, and start this program as themselves.
	os.Setenv("RUN_AS_LAB", "1")
	os.Setenv("CONDUCTOR_WAIT", "0s")
	os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// build builds the server once.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", programs,
		"example.com/conductor/cmd/conductor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the server is released, so that make build has compiled it already
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot build the server: %w: %s", err, out)
	}
	return nil
})

// conductorPath returns the server's program.
func conductorPath(t *testing.T) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(programs, "conductor")
}

// server returns what makes commands of the server's program, without the user's settings.
func server(t *testing.T) demo.Program {
	path := conductorPath(t)
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.Env = []string{"CONDUCTOR_SHUTDOWN_DRAIN=0s", "HOME=" + os.TempDir() + "/nobody", "PATH=" + os.Getenv("PATH")}
		return cmd
	}
}

// command is this program in another process, without the user's settings. It finds the server in $PATH.
// The race detector would let each process sleep a second when it exits.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	conductorPath(t)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{"RUN_AS_LAB=1", "GORACE=atexit_sleep_ms=10", "CONDUCTOR_WAIT=0s", "HOME=" + os.TempDir() + "/nobody",
		"PATH=" + os.Getenv("PATH")}
	return cmd
}

// decode reads JSON.
func decode(t *testing.T, text string, out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatal(err, text)
	}
}

func TestCommandsAreAlike(t *testing.T) {
	if n := len(clitest.Commands(rootCommand())); n < 8 {
		t.Fatalf("only %d commands", n)
	}
	clitest.Alike(t, rootCommand, map[string]string{"conductor-lab bench peers": "it prints rows of a document; bench index --json is " +
		"what it runs"})
	if status, out, errs := clitest.Run(rootCommand(), "completion", "bash"); status != cli.ExitFine ||
		!strings.Contains(out, "__start_conductor-lab") {
		t.Errorf("completion: %d %s", status, errs)
	}
}

// TestExitStatus holds that a mistake in a command line ends with 2, and anything else that fails with 1.
func TestExitStatus(t *testing.T) {
	conductorPath(t) // benches look for it first
	f := func(want int, line string) {
		t.Helper()
		if status, out, errs := clitest.Run(rootCommand(), strings.Fields(line)...); status != want || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d, want %d: %s%s", line, status, want, out, errs)
		}
	}
	for _, flag := range []string{"--families=foo", "--workload=foo", "--block-size=0", "--instances=0", "--ranks=-1", "--pool --faults",
		"--qps=-1", "--clients=0", "--server=:x"} {
		f(cli.ExitUsage, "simulate "+flag)
	}
	f(cli.ExitError, "simulate --trace no-such-file --server 127.0.0.1:1")
	for _, line := range []string{"demo --restarts=-1", "demo --duration=soon", "demo --requests=1", "demo --store=x", "demo --shards=1",
		"demo --shards=3 --owners=0", "bench query --codec=foo", "bench query --load=7", "bench index --events=foo",
		"bench index --workers=0 --export=x", "bench memory --holders=0", "bench recovery --interval=-1s", "bench peers --rows=foo",
		"bench peers --rows=(", "bench ingest --sources=0"} {
		f(cli.ExitUsage, line)
	}
	f(cli.ExitError, "bench ingest --stream no-such-file")
}

// TestDocumentedCommands parses the command lines of the documents.
func TestDocumentedCommands(t *testing.T) {
	lines := 0
	for _, page := range doctest.Pages(t, "../..") {
		for _, block := range page.Blocks {
			if block.Language != "sh" {
				continue
			}
			for _, call := range doctest.Calls(t, page.Name, block.Text) {
				if filepath.Base(call[0]) != "conductor-lab" {
					continue
				}
				lines++
				if err := clitest.Understands(rootCommand(), call[1:]); err != nil {
					t.Errorf("%s: %s: %v", page.Name, strings.Join(call, " "), err)
				}
			}
		}
	}
	if lines < 2 {
		t.Errorf("only %d command lines were found", lines)
	}
}

// TestFindServer looks for the program of the server where it is named, next to this program, in $PATH and nowhere.
func TestFindServer(t *testing.T) {
	dir, beside, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for _, d := range []string{dir, beside} {
		if err := os.WriteFile(filepath.Join(d, "conductor"), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f := func(named, beside, path, want, wrong string) {
		t.Helper()
		t.Setenv("PATH", path)
		got, err := findServer(named, beside)
		if got != want || (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q, %q, %q: %q, %v", named, beside, path, got, err)
		}
	}
	f(dir+"/conductor", beside, empty, dir+"/conductor", "")
	f("", beside, dir, beside+"/conductor", "")
	f("", empty, dir, dir+"/conductor", "")
	f(empty+"/conductor", beside, dir, "", "--conductor names no program")
	f("", empty, empty, "", "make build")
}
