package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"time"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/store"
)

// storeTimeout is how long a command to the store may take. A beat that takes longer is one that
// failed, and a replica is gone once all beats of its lease have.
const storeTimeout = membership.Lease / 4

// openStore opens the store that replicas share, nil if there is none. It does not wait for it.
func openStore(loaded *config.Loaded) (*store.Store, error) {
	cfg := loaded.Config.Store
	if cfg.URL == "" {
		return nil, nil
	}
	secured, err := storeTLS(cfg)
	if err != nil {
		return nil, fmt.Errorf("store.%w", err)
	}
	at := storeConfig(cfg)
	at.TLS = secured
	s, err := store.Open(at)
	if err != nil {
		return nil, fmt.Errorf("%s: store.%w", loaded.Place("store.url"), err)
	}
	return s, nil
}

// storeConfig is where the store is.
func storeConfig(cfg config.Store) store.Config {
	return store.Config{
		URL: cfg.URL, Addresses: cfg.Addresses, Master: cfg.Master, Cluster: cfg.Cluster, Name: cfg.Name,
		PasswordFile: cfg.PasswordFile, SentinelPasswordFile: cfg.SentinelPasswordFile, Timeout: storeTimeout,
	}
}

// storeFiles are what this server shows the store, and trusts.
func storeFiles(cfg config.Store) access.ClientFiles {
	return access.ClientFiles{CACert: cfg.CACert, Cert: cfg.Cert, Key: cfg.Key}
}

// storeTLS is how the store is trusted, nil where the settings say nothing.
func storeTLS(cfg config.Store) (*tls.Config, error) {
	if cfg.CACert == "" && cfg.Cert == "" && cfg.Key == "" {
		return nil, nil
	}
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if cfg.CACert != "" {
		if secured.RootCAs, err = access.Authorities(cfg.CACert); err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
	}
	if cfg.Cert != "" {
		// The files are read for each connection, so that a renewed certificate is used.
		secured.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
			return &pair, err
		}
		if _, err := secured.GetClientCertificate(nil); err != nil {
			return nil, fmt.Errorf("cert: %w", err)
		}
	}
	return secured, nil
}

// newGroup makes this server a replica of those that share a store, nil if there is none. asking has the token by which
// replicas know each other.
func newGroup(s *serving, asking *access.Transport) *membership.Group {
	if s.store == nil {
		return nil
	}
	cfg := &s.cfg
	return membership.New(membership.Config{
		Store: s.store, Log: s.log, Tokens: asking.Tokens,
		Replica: membership.Replica{URL: advertisedURL(cfg, s.listeners), Started: time.Now(), Version: version,
			Weight: float64(cfg.Store.Weight)},
	})
}

// advertisedURL is the URL where other replicas reach this server.
func advertisedURL(cfg *config.Config, web *server.Servers) string {
	if cfg.Store.Advertise != "" {
		return cfg.Store.Advertise
	}
	scheme := "http"
	if cfg.TLS.Cert != "" {
		scheme = "https"
	}
	for i, l := range cfg.Listeners {
		if l.Dialect == config.GRPC {
			continue
		}
		host, port, _ := net.SplitHostPort(web.Address(i))
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host, _ = os.Hostname()
		}
		return scheme + "://" + net.JoinHostPort(host, port)
	}
	return ""
}
