package store_test

import (
	"crypto/tls"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// TestOpenRefuses names the setting that is wrong, before anything is dialled.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, cfg store.Config) {
		t.Helper()
		if cfg.Name == "" {
			cfg.Name = "test"
		}
		if _, err := store.Open(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", cfg, err, want)
		}
	}
	f("url: ", store.Config{URL: "http://a:1"})
	f("url: ", store.Config{URL: "redis://a:b:c"})
	f("url: a cluster has database 0 alone", store.Config{URL: "redis://a:1/2", Cluster: true})
	f("master: ", store.Config{URL: "redis://a:1", Cluster: true, Master: "m"})
	f("addresses: ", store.Config{URL: "redis://a:1", Addresses: []string{"b:1"}})
	f("name: ", store.Config{URL: "redis://a:1", Name: "a{b"})
	f("password_file: ", store.Config{URL: "redis://a:1", PasswordFile: "/does/not/exist"})
}

// TestOpenChecksTheHostOfEachNode: a certificate is checked for the host of the URL, but for the host of each
// node where there are several, with authorities of the settings and with those of the system.
func TestOpenChecksTheHostOfEachNode(t *testing.T) {
	t.Parallel()
	for _, own := range []*tls.Config{nil, {MinVersion: tls.VersionTLS12}} {
		f := func(want string, cfg store.Config) {
			t.Helper()
			cfg.URL, cfg.Name, cfg.TLS = "rediss://first:1", "test", own
			s, err := store.Open(cfg)
			must.Succeed(t, err)
			defer s.Close()
			var used *tls.Config
			switch c := s.Client().(type) {
			case *redis.ClusterClient:
				used = c.Options().TLSConfig
			case *redis.Client:
				used = c.Options().TLSConfig
			}
			if used.ServerName != want {
				t.Errorf("a cluster %v, master %q, settings of TLS %v: %q is checked, want %q", cfg.Cluster, cfg.Master, own != nil,
					used.ServerName, want)
			}
		}
		f("first", store.Config{})
		f("", store.Config{Cluster: true})
		f("", store.Config{Addresses: []string{"second:1"}, Cluster: true})
		f("", store.Config{Addresses: []string{"second:1"}, Master: "m"})
	}
}

// TestKeysShareSlots: what scripts change together is in one hash slot, which the braces name.
func TestKeysShareSlots(t *testing.T) {
	t.Parallel()
	s, err := store.Open(store.Config{URL: "redis://127.0.0.1:1", Name: "test"})
	must.Succeed(t, err)
	defer s.Close()
	if got := s.Key("run"); got != "kvconductor:{test}:run" {
		t.Error(got)
	}
	one, other := s.SpreadKey("shelf/a", "0"), s.SpreadKey("shelf/b", "0")
	if !strings.HasPrefix(one, "kvconductor:{test/") || !strings.HasSuffix(one, "}:"+store.Hash("shelf/a")+":0") || one == other {
		t.Error(one, other)
	}
	slots := make(map[string]bool)
	for i := range 1000 {
		slot, _, _ := strings.Cut(s.SpreadKey(strconv.Itoa(i), "0"), "}")
		slots[slot] = true
	}
	if len(slots) != 32 {
		t.Errorf("1,000 values are in %d hash slots", len(slots))
	}
}

// TestOpenReadsThePassword connects with the password of a file, and not without one.
func TestOpenReadsThePassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "first")
	file := redistest.File(t, "first\n")
	s, err := store.Open(store.Config{URL: server.URL(), Name: "test", PasswordFile: file, Timeout: time.Minute})
	must.Succeed(t, err)
	defer s.Close()
	must.Succeed(t, s.Client().Ping(t.Context()).Err())
	other, err := store.Open(store.Config{URL: server.URL(), Name: "test", Timeout: time.Minute})
	must.Succeed(t, err)
	defer other.Close()
	if err := other.Client().Ping(t.Context()).Err(); err == nil {
		t.Error("no password is asked for")
	}
}

// TestRefusalNamesTheCommand runs a script that has a command which the user may not run.
func TestRefusalNamesTheCommand(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "replica", "on", ">secret", "~*", "+eval", "+get", "+client|setname")
	s, err := store.Open(store.Config{URL: "redis://replica:secret@" + server.Addr, Name: "test", Timeout: time.Minute})
	must.Succeed(t, err)
	defer s.Close()
	began := time.Now()
	if err := s.Client().Get(t.Context(), "none").Err(); err != redis.Nil || s.Refusal(began) != "" {
		t.Errorf("a key that is not there: %v %q", err, s.Refusal(began))
	}
	if err := s.Client().EvalSha(t.Context(), "0", nil).Err(); err == nil || !strings.Contains(s.Refusal(began), "'evalsha'") {
		t.Errorf("%v %q", err, s.Refusal(began))
	}
	err = s.Client().Eval(t.Context(), "return redis.call('SET', KEYS[1], 1)", []string{"k"}).Err()
	if got := s.Refusal(began); err == nil || got != err.Error() || s.Refusal(time.Now()) != "" {
		t.Errorf("%v %q", err, got)
	}
}
