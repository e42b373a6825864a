package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/config"
	"example.com/conductor/history/peer"
)

// gate is what stands before the routers: who a client is, and the certificates of the listeners.
type gate struct {
	*access.Guard
	certificates *access.Certificates // nil without TLS
	// The stamps of the files when they were read first.
	credentialsStamp, certificatesStamp string
	log                                 zerolog.Logger

	mu      sync.Mutex
	current config.Config // guarded by mu
}

// newGate reads the files of a configuration. The error names the setting.
func newGate(loaded *config.Loaded, log zerolog.Logger) (*gate, error) {
	cfg := loaded.Config
	g := &gate{current: cfg, log: log, credentialsStamp: access.Stamp(cfg.Auth.File),
		certificatesStamp: access.Stamp(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA)}
	policy, err := policyOf(&cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: auth.file: %w", loaded.Place("auth.file"), err)
	}
	g.Guard = access.New(policy, log)
	if g.certificates, err = certificatesOf(loaded); err != nil {
		return nil, err
	}
	return g, nil
}

// certificatesOf reads the certificate of the listeners, nil without TLS.
func certificatesOf(loaded *config.Loaded) (*access.Certificates, error) {
	if loaded.Config.TLS.Cert == "" {
		return nil, nil
	}
	all, err := access.LoadCertificates(serverFiles(loaded.Config.TLS))
	if err != nil {
		return nil, fmt.Errorf("%s: tls.cert: %w", loaded.Place("tls.cert"), err)
	}
	return all, nil
}

func serverFiles(t config.TLS) access.ServerFiles {
	return access.ServerFiles{Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA, RequireClientCert: t.RequireClientCert}
}

// policyOf reads the file of credentials that a configuration names.
func policyOf(c *config.Config) (p access.Policy, err error) {
	anonymous, loopback := access.Query|access.Register, access.Admin
	if c.Auth.File != "" {
		anonymous, loopback = 0, 0
		if p.Credentials, err = access.LoadCredentials(c.Auth.File); err != nil {
			return p, err
		}
	}
	p.Anonymous, p.Loopback = rolesOf(c.Auth.Anonymous, anonymous), rolesOf(c.Auth.Loopback, loopback)
	p.Hosts = c.Auth.Hosts
	p.Limits = access.Limits{Requests: c.Limits.ClientRequests, Bytes: c.Limits.ClientBytes, Changes: c.Limits.ClientChanges}
	return p, nil
}

// replacePolicy takes over a configuration and the policy that was read for it.
func (g *gate) replacePolicy(c *config.Config, p access.Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.current = *c
	g.Use(p)
}

// credentialsFiles returns the names of the files of credentials.
func (g *gate) credentialsFiles() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return []string{g.current.Auth.File}
}

// rolesOf returns the roles that a setting names.
func rolesOf(words []string, auto access.Roles) access.Roles {
	var roles access.Roles
	if slices.Contains(words, config.Auto) {
		roles = auto
	}
	named := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == config.Auto || w == "none" })
	more, err := access.ParseRoles(named)
	if err != nil {
		panic("BUG: a checked role is none: " + err.Error())
	}
	return roles | more
}

// readCredentials reads the file of credentials again. A file with a mistake changes nothing.
func (g *gate) readCredentials() {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, err := policyOf(&g.current)
	if err != nil {
		g.log.Error().Err(err).Str("file", g.current.Auth.File).Msg("the credentials are not replaced")
		return
	}
	g.Use(p)
	g.log.Info().Str("file", g.current.Auth.File).Msg("credentials replaced")
}

// readCertificates reads the files of certificates again. A file with a mistake changes nothing.
func (g *gate) readCertificates() {
	if err := g.certificates.Reload(); err != nil {
		g.log.Error().Err(err).Msg("the certificate is not replaced")
		return
	}
	g.log.Info().Time("expires", g.certificates.Expires()).Msg("certificate replaced")
}

// readAll reads all files again.
func (g *gate) readAll() {
	if g.credentialsFiles()[0] != "" {
		g.readCredentials()
	}
	if g.certificates != nil {
		g.readCertificates()
	}
}

// watchFiles reads files again when they change, as long as the process lives.
func (g *gate) watchFiles(life *lifecycle) {
	life.follow("watching the credentials", func(ctx context.Context) {
		access.Watch(ctx, g.credentialsStamp, g.credentialsFiles, g.readCredentials)
	})
	if g.certificates != nil {
		life.follow("watching the certificates", func(ctx context.Context) {
			access.Watch(ctx, g.certificatesStamp, g.certificates.Paths, g.readCertificates)
		})
	}
}

// peerClient returns the client that asks peers.
func peerClient(loaded *config.Loaded) (*http.Client, error) {
	plain := peer.PlainClient()
	to, err := peerTransport(loaded, plain.Transport.(*http.Transport))
	if err != nil {
		return nil, err
	}
	plain.Transport = to
	return plain, nil
}

// peerTransport returns what carries requests to peers and other replicas. The token goes to the peers of the settings alone,
// until trustReplicas adds replicas: clients and the store may name any address as well.
func peerTransport(loaded *config.Loaded, base *http.Transport) (*access.Transport, error) {
	to, err := access.NewTransport(peerFiles(loaded.Config.Peer), base)
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	trustReplicas(to, loaded, nil)
	return to, nil
}

func peerFiles(p config.Peer) access.ClientFiles {
	return access.ClientFiles{CACert: p.CACert, Cert: p.Cert, Key: p.Key, TokenFile: p.TokenFile}
}

// trustReplicas lets the token go to the peers of the settings, and to the replicas of a group that have proved that they
// know it.
func trustReplicas(to *access.Transport, loaded *config.Loaded, members *membership.Group) {
	peers := make(map[membership.Origin]bool)
	for _, peer := range loaded.Config.Dynamo.Peers {
		peers[membership.OriginOf(peer)] = true
	}
	to.SendTokenTo(func(u *url.URL) bool {
		at := membership.Origin{Scheme: u.Scheme, Host: u.Host}
		return peers[at] || members != nil && members.Believes(at)
	})
}

// warnOfExpiry says at the start that a certificate is about to end.
func (g *gate) warnOfExpiry() {
	if g.certificates == nil {
		return
	}
	if left := time.Until(g.certificates.Expires()); left < 7*24*time.Hour {
		g.log.Warn().Time("expires", g.certificates.Expires()).Msg("the certificate of the listeners ends soon")
	}
}
