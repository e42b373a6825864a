package admin_test

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/watch"
)

// TestReadyNamesNoOrigin asks during a recovery. Its file, peer or model is named to operators alone.
func TestReadyNamesNoOrigin(t *testing.T) {
	for role, want := range map[access.Roles]string{access.Query: "", access.Admin: "http://peer:8090"} {
		s := newListener(t, func(_ *conductor.Conductor, o *admin.Options) {
			o.Guard = access.New(access.Policy{Anonymous: role}, zerolog.Nop()).Check
			o.Progress = func() conductor.Progress {
				return conductor.Progress{From: "peer", Name: "http://peer:8090", Blocks: 7}
			}
		})
		if got := s.do("GET", "/ready", "").Body.String(); !strings.Contains(got, `"from":"peer","name":"`+want+`","blocks":7`) {
			t.Errorf("as %s: %s", role, got)
		}
	}
}

// TestReadyBeginsWithSummary requires that the sentence comes first in /ready, and that the page has the same one.
func TestReadyBeginsWithSummary(t *testing.T) {
	leaves := false
	s := newListener(t, func(c *conductor.Conductor, o *admin.Options) {
		o.Draining = func() bool { return leaves }
		hub := watch.New(watch.Config{Conductor: c, Version: "test", Draining: o.Draining})
		t.Cleanup(hub.Close)
		o.Watch = hub
	})
	f := func(summary, severity string) {
		t.Helper()
		pair := `"summary":"` + summary + `","summary_severity":"` + severity + `",`
		for _, path := range []string{"/ready", "/ready?verbose=1"} {
			if got := s.do("GET", path, "").Body.String(); !strings.HasPrefix(got, "{"+pair) {
				t.Errorf("%s: %s, want %s", path, got, pair)
			}
		}
		if got := s.do("GET", "/admin/stats", "").Body.String(); !strings.Contains(got, pair) {
			t.Errorf("the page: %s, want %s", got, pair)
		}
	}
	leaves = true
	f("draining", "warning")
	leaves = false
	f("no source is registered", "error")
}
