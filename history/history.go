// Package history brings a restarted server back to what it knew. The history of a source is the newest snapshot of it
// plus what its engine replays behind the snapshot. A snapshot is what a server holds at one moment, as bytes: its
// sources, each with the batch that it had applied last, and their blocks.
//
//	server --Write--> bytes --> history/file, history/peer, history/store   (places)
//	                              | Restore, in this order
//	                              v
//	server <--Read-- bytes <-- Loader, which tells its Progress
//
// docs/formats.md describes the bytes, which are the same in all places.
//
// Invariants:
//
//  1. A snapshot is loaded whole or not at all: after an error nothing of it is left.
//  2. A reader believes no length, and takes nothing of a section whose checksum does not fit. It passes over sections
//     of unknown kinds, so that a newer version of the same format can be read.
//  3. Of a source one recovery at a time brings blocks back. Takeovers of deployments wait for the recovery of the start.
//  4. A salt, or what would help to guess one, is written only sealed, unless the reader is a peer.
//
// Concurrency: Read and Write may run at the same time for different streams. A Loader and a Takeover are safe for
// concurrent use.
//
// Cost: 16 to 18 bytes a block. Events wait for the pieces that they change while a snapshot is written, and not for
// the disk or the network. A reader keeps the names of sources and contexts in memory, and one section of blocks.
package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
)

// Place is where a server looks for snapshots when it starts: a directory of its own, its peers, the store.
type Place interface {
	// Restore gives the loader the snapshots that the place has, the best first, until one was loaded whole or
	// ctx ends. It logs why the others were not.
	Restore(ctx context.Context, loader *Loader)
}

// Recover fills the sources of a server whose gate is closed. It reads the server's own snapshots if own is not nil.
// Then it asks the other places in order, for as long as a registered source has no blocks from a snapshot yet.
func Recover(ctx context.Context, loader *Loader, own Place, others ...Place) {
	if own != nil {
		own.Restore(ctx, loader)
	}
	for _, place := range others {
		if loader.Conductor.Sources().Snapshots().Unfilled() > 0 {
			place.Restore(ctx, loader)
		}
	}
}

// Loader loads snapshots into one server, whichever place they come from. A snapshot is loaded whole or not at all.
//
// All methods are safe for concurrent use.
type Loader struct {
	Conductor *conductor.Conductor
	// TTL is how long the blocks of a source stay if nobody registers it; 0 is for ever.
	TTL time.Duration
	// Refill replaces the blocks of a source without a registration that an earlier snapshot has filled.
	Refill bool
	Log    zerolog.Logger

	mu      sync.Mutex
	current *Loading // the one that began last, nil if it has ended; guarded by mu
}

// Snapshot describes a snapshot that a place has.
type Snapshot struct {
	// Origin is conductor.FromSnapshot, FromPeer or FromShelf. The sources that the snapshot fills show it.
	Origin string
	// Name is that of the file, the URL of the peer or the model.
	Name string
	// Bytes is the size of the snapshot, 0 if it is not known.
	Bytes int64
	// Slow is the line of the log, every five seconds, about a snapshot that is not loaded yet. It names the
	// snapshot in the field Field.
	Slow, Field string
}

// progressEvery is the pause between two lines of the log about one snapshot.
const progressEvery = 5 * time.Second

// Loading is a snapshot that is being loaded.
type Loading struct {
	// Into takes the sources and blocks.
	Into *ingest.Recovery

	loader   *Loader
	snapshot Snapshot
	logged   time.Time

	mu       sync.Mutex
	progress conductor.Progress // guarded by mu
}

// Load lets read bring one snapshot back into loading.Into, all of it or, if read returns an error, nothing. It
// returns how far read came; after an error the blocks are 0. It calls read again if other sources begin to store blocks
// beside those of the snapshot. A broken invariant costs this snapshot and nothing else.
func (l *Loader) Load(snapshot Snapshot, read func(loading *Loading) error) (conductor.Progress, error) {
	progress, err := l.loadOnce(snapshot, false, read)
	if errors.Is(err, index.ErrOthers) {
		progress, err = l.loadOnce(snapshot, true, read)
	}
	return progress, err
}

// loadOnce is Load. beside is that of ingest.Recovery.
func (l *Loader) loadOnce(snapshot Snapshot, beside bool, read func(loading *Loading) error) (conductor.Progress, error) {
	now := time.Now()
	loading := &Loading{
		Into: l.Conductor.Sources().Snapshots().Recover(l.TTL), loader: l, snapshot: snapshot, logged: now,
		progress: conductor.Progress{From: snapshot.Origin, Name: snapshot.Name, TotalBytes: snapshot.Bytes, Since: now},
	}
	loading.Into.Origin, loading.Into.Refill, loading.Into.Beside = snapshot.Origin, l.Refill, beside
	l.mu.Lock()
	l.current = loading
	l.mu.Unlock()
	err := loading.contain(func() error {
		err := read(loading)
		if loading.advance(0); err == nil {
			loading.Into.Done()
		}
		return err
	})
	if err != nil {
		err = errors.Join(err, loading.contain(func() error { loading.Into.Undo(); return nil }))
	}
	l.mu.Lock()
	if l.current == loading {
		l.current = nil
	}
	l.mu.Unlock()
	loading.progress.Blocks = loading.Into.Blocks // 0 after Undo
	return loading.progress, err
}

