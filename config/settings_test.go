package config

import (
	"strings"
	"testing"
)

// TestSettings holds that operators see what differs from the defaults, and no secret.
func TestSettings(t *testing.T) {
	c := Default()
	c.Hash.Seed = 4711
	c.Store.URL = "redis://user:se,cret@store:6379/1?password=secret"
	c.Dynamo.Peers = []string{"http://a:1", "http://user:secret@b:2"}
	c.Tracing.Endpoint = "http://collector:4318/?token=secret"
	c.Log.Level = "debug"
	want := map[string]string{
		"hash.seed": "***", "store.url": "redis://***@store:6379/1?***",
		"dynamo.peers": "http://a:1,http://***@b:2", "tracing.endpoint": "http://collector:4318/?***", "log.level": "debug",
	}
	for _, s := range c.Settings() {
		if w, changed := want[s.Path]; s.Changed != changed || changed && s.Value != w {
			t.Errorf("%+v, want %q", s, w)
		}
		delete(want, s.Path)
		if strings.Contains(s.Value, "cret") || s.Help == "" || !s.Changed && s.Value != s.Default {
			t.Errorf("%+v", s)
		}
	}
	if len(want) > 0 {
		t.Errorf("%v are missing", want)
	}
	d := Default()
	for _, x := range Diff(&c, &d) {
		if strings.Contains(x.Was, "cret") {
			t.Errorf("a difference shows a secret: %+v", x)
		}
	}
}
