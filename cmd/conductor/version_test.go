package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	plain, err := command("version").Output()
	must.Succeed(t, err)
	text, err := command("version", "--json").Output()
	must.Succeed(t, err)
	var b cli.Build
	must.Succeed(t, json.Unmarshal(text, &b))
	if b.Version != strings.TrimSpace(string(plain)) || b.Go != runtime.Version() || b.Arch != runtime.GOARCH || b.Modules == 0 {
		t.Errorf("%s, %+v", plain, b)
	}
}

// TestHealth asks a server that is there, one that is not ready, and none.
func TestHealth(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "ready: {min_sources: 1}\n")
	if out, err := command("health", "--server", p.url).CombinedOutput(); err != nil {
		t.Errorf("%s: %v", out, err)
	}
	if out, err := command("health", "--server", p.url, "--ready").CombinedOutput(); err == nil ||
		string(out) != "conductor: not ready: 0 sources are synced, and ready.min_sources asks for 1\n" {
		t.Errorf("not ready: %s, %v", out, err)
	}
	if out, err := command("health", "--server", "http://127.0.0.1:1").CombinedOutput(); err == nil {
		t.Errorf("no server: %s", out)
	}
}
