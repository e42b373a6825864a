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

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/history"
)

// longest bounds the time of one snapshot: meanwhile other snapshots wait, and events copy the pieces that they
// change. The lock of a deployment lasts as long, so that it needs no renewal.
const longest = time.Minute

// Reasons why a snapshot is not in the store.
const (
	failedStore = "store" // the store does not take it
	failedRoom  = "too_big"
	failedLease = "lease" // the lock has ended, and another replica may have it
)

var failures = []string{failedStore, failedRoom, failedLease}

var (
	errRoom  = &failure{failedRoom, errors.New("it has more bytes than store.shelf_bytes allows for all")}
	errLock  = &failure{failedLease, errors.New("another replica has taken the lease over")}
	errTaken = errors.New("another replica writes it")
)

// locking takes the lock of a deployment, unless its manifest has changed since the writer read it. KEYS[4]: the lock.
// ARGV: deployment, token, time in ms after which the lock ends, manifest that the writer knows. It returns the clock
// in ms, 0 without the lock.
var locking = redis.NewScript(`
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[4] then return 0 end
if not redis.call('SET', KEYS[4], ARGV[2], 'NX', 'PX', ARGV[3]) then return 0 end
local clock = redis.call('TIME')
return clock[1] * 1000 + math.floor(clock[2] / 1000)
`)

// unlocking gives the lock of a deployment back. ARGV: deployment, token.
var unlocking = redis.NewScript(`
if redis.call('GET', KEYS[4]) == ARGV[2] then redis.call('DEL', KEYS[4]) end
return 1
`)

// committing adds a manifest and gives the lock back. It takes down what has ended, and then the oldest until the rest
// has room. ARGV: deployment, token, manifest, moment, bytes, TTL in ms, bytes of all. It returns the manifests that
// it took down, false without the lock.
var committing = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('GET', KEYS[4]) ~= ARGV[2] then return false end
redis.call('DEL', KEYS[4])
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

// upload is a snapshot on its way to the store. It is an io.Writer for history.Write.
type upload struct {
	k          *Keeper
	ctx        context.Context
	deployment string // its name in keys
	token      string // of the lock
	m          manifest
	chunk      []byte // not written yet
	sum        hash.Hash
}

// writeDeployment writes the snapshot of a deployment, whose manifest the store is known to have, nil for none. It
// returns errTaken if another replica writes it, or has since the manifest was read.
func (k *Keeper) writeDeployment(ctx context.Context, d ingest.HeldDeployment, known *manifest) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	before := ""
	if known != nil {
		before = known.text
	}
	u := &upload{k: k, ctx: ctx, deployment: keyName(d.Deployment), token: rand.Text(), sum: sha256.New()}
	at, err := u.run(locking, longest.Milliseconds(), before).Int64()
	switch {
	case err != nil:
		return err
	case at == 0:
		return errTaken
	}
	u.m = manifest{
		ID: rand.Text(), Tenant: d.Tenant, Model: d.Model, BlockSize: d.BlockSize, At: at, Replica: k.cfg.Group.ID(), Synced: d.Synced,
	}
	began := time.Now()
	if err := u.writeAll(d); err != nil {
		u.undo()
		return err
	}
	k.cfg.Log.Debug().Str("model", d.Model).Str("tenant", d.Tenant).Int("blocks", u.m.Blocks).Int64("bytes", u.m.Bytes).
		Dur("took", time.Since(began)).Msg("snapshot put on the shelf")
	k.updateStatus(func(st *Status) { st.Written, st.Error = st.Written+1, "" })
	return nil
}

// writeAll writes the chunks, then the manifest, and removes the chunks of those that the manifest replaces.
func (u *upload) writeAll(d ingest.HeldDeployment) error {
	k := u.k
	sum, err := history.Write(u, k.cfg.Conductor, &d.Deployment, time.UnixMilli(u.m.At), k.cfg.Key.Seal)
	if err == nil && len(u.chunk) > 0 {
		err = u.flush()
	}
	if err != nil {
		return err
	}
	u.m.Blocks, u.m.Digest = sum.Blocks, hex.EncodeToString(u.sum.Sum(nil))
	text, err := json.Marshal(&u.m)
	if err != nil {
		return err
	}
	gone, err := u.run(committing, text, u.m.At, u.m.Bytes, k.cfg.TTL.Milliseconds(), k.cfg.MaxBytes).StringSlice()
	switch {
	case errors.Is(err, redis.Nil):
		return errLock
	case err != nil:
		return err
	}
	for i := 0; i+1 < len(gone); i += 2 {
		var old manifest
		if json.Unmarshal([]byte(gone[i+1]), &old) == nil {
			k.removeChunks(u.ctx, gone[i], old.ID, old.Chunks)
		}
		if gone[i] != u.deployment {
			k.updateStatus(func(st *Status) { st.Evicted++ })
		}
	}
	return nil
}

// undo removes what was written, and lets another replica begin at once.
func (u *upload) undo() {
	u.ctx = context.WithoutCancel(u.ctx)
	_ = u.run(unlocking).Err() // the lock ends anyway
	u.k.removeChunks(u.ctx, u.deployment, u.m.ID, u.m.Chunks)
}

// run runs a script about the deployment.
func (u *upload) run(script *redis.Script, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(u.ctx, u.k.store().Timeout())
	defer cancel()
	keys := append(u.k.keys(), u.k.lockKey(u.deployment))
	return script.Run(ctx, u.k.store().Client(), keys, append([]any{u.deployment, u.token}, args...)...)
}

// Write implements io.Writer.
func (u *upload) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if u.chunk == nil {
			u.chunk = make([]byte, 0, u.k.cfg.Chunk)
		}
		room := min(cap(u.chunk)-len(u.chunk), len(p)-n)
		u.chunk = append(u.chunk, p[n:n+room]...)
		if n += room; len(u.chunk) == cap(u.chunk) {
			if err := u.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// flush writes the chunk.
func (u *upload) flush() error {
	if u.m.Bytes += int64(len(u.chunk)); u.m.Bytes > u.k.cfg.MaxBytes {
		return errRoom
	}
	ctx, cancel := context.WithTimeout(u.ctx, u.k.store().Timeout())
	defer cancel()
	key := u.k.chunkKey(u.deployment, u.m.ID, u.m.Chunks)
	u.m.Chunks++ // also of one that was written and not confirmed: undo removes it
	if err := u.k.store().Client().Set(ctx, key, u.chunk, u.k.cfg.TTL).Err(); err != nil {
		return err
	}
	u.sum.Write(u.chunk)
	u.chunk = u.chunk[:0]
	return nil
}
