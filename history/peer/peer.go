// Package peer fills a Conductor from its peers, before the gate of its sources opens. From
// then on it compares the two.
//
//	peers, in order --fetch--> body --Format--> history.Loading --> sources of the Conductor
//	                 patience                       Progress --> Status, metrics, log
//	peers --ask--> body --Digests--> judge <-- digests of the Conductor
//	                                   +--> resync of a source, Drift, metrics, log
//
// A Format reads snapshots as peers send them. This package does not know how they are
// written.
//
// Concurrency: all methods are safe for concurrent use. One goroutine calls
// Restore, one Compare.
package peer

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/history"
	"example.com/conductor/redact"
)

// Config is what Peers are made of.
type Config struct {
	// Peers are the URLs of the peers that Restore asks, in order.
	Peers []string
	// Others, if set, returns more peers for Restore, which it asks after those of Peers.
	Others func(ctx context.Context) []string
	// Formats read the snapshots of peers. A peer is asked in the first one that it knows.
	Formats []Format
	// Digests compares with peers; Compare needs it.
	Digests Digests
	// Client asks the peers; nil is one that neither follows redirects nor unpacks answers.
	Client *http.Client
	Log    zerolog.Logger
}

// Peers are the peers of a server, and how the recovery from them goes.
type Peers struct {
	cfg   Config
	me    string    // the random id of this server's run
	since time.Time // when New was called

	mu      sync.Mutex
	peers   []string         // guarded by mu
	status  Status           // guarded by mu
	loading *history.Loading // what Restore loads, nil for nothing; guarded by mu
	drift   Drift            // guarded by mu
}

// New returns Peers. It asks no peer before Restore.
func New(cfg Config) *Peers {
	if cfg.Client == nil {
		cfg.Client = PlainClient()
	}
	return &Peers{cfg: cfg, me: rand.Text(), since: time.Now(), peers: slices.Clone(cfg.Peers), status: Status{State: None}}
}

// Header names the server that asks a peer by its Me. A server that finds its own Me there was given
// itself as a peer: it answers status 508 (Loop Detected) with the same header. So all replicas can have
// the same list of peers.
const Header = "Conductor-Peer"

// Me returns the random id of this server's run.
func (p *Peers) Me() string { return p.me }

// PlainClient returns a client that asks the peers that were named, and no others: a redirect
// is an answer. What a peer packs stays packed, so that its bytes are those that were counted.
func PlainClient() *http.Client {
	plain := http.DefaultTransport.(*http.Transport).Clone()
	plain.DisableCompression = true
	return &http.Client{
		Transport:     plain,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Peers returns the peers in the order of their registration, as they are asked: redact.URL shows them. It is never nil.
func (p *Peers) Peers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.peers...)
}

// Clients add peers; each is asked for its digests again and again.
const (
	maxPeers   = 64
	maxPeerURL = 1024 // bytes
)

// AddPeer adds a peer unless it is there. It fails if the URL is too long, or if there are too
// many.
func (p *Peers) AddPeer(url string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case slices.Contains(p.peers, url):
		return nil
	case len(url) > maxPeerURL:
		return fmt.Errorf("url must have at most %d bytes, got %d", maxPeerURL, len(url))
	case len(p.peers) >= maxPeers:
		return fmt.Errorf("there are %d peers, and no more are taken", maxPeers)
	}
	p.peers = append(p.peers, url)
	return nil
}

// RemovePeer removes a peer, which may be named as it is shown, and reports whether it was there.
func (p *Peers) RemovePeer(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.peers, url)
	if i < 0 {
		i = slices.IndexFunc(p.peers, func(peer string) bool { return redact.URL(peer) == url })
	}
	if i >= 0 {
		p.peers = slices.Delete(p.peers, i, i+1)
	}
	return i >= 0
}
