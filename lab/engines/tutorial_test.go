package engines_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"example.com/conductor/internal/doctest"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// TestTutorial walks docs/tutorial.md with whole vLLM, and compares what its commands print with the page.
func TestTutorial(t *testing.T) {
	if os.Getenv("ENGINES_VLLM") == "" {
		t.Skip("ENGINES_VLLM is not set to the program of an installed vLLM, see docs/tutorial.md")
	}
	s := &doctest.Session{
		Dir: doctest.Checkout(t, "../.."), Ports: map[string]string{}, Runs: []string{doctest.Engine}, Timeout: 25 * time.Minute,
	}
	must.Succeed(t, os.Symlink(os.Getenv("ENGINES_CONDUCTOR"), filepath.Join(s.Dir, "bin", "conductor")))
	for _, port := range []string{"13333", "8080", "8001", "8002", "5557", "5567", "6557", "6567"} {
		address, err := freeport.Address()
		must.Succeed(t, err)
		_, s.Ports[port], err = net.SplitHostPort(address)
		must.Succeed(t, err)
	}
	s.Env = append(os.Environ(), "VLLM="+os.Getenv("ENGINES_VLLM"), "STATE="+s.Scratch(), "CONDUCTOR_SERVER=http://127.0.0.1:"+
		s.Ports["13333"],
		"NO_COLOR=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CACHE_ROOT="+s.Scratch()+"/cache")
	t.Cleanup(func() { // engines are in sessions of their own
		stop := exec.Command(filepath.Join(s.Dir, "examples", "vllm", "stop.sh"))
		stop.Env = s.Env
		if output, err := stop.CombinedOutput(); err != nil {
			t.Errorf("stop.sh: %v: %s", err, output)
		}
	})
	for _, page := range doctest.Pages(t, "../..") {
		if page.Path == "docs/tutorial.md" {
			if ran := s.Run(t, page); ran < 15 {
				t.Errorf("only %d blocks ran", ran)
			}
			return
		}
	}
	t.Error("there is no tutorial")
}
