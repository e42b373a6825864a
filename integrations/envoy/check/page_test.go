package check

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"example.com/conductor/internal/doctest"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

const repository = "../../.."

// TestPage walks docs/envoy.md with the real Envoy, Conductor, the picker, and the engine of examples/envoy, and compares what the
// commands print with the page. `make envoy-check` names the programs.
func TestPage(t *testing.T) {
	programs := map[string]string{
		"bin/conductor": "CONDUCTOR_BINARY", "bin/conductor-picker": "PICKER_BINARY", "bin/envoy/bin/envoy": "ENVOY_BIN",
	}
	for _, name := range programs {
		if os.Getenv(name) == "" {
			must.Skip(t, name+" is not set")
		}
	}
	python := filepath.Join(filepath.Dir(os.Getenv("ENVOY_BIN")), "python")
	if out, err := exec.Command(python, "-c", "import zmq, msgpack").CombinedOutput(); err != nil {
		t.Skipf("ENVOY_BIN is not that of make envoy, so that there is no Python with pyzmq and msgpack beside it: %v: %s", err, out)
	}

	s := &doctest.Session{
		Dir: doctest.Checkout(t, repository), Ports: map[string]string{}, Runs: []string{doctest.Engine}, Timeout: 5 * time.Minute,
	}
	for _, port := range []string{"13333", "8080", "8001", "8002", "9002", "9003", "9901", "5557", "5567", "6557", "6567"} {
		address, err := freeport.Address()
		must.Succeed(t, err)
		_, s.Ports[port], err = net.SplitHostPort(address)
		must.Succeed(t, err)
	}
	must.Succeed(t, os.MkdirAll(filepath.Join(s.Dir, "bin/envoy/bin"), 0o755))
	for path, name := range programs {
		must.Succeed(t, os.Symlink(os.Getenv(name), filepath.Join(s.Dir, path)))
	}
	// A link to the program of a virtual environment would be a Python without the environment.
	must.Succeed(t, os.WriteFile(filepath.Join(s.Dir, "bin/envoy/bin/python"), []byte("#!/bin/sh\nexec '"+python+"' \"$@\"\n"), 0o755))
	// Envoy's file has the ports of the page.
	config, err := os.ReadFile("../deploy/envoy.yaml")
	must.Succeed(t, err)
	// Envoy must wait longer than the picker, see below.
	patience := regexp.MustCompile(`message_timeout: \d+s`)
	if n := len(patience.FindAll(config, -1)); n != 1 {
		t.Fatalf("deploy/envoy.yaml has %s %d times", patience, n)
	}
	config = patience.ReplaceAll(config, []byte("message_timeout: 60s"))
	must.Succeed(t, os.Remove(filepath.Join(s.Dir, "integrations")))
	deploy := filepath.Join(s.Dir, "integrations/envoy/deploy")
	must.Succeed(t, os.MkdirAll(deploy, 0o755))
	must.Succeed(t, os.WriteFile(filepath.Join(deploy, "envoy.yaml"), []byte(s.With(string(config))), 0o644))
	s.Env = append(os.Environ(), "CONDUCTOR_SERVER=http://127.0.0.1:"+s.Ports["13333"], "NO_COLOR=1",
		// The machine may be slow.
		"CONDUCTOR_PICKER_PATIENCE=10s", "CONDUCTOR_PICKER_TOKENIZER_TIMEOUT=10s", "CONDUCTOR_PICKER_LEAVE_FOR=1m")

	pages := doctest.Pages(t, repository)
	i := slices.IndexFunc(pages, func(p doctest.Page) bool { return p.Path == "docs/envoy.md" })
	if i < 0 {
		t.Fatal("there is no docs/envoy.md")
	}
	if ran := s.Run(t, pages[i]); ran < 10 {
		t.Errorf("only %d blocks ran", ran)
	}
}
