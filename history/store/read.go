package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
)

// Reasons why a snapshot in the store was not used.
const (
	leftMissing = "missing"
	leftDigest  = "digest"
	leftDamaged = "damaged" // it is no snapshot that this program reads, or one of another hash.seed
	leftStore   = "store"   // the store does not give it
)

var leftOut = []string{leftMissing, leftDigest, leftDamaged, leftStore}

var (
	errMissing = &failure{leftMissing, errors.New("a chunk is gone")}
	errDigest  = &failure{leftDigest, errors.New("its bytes are not those of the manifest")}
)

// chunks reads the bytes of a peer. It ends with an error unless they are those of the manifest.
type chunks struct {
	k    *Keeper
	ctx  context.Context
	m    *manifest
	next int
	left []byte // of the chunk before next
	read int64
	sum  hash.Hash
}

// Read implements io.Reader.
func (c *chunks) Read(p []byte) (int, error) {
	for len(c.left) == 0 {
		if c.next == min(c.m.Chunks, mostChunks) {
			if c.read != c.m.Bytes || hex.EncodeToString(c.sum.Sum(nil)) != c.m.Digest {
				return 0, errDigest
			}
			return 0, io.EOF
		}
		if err := c.fetchNext(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// fetchNext gets the next chunk.
func (c *chunks) fetchNext() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.k.store().Timeout())
	defer cancel()
	key := c.k.chunkKey(keyName(c.m.deployment()), c.m.ID, c.next)
	chunk, err := c.k.store().Client().Get(ctx, key).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return errMissing
	case err != nil:
		return &failure{leftStore, err}
	}
	c.next++
	c.read += int64(len(chunk))
	if c.read > c.m.Bytes {
		return errDigest
	}
	c.sum.Write(chunk)
	c.left = chunk
	return nil
}

// dropping takes an unusable manifest down, if it is still the same. ARGV: deployment, manifest.
var dropping = redis.NewScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
`)

// loadManifest loads the snapshot of a manifest. One that is not whole is taken down, so that a replica which holds the
// blocks writes it again.
func (k *Keeper) loadManifest(ctx context.Context, loader *history.Loader, m *manifest) (conductor.Progress, error) {
	var sum history.Summary
	snapshot := history.Snapshot{
		Origin: ingest.FromShelf, Name: m.Model, Bytes: m.Bytes, Slow: "still recovering", Field: "model",
	}
	progress, err := loader.Load(snapshot, func(l *history.Loading) (err error) {
		from := l.Reader(ctx, &chunks{k: k, ctx: ctx, m: m, sum: sha256.New()}, nil)
		sum, err = history.Read(from, history.Reading{
			Into: l.Into, MaxHead: history.MaxHead, Open: k.cfg.Key.Open, Sources: history.Only(m.deployment()),
		})
		if err == nil {
			_, err = io.Copy(io.Discard, from) // the digest is behind the last section
		}
		return err
	})
	if err == nil {
		k.updateStatus(func(st *Status) { st.Loaded += progress.Blocks })
		k.cfg.Log.Info().Str("model", m.Model).Str("tenant", m.Tenant).Str("replica", m.Replica).Time("taken", sum.Time).
			Int("blocks", progress.Blocks).Int("left_out", sum.LeftOut).Dur("took", time.Since(progress.Since)).
			Msg("recovered from the shelf")
		return progress, nil
	}
	reason := reasonOf(err, leftDamaged)
	if ctx.Err() != nil {
		reason = leftStore
	}
	k.updateStatus(func(st *Status) { st.LeftOut[reason]++ })
	k.cfg.Log.Warn().Err(err).Str("model", m.Model).Str("tenant", m.Tenant).Str("reason", reason).
		Msg("a snapshot on the shelf cannot be used")
	if reason == leftMissing || reason == leftDigest {
		ctx, cancel := context.WithTimeout(ctx, k.store().Timeout())
		defer cancel()
		_ = dropping.Run(ctx, k.store().Client(), k.keys(), keyName(m.deployment()), m.text).Err() // it ends anyway
	}
	return conductor.Progress{}, err
}

// tries is how often a snapshot is looked up that was written again while it was read.
const tries = 3

// LoadDeployment implements history.DeploymentPlace.
func (k *Keeper) LoadDeployment(ctx context.Context, loader *history.Loader, d scope.Deployment) (
	progress conductor.Progress, err error,
) {
	last := ""
	for range tries {
		all, _, failed := k.readManifests(ctx)
		if failed != nil {
			return conductor.Progress{}, fmt.Errorf("the shelf: %w", failed)
		}
		m := manifestOf(all, d)
		if m == nil || m.ID == last {
			break
		}
		if progress, err = k.loadManifest(ctx, loader, m); err == nil {
			return progress, nil
		}
		if last = m.ID; !errors.Is(err, errMissing) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("the shelf: %w", err)
	}
	return conductor.Progress{}, err
}

// manifestOf returns the manifest of a deployment, nil without one.
func manifestOf(all []manifest, d scope.Deployment) *manifest {
	for i := range all {
		if all[i].deployment() == d {
			return &all[i]
		}
	}
	return nil
}

// Restore implements history.Place: it loads the snapshots of all deployments whose sources have no blocks yet, and
// which this replica serves.
func (k *Keeper) Restore(ctx context.Context, loader *history.Loader) {
	all, _, err := k.readManifests(ctx)
	if err != nil {
		k.cfg.Log.Warn().Err(err).Msg("the shelf cannot be read")
		return
	}
	for i := range all {
		if ctx.Err() != nil {
			break
		}
		d := all[i].deployment()
		if k.cfg.Wanted != nil && !k.cfg.Wanted(d) || k.cfg.Conductor.Sources().Snapshots().UnfilledIn(d) == 0 {
			continue
		}
		_, _ = k.LoadDeployment(ctx, loader, d) // it has logged why it failed
	}
}