// Progress returns how far the load that began last has come, the zero value if it has ended.
func (l *Loader) Progress() conductor.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return conductor.Progress{}
	}
	return l.current.Progress()
}

// Progress returns how far the load has come.
func (l *Loading) Progress() conductor.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.progress
}

// contain makes an error of a panic, and logs it.
func (l *Loading) contain(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.loader.Log.Error().Str(l.snapshot.Field, l.snapshot.Name).Interface("panic", p).Str("stack", string(debug.Stack())).
				Msg("a snapshot is given up, its sources replay")
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	return f()
}

// BeginBytes says that the first bytes of the snapshot come, of total bytes in all, 0 if that is not known. The rate
// counts from here, because a peer may take long to make a snapshot.
func (l *Loading) BeginBytes(total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.TotalBytes, l.progress.Since = total, time.Now()
}

// Reader returns the bytes of from and counts them. It fails once ctx ends, also where more bytes are there already.
// After each read it calls observe with the number of bytes; observe may be nil.
func (l *Loading) Reader(ctx context.Context, from io.Reader, observe func(n int)) io.Reader {
	return &loadingReader{ctx, from, l, observe}
}

type loadingReader struct {
	ctx     context.Context
	from    io.Reader
	loading *Loading
	observe func(n int)
}

// Read implements io.Reader.
func (r *loadingReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	n, err := r.from.Read(p)
	r.loading.advance(n)
	if r.observe != nil {
		r.observe(n)
	}
	return n, err
}

// advance counts bytes that were read, and logs the progress of a slow load. The goroutine of Load calls it.
func (l *Loading) advance(bytes int) {
	l.mu.Lock()
	l.progress.Bytes += int64(bytes)
	l.progress.Blocks = l.Into.Blocks
	p := l.progress
	l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.logged) <= progressEvery {
		return
	}
	l.logged = now
	line := l.loader.Log.Info().Str(l.snapshot.Field, p.Name).Int("blocks", p.Blocks).Int64("bytes", p.Bytes).
		Float64("blocks_per_second", p.Rate(now))
	if left := p.Left(now); left >= 0 {
		line = line.Int64("of_bytes", p.TotalBytes).Float64("seconds_left", left.Seconds())
	}
	line.Msg(l.snapshot.Slow)
}

// DeploymentPlace has snapshots of single deployments: other replicas, the store.
type DeploymentPlace interface {
	// LoadDeployment loads the snapshot of a deployment. It returns the zero value without an error if the place
	// has none, and the reasons why those that it has cannot be used.
	LoadDeployment(ctx context.Context, loader *Loader, d scope.Deployment) (conductor.Progress, error)
}

// Takeover brings the blocks of single deployments to a server that runs. Their sources are registered afterwards,
// and each of them continues behind its mark in the snapshot.
//
// All methods are safe for concurrent use.
type Takeover struct {
	// Loader refills sources, because a deployment may be taken over more than once.
	Loader *Loader

	mu       sync.Mutex
	underWay map[scope.Deployment]chan struct{} // those that are being taken over, closed at the end; guarded by mu
}

// begin waits until the server's own recovery has ended, and nobody else takes the deployment over. end lets the next one
// go on; err is that of ctx.
func (t *Takeover) begin(ctx context.Context, d scope.Deployment) (end func(), err error) {
	if err := t.Loader.Conductor.Sources().Snapshots().AwaitGate(ctx); err != nil {
		return nil, err
	}
	for {
		t.mu.Lock()
		other := t.underWay[d]
		if other == nil {
			if t.underWay == nil {
				t.underWay = make(map[scope.Deployment]chan struct{})
			}
			mine := make(chan struct{})
			t.underWay[d] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.underWay, d)
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// BringDeployment loads what the sources of a deployment hold from the first of the places that has it. Sources that
// are registered already, and run, get nothing. While the server recovers, and while another call brings the same deployment,
// it waits: a source has one recovery at a time. It returns the number of blocks and the origin, conductor.FromPeer or
// FromShelf, or "" if no place has a snapshot; the error says why those that might have had one gave none.
func (t *Takeover) BringDeployment(ctx context.Context, d scope.Deployment, places ...DeploymentPlace) (
	blocks int, origin string, err error,
) {
	end, err := t.begin(ctx, d)
	if err != nil {
		return 0, "", err
	}
	defer end()
	began := time.Now()
	var all []error
	for _, place := range places {
		p, err := place.LoadDeployment(ctx, t.Loader, d)
		switch {
		case ctx.Err() != nil: // maybe just behind the load: nobody registers the sources any more
			t.Loader.Conductor.Sources().Snapshots().DropUnregistered(scope.Shard{Tenant: d.Tenant, Model: d.Model})
			return 0, "", ctx.Err()
		case err == nil && p.From != "":
			from := p.Name
			if p.From == ingest.FromShelf {
				from = "the shelf"
			}
			t.Loader.Log.Info().Str("tenant", d.Tenant).Str("model", d.Model).Int("block_size", d.BlockSize).Str("from", from).
				Int("blocks", p.Blocks).Dur("took", time.Since(began)).Msg("took the blocks of a deployment over")
			return p.Blocks, p.From, nil
		}
		all = append(all, err)
	}
	return 0, "", errors.Join(all...)
}
