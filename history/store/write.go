package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/conductor"
	"example.com/conductor/history"
)

const (
	// lease is how long the one who writes a deployment may be silent.
	lease = 30 * time.Second
	// longest bounds the time of one snapshot: meanwhile other snapshots wait, and events copy the
	// pieces that they change.
	longest = time.Minute
)

// Reasons why a snapshot is not on the shelf.
const (
	failedStore = "store"   // the store does not take it
	failedRoom  = "too_big" // it has more than MaxBytes
	failedLease = "lease"   // another replica has taken the lease over
)

var failures = []string{failedStore, failedRoom, failedLease}

var (
	errRoom  = errors.New("it has more bytes than store.shelf_bytes allows for all")
	errLease = errors.New("another replica has taken the lease over")
	errTaken = errors.New("another replica writes it")
)

// taking gives the lease of a deployment out. ARGV: deployment, manifest that the writer knows,
// token, lease in ms. It returns the clock in ms, 0 for no lease.
var taking = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
local held = redis.call('HGET', KEYS[4], ARGV[1])
if held and tonumber(string.match(held, '^%d+') or '0') > now then return 0 end
redis.call('HSET', KEYS[4], ARGV[1], (now + ARGV[4]) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[4], 2 * ARGV[4])
return now
`)

// holding renews a lease, or gives it back where its time is 0. ARGV: deployment, token, lease in
// ms. It returns 0 if another one has the lease.
var holding = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HGET', KEYS[4], ARGV[1])
if not held or string.match(held, ' (.*)$') ~= ARGV[2] then return 0 end
if ARGV[3] == '0' then redis.call('HDEL', KEYS[4], ARGV[1]) return 1 end
redis.call('HSET', KEYS[4], ARGV[1], (now + ARGV[3]) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[4], 2 * ARGV[3])
return 1
`)

// committing puts a manifest on the shelf, takes down what has ended, and then the oldest until
// the rest has room. ARGV: deployment, token, manifest, moment, bytes, TTL in ms, bytes of all. It
// returns the manifests that it took down, false if another one has the lease.
var committing = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HGET', KEYS[4], ARGV[1])
if not held or string.match(held, ' (.*)$') ~= ARGV[2] then return false end
redis.call('HDEL', KEYS[4], ARGV[1])
local gone = {}
local function down(name)
	local text = redis.call('HGET', KEYS[1], name)
	if text then gone[#gone + 1] = name; gone[#gone + 1] = text end
	redis.call('HDEL', KEYS[1], name)
	redis.call('ZREM', KEYS[2], name)
	redis.call('HDEL', KEYS[3], name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[6])) do down(name) end
