package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// TestStartIsLogged requires that the log says what a server is about to do, and warns if strangers may register.
func TestStartIsLogged(t *testing.T) {
	t.Parallel()
	f := func(want string, warns bool, change func(*config.Config)) {
		t.Helper()
		cfg := config.Default()
		cfg.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: config.GRPC},
			{Address: "127.0.0.1:0", Dialect: config.Conductor}}
		change(&cfg)
		web := server.NewServers(listeners(cfg.Listeners), listenerTimeouts(cfg.Limits), zerolog.Nop())
		must.Succeed(t, web.Bind())
		defer web.Unbind()
		var out bytes.Buffer
		logStart("", &cfg, web, zerolog.New(&out))
		var line struct {
			Version, Settings, Page string
			Listeners               []string
			Sources                 int
		}
		must.Succeed(t, json.NewDecoder(bytes.NewReader(out.Bytes())).Decode(&line))
		wantPage := ""
		if want != "" {
			wantPage = want + web.Address(1)[strings.LastIndex(web.Address(1), ":"):] + "/ui"
		}
		if line.Version != version || line.Settings != "no settings file" || line.Sources != 1 || line.Page != wantPage ||
			len(line.Listeners) != 2 || line.Listeners[0] != web.Address(0)+" grpc" {
			t.Errorf("%s, want the page at %s", out.String(), wantPage)
		}
		if got := strings.Contains(out.String(), "anybody who reaches a listener"); got != warns {
			t.Errorf("warns: %t, want %t: %s", got, warns, out.String())
		}
	}
	sources := func(c *config.Config) { c.Sources = make([]config.Source, 1) }
	f("http://127.0.0.1", false, sources)
	f("http://localhost", true, func(c *config.Config) { sources(c); c.Listeners[1].Address = ":0" })
	f("http://localhost", false, func(c *config.Config) { sources(c); c.Listeners[1].Address = ":0"; c.Auth.File = "credentials" })
	f("http://localhost", false, func(c *config.Config) {
		sources(c)
		c.Listeners[1].Address = ":0"
		c.Auth.Anonymous = []string{"query"}
	})
	f("https://127.0.0.1", false, func(c *config.Config) { sources(c); c.TLS.Cert = "certificate" })
	f("", false, func(c *config.Config) { sources(c); c.UI.Enabled = false })
}
