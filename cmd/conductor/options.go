package main

import (
	"fmt"
	"math"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/config"
	"kvconductor/events"
	"kvconductor/events/objectkey"
	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
	"kvconductor/events/zmq"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/internal/memory"
)

// memo begins the memo of engine digests, if there is to be one.
func memo(loaded *config.Loaded) (*hash.Memo, error) {
	if loaded.Config.Hash.MemoBytes == 0 {
		return nil, nil
	}
	m, err := hash.NewMemo(loaded.Config.Hash.MemoBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: hash.memo_bytes: %w", loaded.Place("hash.memo_bytes"), err)
	}
	return m, nil
}

// engineSnapshots is how many engines are asked for a snapshot at once. Each reply may take
// stream.snapshot_bytes of memory, and costs the engine a second.
const engineSnapshots = 4

// frameRoom is what topic and sequence frames may take next to the payload.
const frameRoom = 64 << 10

// newSockets returns the sockets of all sources. They and the queues of the streams
// share one bound of memory.
func newSockets(cfg config.Config) *zmq.Sockets {
	waiting := cfg.Stream.QueueBytesTotal
	if cfg.Memory.Limit != config.Off {
		waiting = memory.Bound(waiting)
	}
	return &zmq.Sockets{Rank: wire.Rank, Transport: zmq.Transport{
		MaxMessage: int(cfg.Limits.MaxPayload) + frameRoom,
		Heartbeat:  heartbeat(cfg.Stream.Heartbeat),
		Memory:     payload.NewMemory(waiting),
	}}
}

// conductorOptions translates the configuration.
func conductorOptions(cfg config.Config, sockets *zmq.Sockets, allowed *reaching, log zerolog.Logger) conductor.Options {
	copies := index.CopyCount
	if cfg.Stream.Copies == config.Set {
		copies = index.CopySet
	}
	completeness := objectkey.All
	if cfg.Pool.Completeness == config.Any {
		completeness = objectkey.Any
	}
	limits := wire.DefaultLimits
	limits.MaxPayload = int(cfg.Limits.MaxPayload)
	parts := limits
	parts.MaxPayload = int(cfg.Stream.SnapshotBytes)
	return conductor.Options{
		HashSeed:         cfg.Hash.Seed,
		Copies:           copies,
		MaxSources:       cfg.Limits.MaxSources,
		MaxOrphans:       cfg.Limits.MaxOrphans,
		TTL:              cfg.Index.TTL,
		MaxBytes:         int(indexBytes(cfg.Index.MaxBytes)),
		MaxBytesTotal:    indexBytes(cfg.Index.MaxBytesTotal),
		MaxTokenID:       maxTokenID(cfg.Limits),
		SaltedOnly:       cfg.Privacy.SaltedOnly,
		MaxContexts:      cfg.Limits.MaxContexts,
		KeepClientHashes: cfg.Index.LocalHashes,
		SmallPages:       !cfg.Index.HugePages,
		Completeness:     completeness,
		RecallBytes:      cfg.Index.RecallBytes,
		RemovalsBytes:    int(cfg.Index.RemovalsBytes),
		PoolBytes:        cfg.Pool.MaxBytes,
		SilentAfter:      cfg.Doctor.SilentAfter,
		MinSynced:        cfg.Ready.MinSources,
		Log:              log,
		Transport: func(r conductor.Registration, static bool) stream.Transport {
			rules := allowed.get()
			if static {
				rules = nil // who writes the configuration may read the network
			}
			return sockets.For(zmq.Claim{Pod: r.Instance, Model: r.Model, Rank: r.Rank}, rules)
		},
		Reaches: func(endpoint string) error { return zmq.Reaches(allowed.get(), endpoint) },
		Stream: stream.Config{
			ReplayTimeout: cfg.Stream.ReplayTimeout,
			StaleAfter:    cfg.Stream.StaleAfter,
			Queue:         cfg.Stream.Queue,
			QueueBytes:    int(cfg.Stream.QueueBytes),
			Memory:        sockets.Memory,
			// The policies have the same names in both rooms.
			OnUnrecoverableGap: cfg.Stream.OnUnrecoverableGap,
			Decode:             func(batch []byte) (events.Batch, error) { return wire.Decode(batch, limits) },
			Replays:            stream.NewLimiter(cfg.Stream.ReplayConcurrency),
			SnapshotTimeout:    cfg.Stream.SnapshotTimeout,
			SnapshotBytes:      int(cfg.Stream.SnapshotBytes),
			DecodePart:         func(part []byte) (events.Batch, error) { return wire.Decode(part, parts) },
			Requests:           stream.NewLimiter(engineSnapshots),
		},
	}
}

// indexBytes is the bound of one index, or of all, that a setting says, 0 for none.
func indexBytes(setting int64) int64 {
	if setting == config.AutoSize {
		return memory.Fraction(2, 0)
	}
	return setting
}

// maxTokenID is the largest token id, 0 for no bound.
func maxTokenID(limits config.Limits) uint32 { return uint32(min(limits.MaxTokenID, math.MaxUint32)) }

// heartbeat is the configured pause between heartbeats as the transport takes it,
// for which 0 is its default.
func heartbeat(pause time.Duration) time.Duration {
	if pause == 0 {
		return -1
	}
	return pause
}

// registration is a configured source as the registry takes it.
func registration(s config.Source) conductor.Registration {
	return conductor.Registration{
		Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, SnapshotEndpoint: s.SnapshotEndpoint, Type: s.Type, Model: s.ModelName, Lora: s.LoraName,
		Tenant: s.TenantID, Instance: s.InstanceID, BlockSize: max(s.BlockSize, 0), Rank: s.DPRank, Salt: s.AdditionalSalt, TTL: s.TTL, MediaTTL: s.MediaTTL,
		Serves: s.Serves, Copies: s.Copies, Owned: s.Owned, Clear: s.Clear, MayAnnounce: s.MayAnnounce,
		Profile: conductor.HashProfile(s.HashProfile), Sequence: s.Sequence,
	}
}
