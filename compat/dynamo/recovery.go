package dynamo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"kvconductor/conductor"
)

// States of a recovery.
const (
	RecoveryNone    = "none"      // no peers are configured
	RecoveryRunning = "running"   // under way
	RecoveryDone    = "recovered" // a peer gave all it had
	RecoveryFailed  = "failed"    // no peer did
)

// Recovered is how the recovery from peers goes, or went.
type Recovered struct {
	State   string         `json:"state"`
	Peer    string         `json:"peer"` // the one asked last
	Blocks  int            `json:"blocks"`
	Bytes   int64          `json:"bytes"`
	Skipped map[string]int `json:"skipped"` // events by reason
	Errors  []string       `json:"errors"`  // of peers that did not give all they had
	Seconds float64        `json:"seconds"`
}

// Reasons of skipped events.
const (
	skipBad         = "bad_event"             // cannot be read
	skipOther       = "unsupported_residency" // not about blocks of a worker
	skipError       = "error_slot"            // a partition the peer could not dump
	skipNoSize      = "no_block_size"         // a partition in the oldest form without a registration
	skipRefused     = "refused"               // of a source that is another one here, or one too many
	peerPatience    = 30 * time.Second        // how long a peer may take for peerPace bytes; walking a large index takes time
	peerPace        = 16 << 10
	progressEvery   = 5 * time.Second
	slowJoinerPause = time.Second // a subscription is in force by then
)

// Recover fills the Conductor, whose gate is closed, from the first peer of
// Config.Peers that gives a whole dump. What a peer gave that failed in the middle is
// dropped before the next is asked. Blocks of workers without a registration expire
// after ttl. It returns when ctx ends, and without a peer at once.
func (d *Dialect) Recover(ctx context.Context, ttl time.Duration) Recovered {
	peers := d.cfg.Peers
	if len(peers) == 0 {
		return d.Recovery()
	}
	start := time.Now()
	d.report(func(r *Recovered) { *r = Recovered{State: RecoveryRunning} })
	select {
	case <-time.After(slowJoinerPause):
	case <-ctx.Done():
	}
	for _, peer := range peers {
		if ctx.Err() != nil {
			break
		}
		d.report(func(r *Recovered) { r.Peer, r.Blocks, r.Bytes, r.Skipped = peer, 0, 0, map[string]int{} })
		d.cfg.Log.Info().Str("peer", peer).Msg("recovering from a peer")
		in := d.conductor.Recover(ttl)
		err := d.fetch(ctx, peer, in)
		d.report(func(r *Recovered) { r.Seconds = time.Since(start).Seconds() })
		if err == nil {
			in.Done()
			d.report(func(r *Recovered) {
				r.State = RecoveryDone
				if in.Refused > 0 {
					r.Skipped[skipRefused] = in.Refused
				}
			})
			r := d.Recovery()
			d.cfg.Log.Info().Str("peer", peer).Int("blocks", r.Blocks).Int64("bytes", r.Bytes).Interface("skipped", r.Skipped).
				Float64("seconds", r.Seconds).Msg("recovered from a peer")
			return r
		}
		in.Undo()
		d.cfg.Log.Warn().Str("peer", peer).Err(err).Msg("a peer has no dump to recover from")
		d.report(func(r *Recovered) { r.Blocks = 0; r.Errors = append(r.Errors, fmt.Sprintf("%s: %v", peer, err)) })
	}
	d.report(func(r *Recovered) { r.State = RecoveryFailed })
	if ctx.Err() != nil {
		return d.Recovery() // told to stop
	}
	d.cfg.Log.Error().Int("peers", len(peers)).Msg("no peer could be recovered from, starting with what the engines replay")
	return d.Recovery()
}

// Recovery returns how the recovery goes.
func (d *Dialect) Recovery() Recovered {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recovery
	r.Errors = append([]string{}, r.Errors...)
	skipped := make(map[string]int, len(r.Skipped))
	for why, n := range r.Skipped {
		skipped[why] = n
	}
	r.Skipped = skipped
	return r
}

func (d *Dialect) report(change func(*Recovered)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.recovery)
}

// fetch asks one peer for its dump and applies it.
func (d *Dialect) fetch(ctx context.Context, peer string, in *conductor.Recovery) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(peerPatience, func() { cancel(fmt.Errorf("it gave less than %d bytes in %s", peerPace, peerPatience)) })
	defer silent.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(peer, "/")+"/dump?detail=1", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", ndjson+", application/json;q=0.5")
	res, err := d.cfg.Client.Do(req)
	if err != nil {
		return because(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", res.Status)
	}
	l := &loader{dialect: d, in: in, told: time.Now()}
	silent.Reset(peerPatience)
	lately := 0
	body := &listener{from: res.Body, heard: func(n int) {
		if lately += n; lately >= peerPace {
			silent.Reset(peerPatience)
			lately = 0
		}
		l.progress(n)
	}}
	if strings.HasPrefix(res.Header.Get("Content-Type"), ndjson) {
		err = l.lines(body)
	} else {
		err = l.object(body)
	}
	l.progress(0)
	return because(ctx, err)
}

// because returns what ended ctx instead of what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// listener tells of every read.
type listener struct {
	from  io.Reader
	heard func(n int)
}

func (l *listener) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	l.heard(n)
	return n, err
}

// loader applies one dump.
type loader struct {
	dialect *Dialect
	in      *conductor.Recovery
	told    time.Time // when progress was logged last
	// foreign says that the peer has another hash.seed: what it tells is as good as
	// without details.
	foreign bool
	blocks  dumpBlocks
}

// progress notes bytes read, and now and then says so.
func (l *loader) progress(n int) {
	l.dialect.report(func(r *Recovered) { r.Bytes += int64(n); r.Blocks = l.in.Blocks })
	if time.Since(l.told) > progressEvery {
		l.told = time.Now()
		r := l.dialect.Recovery()
		l.dialect.cfg.Log.Info().Str("peer", r.Peer).Int("blocks", r.Blocks).Int64("bytes", r.Bytes).Msg("still recovering")
	}
}

// skip counts an event that is left out.
func (l *loader) skip(why string) {
	l.dialect.report(func(r *Recovered) { r.Skipped[why]++ })
}
