package config

import (
	"testing"
	"time"
)

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
	f("store.cert: is for TLS; write rediss:// in store.url\nstore.key: is for TLS; write rediss:// in store.url", func(s *Store) { s.URL, s.Cert, s.Key = "redis://a", "f", "f" })
	f("", func(s *Store) { s.URL, s.CACert, s.Cert, s.Key = "rediss://a", "f", "f", "f" })
	f("store.shelf_ttl: 1m59s is less than twice store.shelf_interval", func(s *Store) { s.ShelfTTL = 2*time.Minute - time.Second })
	f("", func(s *Store) { s.ShelfTTL = 2 * time.Minute })
	f("", func(s *Store) { s.ShelfTTL, s.ShelfInterval = time.Second, 0 })
	f("store.timeout: 2.001s is too long; the most is 2s, half of a replica's lease", func(s *Store) { s.Timeout = 2001 * time.Millisecond })
	f("", func(s *Store) { s.Timeout = 2 * time.Second })
}
