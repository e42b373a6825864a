// Package store keeps snapshots in the store that replicas share, for a replica that has no peer alive. Metrics and
// settings call them the shelf.
//
//	deployment --history.Write--> chunks, each a key with a TTL   (one hash slot a deployment)
//	                              manifest, once all are there    (the slot of the group)
//	manifest --> chunks --history.Read--> history.Loading
//
// Each snapshot is of one deployment, because that is what a replica takes over, and what one hash slot of a cluster
// can hold. A deployment has one manifest, that of its newest snapshot. It names the chunks by the id of the
// snapshot, so that a reader never mixes the chunks of two.
//
// Invariants:
//
//  1. A manifest is written by one script, after all its chunks, and only while its writer has the lock of the
//     deployment. Its chunks outlive it.
//  2. All manifests together claim at most Config.MaxBytes.
//  3. One chunk is in memory, however large a deployment is.
//
// Times are those of the store's clock.
//
// Concurrency: all methods are safe for concurrent use. One goroutine calls Run.
//
// Cost: a look asks the store for all manifests, one round trip. A snapshot costs one round trip for each MiB.
package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
	"example.com/conductor/store"
)

// Config is what a Keeper is made of.
type Config struct {
	Group     *membership.Group
	Conductor *conductor.Conductor
	// Key seals salts; NoKey leaves out what has one.
	Key *history.SealingKey
	// MaxBytes bounds the snapshots of all deployments together.
	MaxBytes int64
	// Interval is the age from which a snapshot is written again, 0 for never. TTL is the age from
	// which it is none any more, at least twice Interval.
	Interval, TTL time.Duration
	// Wanted, if set, says which deployments this replica writes; nil is all that it holds.
	Wanted func(scope.Deployment) bool
	Log    zerolog.Logger
	// Chunk is how many bytes a key holds, chunkBytes if 0.
	Chunk int
}

// chunkBytes is how many bytes a key holds: the store answers no other command while it copies them.
const chunkBytes = 1 << 20

// Keeper writes snapshots of deployments into the store, and reads them back.
type Keeper struct {
	cfg     Config
	moments map[scope.Deployment]time.Time // of the snapshots last seen, or since when there is none; owned by Run

	mu     sync.Mutex
	status Status // guarded by mu
}

// New returns a Keeper. It asks nothing before Run or Restore.
func New(cfg Config) *Keeper {
	cfg.Chunk = cmp.Or(cfg.Chunk, chunkBytes)
	return &Keeper{
		cfg: cfg, moments: make(map[scope.Deployment]time.Time),
		status: Status{Failed: make(map[string]int), LeftOut: make(map[string]int)},
	}
}

// manifest says what a snapshot in the store is.
type manifest struct {
	ID        string `json:"id"` // of the snapshot, in the names of its chunks
	Tenant    string `json:"tenant_id"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	At        int64  `json:"at"` // its moment, in ms since 1970
	Replica   string `json:"replica"`
	Synced    bool   `json:"synced"` // all its sources were
	Bytes     int64  `json:"bytes"`
	Chunks    int    `json:"chunks"`
	Blocks    int    `json:"blocks"`
	Digest    string `json:"sha256"` // of all bytes
	text      string // as the store has it
}

func (m *manifest) deployment() scope.Deployment {
	return scope.Deployment{Tenant: m.Tenant, Model: m.Model, BlockSize: m.BlockSize}
}

// keyName returns the name of a deployment in keys.
func keyName(d scope.Deployment) string {
	return store.Hash("shelf/" + strconv.Itoa(d.BlockSize) + "/" + strconv.Quote(d.Tenant) + "/" + d.Model)
}

// chunkKey is the key of a chunk.
func (k *Keeper) chunkKey(deployment, id string, n int) string {
	return k.store().SpreadKey("shelf/"+deployment, "shelf:"+id+":"+strconv.Itoa(n))
}

func (k *Keeper) store() *store.Store { return k.cfg.Group.Store() }

// keys returns the keys that scripts get: manifests by the name of their deployment, the names by the moments of the
// snapshots, and their bytes.
func (k *Keeper) keys() []string {
	key := k.store().Key
	return []string{key("shelf"), key("shelf:times"), key("shelf:bytes")}
}

// lockKey returns the key of the lock of a deployment. It is in the slot of the other keys of scripts.
func (k *Keeper) lockKey(deployment string) string { return k.store().Key("shelf:lock:" + deployment) }

// checkStore returns why the store is not to be used, nil if it is.
func (k *Keeper) checkStore() error {
	switch st := k.cfg.Group.Status(); {
	case st.Refused:
		return fmt.Errorf("the store is left alone: %s", st.Error)
	case !st.Up:
		return fmt.Errorf("the store is not there: %s", cmp.Or(st.Error, "it has not answered yet"))
	}
	return nil
}

// listing returns the clock of the store in ms, and all manifests.
var listing = redis.NewScript(`
local clock = redis.call('TIME')
return {clock[1] * 1000 + math.floor(clock[2] / 1000), redis.call('HVALS', KEYS[1])}
`)

// readManifests returns the manifests that count, the newest first, and the clock of the store in ms. One
// that no replica can have written counts for nothing.
func (k *Keeper) readManifests(ctx context.Context) (all []manifest, now int64, err error) {
	if err := k.checkStore(); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, k.store().Timeout())
	defer cancel()
	answer, err := listing.Run(ctx, k.store().Client(), k.keys()).Slice()
	if err != nil {
		return nil, 0, err
	}
	if len(answer) != 2 {
		return nil, 0, fmt.Errorf("the store answers with %d values", len(answer))
	}
	now, _ = answer[0].(int64)
	texts, _ := answer[1].([]any)
	malformed := 0
	for _, v := range texts {
		m := manifest{text: fmt.Sprint(v)}
		switch err := json.Unmarshal([]byte(m.text), &m); {
		case err != nil || m.ID == "" || m.Model == "" || m.BlockSize <= 0 || m.Chunks < 0 || m.Bytes < 0:
			malformed++
		case max(now-m.At, m.At-now) < k.cfg.TTL.Milliseconds():
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b manifest) int { return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.ID, b.ID)) })
	k.updateStatus(func(st *Status) {
		st.Snapshots, st.Bytes, st.Malformed = len(all), 0, malformed
		for i := range all {
			st.Bytes += all[i].Bytes
		}
	})
	return all, now, nil
}

// removeChunks deletes chunks, which end anyway.
func (k *Keeper) removeChunks(ctx context.Context, deployment, id string, chunks int) {
	ctx, cancel := context.WithTimeout(ctx, k.store().Timeout())
	defer cancel()
	_, err := k.store().Client().Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range min(chunks, mostChunks) {
			p.Unlink(ctx, k.chunkKey(deployment, id, n))
		}
		return nil
	})
	if err != nil {
		k.cfg.Log.Debug().Err(err).Msg("chunks of an old snapshot stay until their time to live ends")
	}
}

// mostChunks bounds the keys that one manifest makes this replica ask for.
const mostChunks = 1 << 20
