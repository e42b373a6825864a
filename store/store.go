// Package store connects to Valkey or Redis, where the replicas of a group keep what they
// share. Queries never wait for it.
//
//	kvconductor:{name}:version, run, replicas, …   one hash slot: scripts change them together
//	kvconductor:{name/7}:…:shelf:…                 each snapshot has one of 32 hash slots: they are
//	                                               spread over the nodes of a cluster
//
// docs/formats.md has every key.
//
// Concurrency: all methods are safe for concurrent use.
package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/conductor/redact"
)

// Layout is the version of the keys that this program reads and writes.
const Layout = 1

// Config says where the store is.
type Config struct {
	// URL is redis://user@host:port/db, or rediss:// for TLS.
	URL string
	// Addresses are further nodes of a cluster, or further Sentinels, host:port.
	Addresses []string
	// Master is the name by which Sentinels know the store; URL and Addresses are Sentinels then.
	Master string
	// Cluster says that the store is a cluster.
	Cluster bool
	// Name tells several groups of replicas in one store apart.
	Name string
	// PasswordFile and SentinelPasswordFile are files of passwords, read for each connection; "" is
	// the password of URL, and none for Sentinels.
	PasswordFile, SentinelPasswordFile string
	// TLS is for connections to rediss://; nil trusts the system's authorities.
	TLS *tls.Config
	// Timeout is how long a command may take, and a connection until it is open.
	Timeout time.Duration
}

// Store is a connection to a store. It connects when it is first asked.
type Store struct {
	client  redis.UniversalClient
	address string
	name    string
	timeout time.Duration
	secured bool // by TLS

	refusals refusals
}

// Check returns everything that is wrong with the configuration, each error with the field. Without a URL it looks at the
// other fields alone.
func (cfg *Config) Check() (all []error) {
	add := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if cfg.Name == "" || strings.ContainsAny(cfg.Name, "{}:/") {
		add("name: %q is empty, or has one of {}:/", cfg.Name)
	}
	if cfg.URL != "" {
		base, err := redis.ParseURL(cfg.URL)
		switch {
		case err != nil:
			add("url: %s", strings.TrimPrefix(redact.Error(err).Error(), "redis: "))
		case base.Network == "unix" && (cfg.Cluster || cfg.Master != ""):
			add("url: a cluster and Sentinels have addresses of hosts")
		case cfg.Cluster && base.DB != 0:
			add("url: a cluster has database 0 alone")
		}
	}
	if cfg.Cluster && cfg.Master != "" {
		add("master: a cluster has none")
	}
	if len(cfg.Addresses) > 0 && !cfg.Cluster && cfg.Master == "" {
		add("addresses: further addresses are those of a cluster or of Sentinels")
	}
	for _, f := range []struct{ field, file string }{
		{"password_file", cfg.PasswordFile}, {"sentinel_password_file", cfg.SentinelPasswordFile},
	} {
		if _, err := password(f.file, ""); err != nil {
			add("%s: %w", f.field, err)
		}
	}
	return all
}

// Open checks the settings. It waits for no connection. The error begins with the member of
// Config that is wrong.
func Open(cfg Config) (*Store, error) {
	if err := errors.Join(cfg.Check()...); err != nil {
		return nil, err
	}
	base, err := redis.ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	sentinel, _ := password(cfg.SentinelPasswordFile, "")
	secured := base.TLSConfig
	if secured != nil && cfg.TLS != nil {
		secured = cfg.TLS.Clone()
		secured.ServerName = cmp.Or(secured.ServerName, base.TLSConfig.ServerName)
	}
	if secured != nil && (cfg.Cluster || cfg.Master != "") {
		secured.ServerName = "" // each node's certificate is for the host of that node
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: append([]string{base.Addr}, cfg.Addresses...), DB: base.DB, ClientName: "kvconductor", TLSConfig: secured,
		MasterName: cfg.Master, IsClusterMode: cfg.Cluster, SentinelPassword: sentinel,
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			secret, err := password(cfg.PasswordFile, base.Password)
			return base.Username, secret, err
		},
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	address := strings.Join(append([]string{base.Addr}, cfg.Addresses...), ", ")
	s := &Store{client: client, address: address, name: cfg.Name, timeout: cfg.Timeout, secured: secured != nil}
	client.AddHook(&s.refusals)
	return s, nil
}

func init() { logging.Disable() } // callers get every error

// password reads a file of a password.
func password(file, otherwise string) (string, error) {
	if file == "" {
		return otherwise, nil
	}
	text, err := os.ReadFile(file)
	return strings.TrimRight(string(text), "\r\n"), err
}

// Client is the connection, for commands that no script needs.
func (s *Store) Client() redis.UniversalClient { return s.client }

// Address is where the store is, for people: it has no user and no password.
func (s *Store) Address() string { return s.address }

// Close closes the connections.
func (s *Store) Close() error { return s.client.Close() }

// Timeout is how long a command may take.
func (s *Store) Timeout() time.Duration { return s.timeout }

// Key names what all replicas share.
func (s *Store) Key(of string) string { return "kvconductor:{" + s.name + "}:" + of }

// buckets is how many hash slots SpreadKey uses.
const buckets = 32

// SpreadKey returns the key of one part of a large value, such as a chunk of a snapshot. Keys of one value
// are in one hash slot; values are spread over the nodes of a cluster.
func (s *Store) SpreadKey(value, part string) string {
	sum := sha256.Sum256([]byte(value))
	return "kvconductor:{" + s.name + "/" + strconv.Itoa(int(sum[0])%buckets) + "}:" + Hash(value) + ":" + part
}

// Hash returns 24 hexadecimal digits that stand for a name in keys: names have any characters.
func Hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}
