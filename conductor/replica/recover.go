package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
)

const (
	// patience is how long a peer may take for pace bytes: walking a large index takes
	// time.
	patience = 30 * time.Second
	pace     = 16 << 10
	// progressEvery is the pause between lines of the log about a recovery.
	progressEvery = 5 * time.Second
	// subscribing is how long a subscription takes to be in force, at most.
	subscribing = time.Second
)

// Recover fills c, whose gate is closed, from the first peer that gives a whole snapshot. After
// the peers of Config it asks others. If a peer fails in the middle, its blocks are dropped before
// the next one is asked. Blocks of sources without a registration expire after ttl. Recover
// returns when ctx ends, and at once without a peer.
func (r *Replica) Recover(ctx context.Context, c *conductor.Conductor, ttl time.Duration, others ...string) Status {
	peers := slices.Concat(r.cfg.Peers, others)
	if len(peers) == 0 {
		return r.Status()
	}
	start, log := time.Now(), &r.cfg.Log
	r.note(func(st *Status) { *st = Status{State: Running} })
	select {
	case <-time.After(subscribing):
	case <-ctx.Done():
	}
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
		err := r.fetch(ctx, peer, in)
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
		log.Warn().Str("peer", peer).Err(err).Msg("a peer gave no whole snapshot")
		r.note(func(st *Status) { st.Blocks = 0; st.Errors = append(st.Errors, fmt.Sprintf("%s: %v", peer, err)) })
	}
	r.note(func(st *Status) { st.State = Failed })
	if ctx.Err() == nil {
		log.Error().Int("peers", len(peers)).Msg("no peer could be recovered from")
	}
	return r.Status()
}

// errUnknown is the answer of a peer that does not know a format, or has no such snapshot.
var errUnknown = errors.New("it answers 404 Not Found")

// fetch brings back the snapshot of one peer, in the first format that it knows.
func (r *Replica) fetch(ctx context.Context, peer string, in *conductor.Recovery) (err error) {
	for i := range r.cfg.Formats {
		if err = r.fetchIn(ctx, peer, &r.cfg.Formats[i], in); !errors.Is(err, errUnknown) {
			break
		}
	}
	return err
}

// Fetch brings back the snapshot of one peer in one format. After an error the recovery is to be
// undone. Client is one of PlainClient.
func Fetch(ctx context.Context, client *http.Client, peer string, format Format, in *conductor.Recovery) error {
	r := New(Config{Client: client, Log: zerolog.Nop()})
	r.status.Skipped = make(map[string]int)
	return r.fetchIn(ctx, peer, &format, in)
}

// fetchIn brings back the snapshot of one peer in a format, and notes its progress. It gives up a peer that is slower
// than pace bytes in patience.
func (r *Replica) fetchIn(ctx context.Context, peer string, format *Format, in *conductor.Recovery) error {
	logged := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it gave less than %d bytes in %s", pace, patience)) })
	defer silent.Stop()
	from := &download{ctx: ctx, client: r.cfg.Client, url: strings.TrimRight(peer, "/") + format.Path, accept: format.Accept, resumes: format.Resumes}
	res, err := from.open("")
	if err != nil {
		return because(ctx, err)
	}
	defer from.close()
	switch {
	case res.StatusCode == http.StatusNotFound:
		return errUnknown
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", res.Status)
	}
	silent.Reset(patience)
	r.note(func(*Status) {
		r.progress = conductor.Progress{From: conductor.FromPeer, Name: peer, TotalBytes: max(res.ContentLength, 0), Since: time.Now()}
	})
	recent := 0
	read := func(n int) {
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
	err = format.Read(&observedReader{from, read}, res.Header.Get("Content-Type"), in, func(reason string) {
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
	from    io.Reader
	observe func(n int)
}

func (r *observedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.observe(n)
	return n, err
}
