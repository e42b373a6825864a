package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
)

const (
	// patience is how long a peer may take for pace bytes: walking a large index takes
	// time.
	patience = 30 * time.Second
	pace     = 16 << 10
	// dumpRoom is how many bytes a peer may send for each byte that the indexes may take. A block takes some
	// 20 bytes in an index, and 120 in a dump for each of its holders; in a snapshot it takes 17.
	dumpRoom = 32
	// progressEvery is the pause between lines of the log about a recovery.
	progressEvery = 5 * time.Second
	// subscribing is how long a subscription takes to be in force, at most.
	subscribing = time.Second
	// startGrace is how long after the start of this server a peer that cannot be reached, or is starting itself, is
	// no reason to warn: replicas of a StatefulSet start together, and their names resolve late.
	startGrace = 2 * time.Minute
)

// InAll is how long peers may take together: events queue meanwhile, and engines drop messages beyond their queues.
// A peer has half of the time that is left, so that one which never ends leaves time for the next.
// Five minutes of 1 Gbit/s are the snapshot of 2 billion blocks.
const InAll = 10 * time.Minute

// Recover fills c, whose gate is closed, from the first peer that gives a whole snapshot. After
// the peers of Config it asks others. If a peer fails in the middle, its blocks are dropped before
// the next one is asked. Blocks of sources without a registration expire after ttl. Recover
// returns when ctx ends, and at once without a peer.
func (r *Peers) Recover(ctx context.Context, c *conductor.Conductor, ttl time.Duration, others ...string) Status {
	peers := slices.Concat(r.cfg.Peers, others)
	if len(peers) == 0 {
		return r.Status()
	}
	start, log := time.Now(), &r.cfg.Log
	end := start.Add(InAll)
	r.note(func(st *Status) { *st = Status{State: Running} })
	select {
	case <-time.After(subscribing):
	case <-ctx.Done():
	}
	asked, away := 0, 0 // peers that gave no snapshot, and those of them that are not up
	for _, peer := range peers {
		if ctx.Err() != nil {
			break
		}
		r.note(func(st *Status) {
			st.Peer, st.Blocks, st.Bytes, st.Skipped = peer, 0, 0, map[string]int{}
			r.progress = conductor.Progress{From: conductor.FromPeer, Name: peer, Since: time.Now()}
		})
		log.Info().Str("peer", peer).Msg("recovering from a peer")
		in := c.Recover(ttl)
		err := r.fetch(ctx, peer, time.Until(end)/2, in)
		r.note(func(st *Status) { st.Seconds = time.Since(start).Seconds() })
		if err == nil {
			in.Done()
			r.note(func(st *Status) {
				st.State = Done
				if in.Refused > 0 {
					st.Skipped[SkipRefused] = in.Refused
				}
			})
			st := r.Status()
			log.Info().Str("peer", peer).Int("blocks", st.Blocks).Int64("bytes", st.Bytes).Interface("skipped", st.Skipped).
				Float64("seconds", st.Seconds).Msg("recovered from a peer")
			return st
		}
		in.Undo()
		if errors.Is(err, errSelf) {
			r.dropSelf(peer)
			continue
		}
		if asked++; r.excused(err) {
			away++
			log.Info().Str("peer", peer).Err(err).Msg("a peer is not up yet")
		} else {
			log.Warn().Str("peer", peer).Err(err).Msg("a peer gave no whole snapshot")
		}
		r.note(func(st *Status) { st.Blocks = 0; st.Errors = append(st.Errors, fmt.Sprintf("%s: %v", peer, err)) })
	}
	switch {
	case ctx.Err() != nil:
		r.note(func(st *Status) { st.State = Failed })
	case asked == 0: // the only peer is this server
		r.note(func(st *Status) { *st = Status{State: None} })
	case asked == away:
		r.note(func(st *Status) { st.State = Failed })
		log.Info().Int("peers", asked).Msg("no peer is up yet: this server starts without their blocks")
	default:
		r.note(func(st *Status) { st.State = Failed })
		log.Error().Int("peers", asked).Msg("no peer could be recovered from")
	}
	return r.Status()
}

var (
	// errSelf is the answer of this server to itself.
	errSelf = errors.New("it is this server itself")
	// errStarting is the answer of a peer that recovers, or has too much to do.
	errStarting = errors.New("it answers 503 Service Unavailable: it is starting itself, or is busy")
)

// refused returns the error for an answer that has no snapshot and no digests, nil for status 200.
func (r *Peers) refused(res *http.Response) error {
	switch {
	case res.StatusCode == http.StatusOK:
		return nil
	case res.StatusCode == http.StatusLoopDetected && res.Header.Get(Header) == r.me:
		return errSelf
	case res.StatusCode == http.StatusServiceUnavailable:
		return errStarting
	}
	return fmt.Errorf("it answers %s", res.Status)
}

