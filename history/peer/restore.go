package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"example.com/conductor/history"
	"example.com/conductor/redact"
)

const (
	// subscribing is how long a subscription takes to be in force, at most.
	subscribing = time.Second
	// startGrace is how long after the start of this server a peer that cannot be reached, or is starting itself, is
	// no reason to warn: replicas of a StatefulSet start together, and their names resolve late.
	startGrace = 2 * time.Minute
	// inAll is how long peers may take together: events queue meanwhile, and engines drop messages beyond their
	// queues. A peer has half of the time that is left, so that one which never ends leaves time for the next.
	// Five minutes of 1 Gbit/s are the snapshot of 2 billion blocks.
	inAll = 10 * time.Minute
)

// Restore implements history.Place: it loads the snapshot of the first peer that gives a whole one, those of Config
// first and then the others. Without a peer it returns at once. Status says how it went.
func (p *Peers) Restore(ctx context.Context, loader *history.Loader) {
	urls := p.cfg.Peers
	if p.cfg.Others != nil {
		urls = slices.Concat(urls, p.cfg.Others(ctx))
	}
	if len(urls) == 0 {
		return
	}
	start, log := time.Now(), &p.cfg.Log
	end := start.Add(inAll)
	p.updateStatus(func(st *Status) { *st = Status{State: Running} })
	// What an engine sends before the subscription is in force is in the peer's snapshot only if the peer is asked
	// after that.
	select {
	case <-time.After(subscribing):
	case <-ctx.Done():
	}
	asked, away := 0, 0 // peers that gave no snapshot, and those of them that are not up
	for _, url := range urls {
		if ctx.Err() != nil {
			break
		}
		p.updateStatus(func(st *Status) { st.Peer, st.Blocks, st.Bytes, st.Skipped = redact.URL(url), 0, 0, map[string]int{} })
		log.Info().Str("peer", redact.URL(url)).Msg("recovering from a peer")
		fetch := fetch{client: p.cfg.Client, me: p.me, formats: p.cfg.Formats, within: time.Until(end) / 2}
		fetch.skip = func(reason string, parts int) { p.updateStatus(func(st *Status) { st.Skipped[reason] += parts }) }
		fetch.begin = p.setLoading
		progress, err := fetch.loadFrom(ctx, url, loader)
		p.setLoading(nil)
		p.updateStatus(func(st *Status) {
			st.Blocks, st.Bytes, st.Seconds = progress.Blocks, progress.Bytes, time.Since(start).Seconds()
		})
		if err == nil {
			p.updateStatus(func(st *Status) { st.State = Done })
			st := p.Status()
			log.Info().Str("peer", redact.URL(url)).Int("blocks", st.Blocks).Int64("bytes", st.Bytes).Interface("skipped", st.Skipped).
				Float64("seconds", st.Seconds).Msg("recovered from a peer")
			return
		}
		if errors.Is(err, errSelf) {
			p.dropSelf(url)
			continue
		}
		if asked++; p.isStarting(err) {
			away++
			log.Info().Str("peer", redact.URL(url)).Err(err).Msg("a peer is not up yet")
		} else {
			log.Warn().Str("peer", redact.URL(url)).Err(err).Msg("a peer gave no whole snapshot")
		}
		p.updateStatus(func(st *Status) { st.Errors = append(st.Errors, fmt.Sprintf("%s: %v", redact.URL(url), err)) })
	}
	state := Failed
	switch {
	case ctx.Err() != nil:
	case asked == 0: // the only peer is this server
		p.updateStatus(func(st *Status) { *st = Status{} })
		state = None
	case asked == away:
		log.Info().Int("peers", asked).Msg("no peer is up yet: this server starts without their blocks")
	default:
		log.Error().Int("peers", asked).Msg("no peer could be recovered from")
	}
	p.updateStatus(func(st *Status) { st.State = state })
}

var (
	// errSelf is the answer of this server to itself.
	errSelf = errors.New("it is this server itself")
	// errStarting is the answer of a peer that recovers, or has too much to do.
	errStarting = errors.New("it answers 503 Service Unavailable: it is starting itself, or is busy")
	// errUnknown is the answer of a peer that does not know a format, or has no such snapshot.
	errUnknown = errors.New("it answers 404 Not Found")
)

// answerError returns the error for an answer that has no snapshot and no digests, nil for status 200. me is the Me of
// the server that asked.
func answerError(res *http.Response, me string) error {
	switch {
	case res.StatusCode == http.StatusOK:
		return nil
	case res.StatusCode == http.StatusLoopDetected && res.Header.Get(Header) == me:
		return errSelf
	case res.StatusCode == http.StatusServiceUnavailable:
		return errStarting
	case res.StatusCode == http.StatusNotFound:
		return errUnknown
	}
	return fmt.Errorf("it answers %s", res.Status)
}

// isStarting reports whether err is that of a peer that is not up, while this server has just been started.
func (p *Peers) isStarting(err error) bool {
	var op *net.OpError // a name that does not resolve has one as well
	return time.Since(p.since) < startGrace && (errors.Is(err, errStarting) || errors.As(err, &op) && op.Op == "dial")
}

// dropSelf removes a peer that is this server.
func (p *Peers) dropSelf(url string) {
	p.RemovePeer(url)
	p.cfg.Log.Info().Str("peer", redact.URL(url)).Msg("a peer is this server itself, and is not asked again")
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
func (p *Peers) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.status
	st.Errors = append([]string{}, st.Errors...)
	skipped := make(map[string]int, len(st.Skipped))
	for reason, n := range st.Skipped {
		skipped[reason] = n
	}
	st.Skipped = skipped
	if p.loading != nil {
		now := p.loading.Progress()
		st.Blocks, st.Bytes = now.Blocks, now.Bytes
	}
	return st
}

// updateStatus lets change change the status.
func (p *Peers) updateStatus(change func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
}

// setLoading sets the snapshot that is being loaded, nil for none.
func (p *Peers) setLoading(l *history.Loading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loading = l
}
