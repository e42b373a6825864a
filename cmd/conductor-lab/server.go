package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
)

// serverFlag is the program that a command starts as its server.
type serverFlag struct{ path string }

func (s *serverFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.path, "conductor", "",
		"`path` of the server's program; by default conductor in the directory of this program, else the one in $PATH")
}

// find looks for the program. What it returns makes commands of it.
func (s *serverFlag) find() (func(args ...string) *exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	path, err := findServer(s.path, filepath.Dir(self))
	if err != nil {
		return nil, err
	}
	return func(args ...string) *exec.Cmd { return exec.Command(path, args...) }, nil // #nosec G702 -- the server that was named
}

// findServer returns the path of the server's program: the named one, else the one in a directory, else the one in $PATH.
func findServer(named, beside string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("--conductor names no program: %w", err)
		}
		return path, nil
	}
	if path, err := exec.LookPath(filepath.Join(beside, "conductor")); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("conductor")
	if err != nil {
		return "", fmt.Errorf("no server to start: the program conductor is neither in %s, where this program is, nor in $PATH; "+
			"\"make build\" builds both, --conductor names another one", beside)
	}
	return path, nil
}
