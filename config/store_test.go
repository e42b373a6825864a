package config

import "testing"

// TestValidateStore names the settings of a store that would do nothing, or other than they say.
func TestValidateStore(t *testing.T) {
	f := func(want string, change func(*Store)) {
		t.Helper()
		c := Default()
		change(&c.Store)
		got := ""
		if err := validate(&c); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	f("store.cacert: is for TLS; write rediss:// in store.url", func(s *Store) { s.URL, s.CACert = "redis://a", "f" })
	f("store.cert: is for TLS; write rediss:// in store.url\nstore.key: is for TLS; write rediss:// in store.url",
		func(s *Store) { s.URL, s.Cert, s.Key = "redis://a", "f", "f" })
	f("", func(s *Store) { s.URL, s.CACert, s.Cert, s.Key = "rediss://a", "f", "f", "f" })
}
