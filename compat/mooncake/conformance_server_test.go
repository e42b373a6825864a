package mooncake_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/compat/mooncake"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/body"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/must"
)

// target is the server under test.
type target struct {
	kind    string
	shared  string              // base URL of a running one, "" for one of ours a script
	command conformance.Command // starts ours with a file, empty if another is under test
}

// underTest finds out which server the environment names. What only ours has tells
// which kind it is.
func underTest(t *testing.T) *target {
	u := &target{kind: conformance.Ours, shared: strings.TrimRight(os.Getenv("MOONCAKE_CONFORMANCE_URL"), "/")}
	if u.shared == "" {
		u.command = conformance.Build(t, "conductor")
	} else {
		u.kind = conformance.KindOf(t, u.shared, "mooncake")
	}
	return u
}

// url returns the address of a server for a script.
func (u *target) url(t *testing.T) string {
	if u.shared != "" {
		return u.shared
	}
	return startServer(t)
}

// startServer starts our server in this process, on a port of its own.
func startServer(t *testing.T) string {
	c := conformance.Conductor(t, conductor.Options{MaxOrphans: 1 << 10, GhostBytes: 1 << 20})
	d := mooncake.New(mooncake.Config{Conductor: c, MaxBody: 1 << 20, MaxTokens: 1 << 20, Version: "test", Codec: body.Msgpack})
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 20, Version: "test"}, Gatherer: prometheus.NewRegistry(),
		Log: zerolog.Nop(),
	}
	r := admin.New(c, opts)
	server.Dialects{d}.MountRoot(r)
	conductorhttp.Mount(r.Group("/conductor/v1"), c, opts.Dialect)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

// file writes Mooncake's file and returns the environment that names it.
func file(t *testing.T, text string) []string {
	name := filepath.Join(t.TempDir(), "conductor_config.json")
	must.Succeed(t, os.WriteFile(name, []byte(text), 0o600))
	return []string{"CONDUCTOR_CONFIG_PATH=" + name}
}

// start runs a process with a file, in which PORT is a free one.
func (u *target) start(t *testing.T, text string) string {
	t.Helper()
	return u.command.Start(t, "/health", func(port int) (args, env []string) {
		return []string{"serve"}, file(t, strings.ReplaceAll(text, "PORT", fmt.Sprint(port)))
	})
}

// exits runs a process that does not like its file.
func (u *target) exits(t *testing.T, text string, want []string) (string, error) {
	return u.command.Exits(t, []string{"serve"}, file(t, text), want)
}
