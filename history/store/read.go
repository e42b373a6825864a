package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
)

// Reasons why a snapshot on the shelf was not used.
const (
	leftMissing = "missing" // a chunk is gone
	leftDigest  = "digest"  // the bytes are not those of the manifest
	leftDamaged = "damaged" // they are no snapshot that this program reads, or one of another hash.seed
	leftStore   = "store"   // the store does not give it
)

var leftOut = []string{leftMissing, leftDigest, leftDamaged, leftStore}

var (
	errMissing = errors.New("a chunk is gone")
	errDigest  = errors.New("its bytes are not those of the manifest")
)

// storeError is why the store does not give a chunk.
type storeError struct{ error }

// chunks reads the bytes of a peer. It ends with an error unless they are those of the manifest.
type chunks struct {
	s    *Shelf
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
		if err := c.fetch(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// fetch gets the next chunk.
func (c *chunks) fetch() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.s.store().Timeout())
	defer cancel()
	chunk, err := c.s.store().Client().Get(ctx, c.s.chunkKey(name(c.m.deployment()), c.m.ID, c.next)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return errMissing
	case err != nil:
		return storeError{err}
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

// load brings a snapshot back.
func (s *Shelf) load(ctx context.Context, m *manifest, into *conductor.Recovery) error {
	from := &chunks{s: s, ctx: ctx, m: m, sum: sha256.New()}
	began := time.Now()
	sum, err := history.Read(from, history.Reading{
		Into: into, MaxHead: history.MaxHead, Open: s.cfg.Key.Open, Sources: history.Only(m.deployment()),
		Progress: func(sum history.Summary) {
			s.note(func(st *Status) {
				st.Progress = conductor.Progress{From: conductor.FromShelf, Name: m.Model, Blocks: into.Blocks, Bytes: sum.Bytes, TotalBytes: m.Bytes, Since: began}
			})
		},
	})
	if err == nil {
		_, err = io.Copy(io.Discard, from) // the digest is behind the last section
	}
	s.note(func(st *Status) { st.Progress = conductor.Progress{} })
	if err == nil {
		s.note(func(st *Status) { st.Loaded += into.Blocks })
		s.cfg.Log.Info().Str("model", m.Model).Str("tenant", m.Tenant).Str("replica", m.Replica).Time("taken", sum.Time).Int("blocks", into.Blocks).
			Int("left_out", sum.LeftOut).Dur("took", time.Since(began)).Msg("recovered from the shelf")
		return nil
	}
	reason := leftDamaged
	switch {
	case errors.Is(err, errMissing):
		reason = leftMissing
	case errors.Is(err, errDigest):
		reason = leftDigest
	case errors.As(err, new(storeError)), ctx.Err() != nil:
		reason = leftStore
	}
	s.note(func(st *Status) { st.LeftOut[reason]++ })
	s.cfg.Log.Warn().Err(err).Str("model", m.Model).Str("tenant", m.Tenant).Str("reason", reason).Msg("a snapshot on the shelf cannot be used")
	if reason == leftMissing || reason == leftDigest {
		ctx, cancel := context.WithTimeout(ctx, s.store().Timeout())
		defer cancel()
		_ = dropping.Run(ctx, s.store().Client(), s.keys(), name(m.deployment()), m.text).Err() // a replica that holds the blocks writes it again then
	}
	return err
}

// tries is how often a snapshot is looked up that was written again while it was read.
const tries = 3

// Load brings the snapshot of a deployment back, and reports whether there is one. After an error
// nothing of it is there.
func (s *Shelf) Load(ctx context.Context, d scope.Deployment, begin func() *conductor.Recovery) (found bool, err error) {
	last := ""
	for range tries {
		all, _, listed := s.list(ctx)
		if listed != nil {
			return false, listed
		}
		m := of(all, d)
		if m == nil || m.ID == last {
			return false, err
		}
		into := begin()
		if err = s.load(ctx, m, into); err == nil {
			into.Done()
			return true, nil
		}
		into.Undo()
		if last = m.ID; !errors.Is(err, errMissing) {
			break
		}
	}
	return false, err
}

// of returns the manifest of a deployment, nil without one.
func of(all []manifest, d scope.Deployment) *manifest {
	for i := range all {
		if all[i].deployment() == d {
			return &all[i]
		}
	}
	return nil
}

// Restore fills a Conductor whose gate is closed with snapshots on the shelf, as far as it
// lacks them. Blocks of sources without a registration expire after ttl. It returns how many blocks
// it brought back.
func (s *Shelf) Restore(ctx context.Context, ttl time.Duration) (blocks int) {
	all, _, err := s.list(ctx)
	if err != nil {
		s.cfg.Log.Warn().Err(err).Msg("the shelf cannot be read")
		return 0
	}
	for i := range all {
		if ctx.Err() != nil {
			break
		}
		d := all[i].deployment()
		if s.cfg.Wanted != nil && !s.cfg.Wanted(d) || s.cfg.Conductor.UnfilledIn(d) == 0 {
			continue
		}
		var into *conductor.Recovery
		found, _ := s.Load(ctx, d, func() *conductor.Recovery { // load says why it fails
			into = s.cfg.Conductor.Recover(ttl)
			into.Origin = conductor.FromShelf
			return into
		})
		if found {
			blocks += into.Blocks
		}
	}
	return blocks
}
