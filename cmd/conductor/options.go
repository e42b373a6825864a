package main

import (
	"math"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/config"
	"example.com/conductor/events"
	"example.com/conductor/events/objectkey"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/index"
	"example.com/conductor/internal/memory"
)

const (
	// memoBytes bounds the cache of digests under hash profiles. It holds those of half a million
	// 16-token blocks, which is enough for the beginnings that prompts share.
	memoBytes = 64 << 20
	// replaysAtOnce is how many sources replay at once, so that after a restart a fleet replays
	// in waves instead of filling every queue at once.
	replaysAtOnce = 8
	// queueBytes bounds the batches of one source that wait for the index; beyond it the source's
	// socket is not read. A larger limits.max_payload raises the bound, so that every message
	// fits. Usual batches have 1 to 50 KiB.
	queueBytes = 64 << 20
	// engineSnapshots is how many engines are asked for a snapshot at once, because each reply
	// may take snapshotBytes of memory.
	engineSnapshots = 4
	// snapshotBytes bounds a snapshot of an engine. It is vLLM's own limit, and twice the size of
	// 1 M blocks of 16 tokens.
	snapshotBytes = 256 << 20
	// snapshotTimeout is how long an engine may send nothing before a request for its snapshot is
	// given up. An engine needs three seconds to write 1 M blocks.
	snapshotTimeout = 10 * time.Second
	// snapshotsKept is how many snapshots stay on disk: if the newest is damaged, there is one before it.
	snapshotsKept = 2
	// expectedBytes bounds what routers report by POST /routed, of all tenants; beyond it the oldest report of the
	// tenant with the most bytes leaves. It holds 100,000 prompts with 47 new blocks each, so 10,000 a second for 10 s.
	expectedBytes = 64 << 20
	// removalsBytes bounds the record of the blocks that a source removed last, which
	// /admin/explain reads. It has room for 1,600 runs of neighbouring blocks.
	removalsBytes = 64 << 10
)

// frameRoom is what topic and sequence frames may take next to the payload.
const frameRoom = 64 << 10

// newSockets returns the sockets of all sources. They and the queues of the streams
// share one bound of memory.
func newSockets(cfg config.Config) *zmq.Sockets {
	return &zmq.Sockets{Rank: wire.RankOf, Transport: zmq.Transport{
		MaxMessage: int(cfg.Limits.MaxPayload) + frameRoom,
		Heartbeat:  heartbeat(cfg.Stream.StaleAfter),
		Memory:     payload.NewMemory(memory.Bound(cfg.Stream.QueueBytesTotal)),
	}}
}

// heartbeat is how long an engine may be silent before it is asked for a sign of life. After three
// times that without one its connection is given up, so that a source is stale once its engine
// has been silent for staleAfter, as if it had hung up. A second is as often as thousands of idle
// engines should be asked.
func heartbeat(staleAfter time.Duration) time.Duration {
	return min(max(staleAfter/3, time.Second), 10*time.Second)
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
	parts.MaxPayload = snapshotBytes
	return conductor.Options{
		HashSeed:         cfg.Hash.Seed,
		Copies:           copies,
		MaxSources:       cfg.Limits.MaxSources,
		MaxBytes:         int(indexBytes(cfg.Index.MaxBytes)),
		MaxBytesTotal:    indexBytes(cfg.Index.MaxBytesTotal),
		MaxTokenID:       maxTokenID(cfg.Limits),
		SaltedOnly:       cfg.Privacy.SaltedOnly,
		MaxContexts:      cfg.Limits.MaxContexts,
		KeepClientHashes: cfg.Index.LocalHashes,
		Completeness:     completeness,
		GhostBytes:       cfg.Index.GhostBytes,
		ExpectedBytes:    expectedBytes,
		RemovalsBytes:    removalsBytes,
		PoolBytes:        cfg.Pool.MaxBytes,
		SilentAfter:      fixed.SilentAfter,
		MinSynced:        cfg.Ready.MinSources,
		Log:              log,
		Transport: func(r registration.Registration, free bool) stream.Transport {
			rules := allowed.currentRules()
			if free {
				rules = nil
			}
			return sockets.TransportFor(zmq.Claim{Pod: r.Instance, Model: r.Model, Rank: r.Rank}, rules)
		},
		Strays: func() []zmq.Stray {
			_, all := sockets.ListStrays()
			return all
		},
		Reaches: func(endpoint string) error { return zmq.CheckReach(allowed.currentRules(), endpoint) },
		Stream: stream.Config{
			StaleAfter: cfg.Stream.StaleAfter,
			QueueBytes: max(queueBytes, int(cfg.Limits.MaxPayload)),
			Memory:     sockets.Memory,
			// Blocks of a source whose events are lost stay, because a wrong hit costs one prefill, and an
			// emptied index thousands.
			OnUnrecoverableGap: stream.KeepOnGap,
			Decode:             func(batch []byte) (events.Batch, error) { return wire.Decode(batch, limits) },
			Replays:            stream.NewLimiter(replaysAtOnce),
			SnapshotTimeout:    snapshotTimeout,
			SnapshotBytes:      snapshotBytes,
			DecodePart:         func(part []byte) (events.Batch, error) { return wire.Decode(part, parts) },
			Requests:           stream.NewLimiter(engineSnapshots),
		},
	}
}

// maxTokenID is the largest token id, 0 for no bound.
func maxTokenID(limits config.Limits) uint32 { return uint32(min(limits.MaxTokenID, math.MaxUint32)) }