down(ARGV[1])
local all = tonumber(ARGV[5])
for _, bytes in ipairs(redis.call('HVALS', KEYS[3])) do all = all + (tonumber(bytes) or 0) end
while all > tonumber(ARGV[7]) do
	local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
	if not oldest then break end
	all = all - (tonumber(redis.call('HGET', KEYS[3], oldest) or '0') or 0)
	down(oldest)
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[5])
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[6]) end
return gone
`)

// writing is a snapshot on its way to the store.
type writing struct {
	s          *Shelf
	ctx        context.Context
	deployment string // its name in keys
	token      string
	m          manifest
	chunk      []byte // not written yet
	sum        hash.Hash
	renewed    time.Time
}

// write writes the snapshot of a deployment, whose manifest the store is known to have, nil for
// none. It returns errTaken if another replica writes it, or has since the manifest was read.
func (s *Shelf) write(ctx context.Context, d conductor.HeldDeployment, known *manifest) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	w := &writing{s: s, ctx: ctx, deployment: name(d.Deployment), token: rand.Text(), sum: sha256.New(), renewed: time.Now()}
	before := ""
	if known != nil {
		before = known.text
	}
	at, err := w.run(taking, before, w.token, lease.Milliseconds()).Int64()
	switch {
	case err != nil:
		return err
	case at == 0:
		return errTaken
	}
	w.m = manifest{
		ID: rand.Text(), Tenant: d.Tenant, Model: d.Model, BlockSize: d.BlockSize, At: at, Replica: s.cfg.Fleet.ID(), Synced: d.Synced,
	}
	began := time.Now()
	if err := w.all(d); err != nil {
		w.giveBack()
		return err
	}
	s.cfg.Log.Debug().Str("model", d.Model).Str("tenant", d.Tenant).Int("blocks", w.m.Blocks).Int64("bytes", w.m.Bytes).
		Dur("took", time.Since(began)).Msg("snapshot put on the shelf")
	s.note(func(st *Status) { st.Written, st.Error = st.Written+1, "" })
	return nil
}

// all writes the chunks, then the manifest.
func (w *writing) all(d conductor.HeldDeployment) error {
	sum, err := history.WriteOf(w, w.s.cfg.Conductor, &d.Deployment, time.UnixMilli(w.m.At), w.s.cfg.Key.Seal)
	if err == nil && len(w.chunk) > 0 {
		err = w.flush()
	}
	if err != nil {
		return err
	}
	w.m.Blocks, w.m.Digest = sum.Blocks, hex.EncodeToString(w.sum.Sum(nil))
	w.s.note(func(st *Status) { st.Sealed = sum.LeftOut })
	text, err := json.Marshal(&w.m)
	if err != nil {
		return err
	}
	gone, err := w.run(committing, w.token, text, w.m.At, w.m.Bytes, w.s.cfg.TTL.Milliseconds(), w.s.cfg.MaxBytes).StringSlice()
	switch {
	case errors.Is(err, redis.Nil):
		return errLease
	case err != nil:
		return err
	}
	for i := 0; i+1 < len(gone); i += 2 {
		var old manifest
		if json.Unmarshal([]byte(gone[i+1]), &old) == nil {
			w.s.remove(w.ctx, gone[i], old.ID, old.Chunks)
		}
		if gone[i] != w.deployment {
			w.s.note(func(st *Status) { st.Evicted++ })
		}
	}
	return nil
}

// giveBack undoes what was written, and lets another replica begin at once.
func (w *writing) giveBack() {
	w.ctx = context.WithoutCancel(w.ctx)
	_ = w.run(holding, w.token, 0).Err() // it ends anyway
	w.s.remove(w.ctx, w.deployment, w.m.ID, w.m.Chunks)
}

// run runs a script about the deployment.
func (w *writing) run(script *redis.Script, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(w.ctx, w.s.store().Timeout())
	defer cancel()
	return script.Run(ctx, w.s.store().Client(), w.s.keys(), append([]any{w.deployment}, args...)...)
}

// Write implements io.Writer.
func (w *writing) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if w.chunk == nil {
			w.chunk = make([]byte, 0, w.s.cfg.Chunk)
		}
		room := min(cap(w.chunk)-len(w.chunk), len(p)-n)
		w.chunk = append(w.chunk, p[n:n+room]...)
		if n += room; len(w.chunk) == cap(w.chunk) {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// flush writes the chunk.
func (w *writing) flush() error {
	w.m.Bytes += int64(len(w.chunk))
	if w.m.Bytes > w.s.cfg.MaxBytes {
		return errRoom
	}
	if time.Since(w.renewed) > lease/3 {
		held, err := w.run(holding, w.token, lease.Milliseconds()).Int64()
		if err != nil {
			return err
		}
		if held == 0 {
			return errLease
		}
		w.renewed = time.Now()
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.s.store().Timeout())
	defer cancel()
	key := w.s.chunkKey(w.deployment, w.m.ID, w.m.Chunks)
	w.m.Chunks++ // also of one that was written and not confirmed: giveBack removes it
	if err := w.s.store().Client().Set(ctx, key, w.chunk, w.s.cfg.TTL).Err(); err != nil {
		return err
	}
	w.sum.Write(w.chunk)
	w.chunk = w.chunk[:0]
	return nil
}