// excused reports whether err is that of a peer that is not up, while this server has just been started.
func (r *Peers) excused(err error) bool {
	var op *net.OpError // a name that does not resolve has one as well
	return time.Since(r.since) < startGrace && (errors.Is(err, errStarting) || errors.As(err, &op) && op.Op == "dial")
}

// dropSelf removes a peer that is this server.
func (r *Peers) dropSelf(peer string) {
	r.RemovePeer(peer)
	r.cfg.Log.Info().Str("peer", peer).Msg("a peer is this server itself, and is not asked again")
}

// errUnknown is the answer of a peer that does not know a format, or has no such snapshot.
var errUnknown = errors.New("it answers 404 Not Found")

// fetch brings back the snapshot of one peer, in the first format that it knows.
func (r *Peers) fetch(ctx context.Context, peer string, within time.Duration, in *conductor.Recovery) (err error) {
	for i := range r.cfg.Formats {
		if err = r.fetchIn(ctx, peer, within, &r.cfg.Formats[i], in); !errors.Is(err, errUnknown) {
			break
		}
	}
	return err
}

// Fetch brings back the snapshot of one peer in one format, which may take some time in all. After an
// error the recovery is to be undone. Client is one of PlainClient.
func Fetch(ctx context.Context, client *http.Client, peer string, within time.Duration, format Format, in *conductor.Recovery) error {
	r := New(Config{Client: client, Log: zerolog.Nop()})
	r.status.Skipped = make(map[string]int)
	return r.fetchIn(ctx, peer, within, &format, in)
}

// fetchIn brings back the snapshot of one peer in a format, and notes its progress. It gives up a peer that is slower
// than pace bytes in patience, does not end within some time, or sends more than an index here can have.
func (r *Peers) fetchIn(ctx context.Context, peer string, within time.Duration, format *Format, in *conductor.Recovery) error {
	logged := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it gave less than %d bytes in %s", pace, patience)) })
	defer silent.Stop()
	endless := time.AfterFunc(within, func() { cancel(fmt.Errorf("it did not end within %s", within.Round(time.Second))) })
	defer endless.Stop()
	most, room := in.Room(), int64(math.MaxInt64)
	if most > 0 {
		room = dumpRoom * most
	}
	from := &download{ctx: ctx, client: r.cfg.Client, me: r.me, url: strings.TrimRight(peer, "/") + format.Path, accept: format.Accept, resumes: format.Resumes}
	res, err := from.open("")
	if err != nil {
		return because(ctx, err)
	}
	defer from.close()
	if res.StatusCode == http.StatusNotFound {
		return errUnknown
	}
	if err := r.refused(res); err != nil {
		return err
	}
	if res.ContentLength > room {
		return fmt.Errorf("it announces %d bytes, more than %d for each byte of index.max_bytes_total", res.ContentLength, dumpRoom)
	}
	silent.Reset(patience)
	r.note(func(*Status) {
		r.progress = conductor.Progress{From: conductor.FromPeer, Name: peer, TotalBytes: max(res.ContentLength, 0), Since: time.Now()}
	})
	recent, total := 0, int64(0)
	read := func(n int) {
		if total += int64(n); total > room {
			cancel(fmt.Errorf("it sent more than %d bytes for each byte of index.max_bytes_total", dumpRoom))
		}
		if recent += n; recent >= pace {
			silent.Reset(patience)
			recent = 0
		}
		r.note(func(st *Status) {
			st.Bytes += int64(n)
			st.Blocks = in.Blocks
			r.progress.Bytes, r.progress.Blocks = st.Bytes, st.Blocks
		})
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			p := r.Progress()
			line := r.cfg.Log.Info().Str("peer", peer).Int("blocks", p.Blocks).Int64("bytes", p.Bytes).Float64("blocks_per_second", p.Rate(logged))
			if left := p.Left(logged); left >= 0 {
				line = line.Int64("of_bytes", p.TotalBytes).Float64("seconds_left", left.Seconds())
			}
			line.Msg("still recovering")
		}
	}
	err = format.Read(&observedReader{ctx, from, read}, res.Header.Get("Content-Type"), in, func(reason string) {
		r.note(func(st *Status) { st.Skipped[reason]++ })
	})
	read(0)
	return because(ctx, err)
}

// because returns the cause of the end of ctx in place of the error that followed from it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// observedReader calls observe with the bytes of each read.
type observedReader struct {
	ctx     context.Context
	from    io.Reader
	observe func(n int)
}

// Read implements io.Reader. It fails once the context ends, even where bytes are there already.
func (r *observedReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.from.Read(p)
	r.observe(n)
	return n, err
}
