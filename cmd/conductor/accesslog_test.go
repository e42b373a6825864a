package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"example.com/conductor/internal/must"
)

func contentsOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must.Succeed(t, err)
	return string(text)
}

// TestOpenAccessLog refuses what another user may have put in the file's place.
func TestOpenAccessLog(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.Succeed(t, os.WriteFile(at("target"), []byte("kept"), 0o600))
	must.Succeed(t, os.Symlink(at("target"), at("link")))
	must.Succeed(t, os.Symlink(at("nowhere"), at("dangling")))
	must.Succeed(t, syscall.Mkfifo(at("pipe"), 0o600))
	for _, name := range []string{"link", "dangling", "pipe", ".", "none/file"} {
		if file, err := openAccessLog(at(name)); err == nil {
			file.Close()
			t.Errorf("%s is opened", name)
		}
	}
	if _, err := os.Lstat(at("nowhere")); err == nil || contentsOf(t, at("target")) != "kept" {
		t.Error("a link was followed")
	}
	file, err := openAccessLog(at("new"))
	must.Succeed(t, err)
	must.Succeed(t, file.Close())
	info, err := os.Stat(at("new"))
	must.Succeed(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("a new file has mode %v", info.Mode())
	}
	for range 2 {
		file, err := openAccessLog(at("new"))
		must.Succeed(t, err)
		_, err = file.WriteString("line\n")
		must.Succeed(t, err)
		must.Succeed(t, file.Close())
	}
	if got := contentsOf(t, at("new")); got != "line\nline\n" {
		t.Errorf("the file has %q", got)
	}
}
