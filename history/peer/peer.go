// Package replica fills a Conductor from its peers, before the gate of its sources opens. From
// then on it compares the two.
//
//	peers, in order --fetch--> body --Format--> conductor.Recovery --> sources of the Conductor
//	                 patience                       progress --> Status, metrics, log
//	peers --ask--> body --Digests--> judge <-- digests of the Conductor
//	                                   +--> resync of a source, Drift, metrics, log
//
// A Format reads snapshots as peers send them. This package does not know how they are
// written.
//
// Concurrency: all methods are safe for concurrent use. One goroutine calls
// Recover, one Compare.
package peer

import (
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
)

// Config is what Peers are made of.
type Config struct {
	// Peers are the URLs of the peers that Recover asks, in order.
	Peers []string
	// Formats read the snapshots of peers. A peer is asked in the first one that it knows.
	Formats []Format
	// Digests compares with peers; Compare needs it.
	Digests Digests
	// Client asks the peers; nil is one that neither follows redirects nor unpacks answers.
	Client *http.Client
	Log    zerolog.Logger
}

// Format is how peers write their snapshots.
type Format struct {
	// Path is where a peer serves a snapshot, with its query; Accept the header of the request.
	Path, Accept string
	// Resumes says that a peer names a snapshot in its header ETag, and sends the rest of it for
	// the parameter id and a Range.
	Resumes bool
	// Reasons are those that Read calls skip with.
	Reasons []string
	// Read brings back the blocks of a snapshot of a content type. It calls skip for each
	// part that it leaves out, and returns an error for a snapshot that is not whole.
	Read func(body io.Reader, contentType string, into *conductor.Recovery, skip func(reason string)) error
}

// Peers are the peers of a server, and how the recovery from them goes.
type Peers struct {
	cfg   Config
	me    string    // the random id of this server's run
	since time.Time // when New was called

	mu       sync.Mutex
	peers    []string           // guarded by mu
	status   Status             // guarded by mu
	progress conductor.Progress // guarded by mu
	drift    Drift              // guarded by mu
}

// New returns Peers. It asks no peer before Recover.
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
func (r *Peers) Me() string { return r.me }

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

// Peers returns the peers in the order of their registration. It is never nil.
func (r *Peers) Peers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.peers...)
}

// Clients add peers; each is asked for its digests again and again.
const (
	maxPeers   = 64
	maxPeerURL = 1024 // bytes
)

// AddPeer adds a peer unless it is there. It fails if the URL is too long, or if there are too
// many.
func (r *Peers) AddPeer(url string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case slices.Contains(r.peers, url):
		return nil
	case len(url) > maxPeerURL:
		return fmt.Errorf("url must have at most %d bytes, got %d", maxPeerURL, len(url))
	case len(r.peers) >= maxPeers:
		return fmt.Errorf("there are %d peers, and no more are taken", maxPeers)
	}
	r.peers = append(r.peers, url)
	return nil
}

// RemovePeer removes a peer, and reports whether it was there.
func (r *Peers) RemovePeer(url string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.peers, url)
	if i >= 0 {
		r.peers = slices.Delete(r.peers, i, i+1)
	}
	return i >= 0
}

// States of a recovery.
const (
	None    = "none"      // there are no peers
	Running = "running"   // it is under way
	Done    = "recovered" // a peer gave a whole snapshot
	Failed  = "failed"    // no peer did
)

// SkipRefused is the reason of blocks whose source is another one here, or one too many.
const SkipRefused = "refused"

// Status is how the recovery from peers goes, or went.
type Status struct {
	State   string         `json:"state"`
	Peer    string         `json:"peer"` // the one asked last
	Blocks  int            `json:"blocks"`
	Bytes   int64          `json:"bytes"`
	Skipped map[string]int `json:"skipped"` // parts of the snapshot, by reason
	Errors  []string       `json:"errors"`  // of peers that gave no whole snapshot
	Seconds float64        `json:"seconds"`
}

// Status returns how the recovery goes.
func (r *Peers) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.status
	st.Errors = append([]string{}, st.Errors...)
	skipped := make(map[string]int, len(st.Skipped))
	maps.Copy(skipped, st.Skipped)
	st.Skipped = skipped
	return st
}

// Progress returns how far the recovery under way has come, the zero value for none.
func (r *Peers) Progress() conductor.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.State != Running {
		return conductor.Progress{}
	}
	return r.progress
}

// note changes the status.
func (r *Peers) note(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}
