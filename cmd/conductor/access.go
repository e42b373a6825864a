package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor/access"
	"kvconductor/conductor/replica"
	"kvconductor/config"
)

// gate is what stands before the routers: who a client is, and the certificates of the listeners.
type gate struct {
	*access.Guard
	certificates *access.Certificates // nil without TLS
	credentials  string               // file, "" for none
	log          zerolog.Logger
}

// newGate reads the files of a configuration. The error names the setting.
func newGate(loaded *config.Loaded, log zerolog.Logger) (*gate, error) {
	cfg := loaded.Config
	g := &gate{credentials: cfg.Auth.File, log: log}
	anonymous, loopback := access.Query|access.Register, access.Admin
	if cfg.Auth.File != "" {
		anonymous, loopback = 0, 0
	}
	g.Guard = access.New(access.Config{
		Anonymous: rolesOf(cfg.Auth.Anonymous, anonymous), Loopback: rolesOf(cfg.Auth.Loopback, loopback),
		Limits: access.Limits{Requests: cfg.Limits.ClientRequests, Bytes: cfg.Limits.ClientBytes, Changes: cfg.Limits.ClientChanges},
		Log:    log,
	})
	if g.credentials != "" {
		if err := g.readCredentials(); err != nil {
			return nil, fmt.Errorf("%s: auth.file: %w", loaded.Place("auth.file"), err)
		}
	}
	switch t := cfg.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		return nil, errors.New("tls.cert and tls.key belong together: set both, or neither")
	case t.ClientCA != "" && t.Cert == "":
		return nil, errors.New("tls.client_ca: only a listener with TLS sees certificates of clients: set tls.cert and tls.key")
	case t.RequireClientCert && t.ClientCA == "":
		return nil, errors.New("tls.require_client_cert: no authority is named: set tls.client_ca")
	case t.Cert != "":
		var err error
		g.certificates, err = access.LoadCertificates(access.ServerFiles{
			Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, ClientCA: cfg.TLS.ClientCA, RequireClientCert: cfg.TLS.RequireClientCert,
		})
		if err != nil {
			return nil, fmt.Errorf("%s: tls.cert: %w", loaded.Place("tls.cert"), err)
		}
	}
	return g, nil
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

func (g *gate) readCredentials() error {
	known, err := access.LoadCredentials(g.credentials)
	if err == nil {
		g.Use(known)
		g.log.Info().Str("file", g.credentials).Int("clients", known.Count()).Msg("credentials read")
	}
	return err
}

// watch reads files again when they change, until ctx ends. A file with a mistake changes nothing.
func (g *gate) watch(ctx context.Context) {
	if g.credentials != "" {
		go access.Watch(ctx, []string{g.credentials}, func() {
			if err := g.readCredentials(); err != nil {
				g.log.Error().Err(err).Str("file", g.credentials).Msg("the credentials are not replaced")
			}
		})
	}
	if c := g.certificates; c != nil {
		go access.Watch(ctx, c.Paths(), func() {
			if err := c.Reload(); err != nil {
				g.log.Error().Err(err).Msg("the certificate is not replaced")
				return
			}
			g.log.Info().Time("expires", c.Expires()).Msg("certificate replaced")
		})
	}
}

// peerClient returns the client that asks peers.
func peerClient(loaded *config.Loaded) (*http.Client, error) {
	p := loaded.Config.Peer
	plain := replica.PlainClient()
	to, err := access.NewTransport(access.ClientFiles{CACert: p.CACert, Cert: p.Cert, Key: p.Key, TokenFile: p.TokenFile}, plain.Transport.(*http.Transport))
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	plain.Transport = to
	return plain, nil
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
