package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// storeAndEvict is batches that store 32 blocks of 16 tokens, and remove those of the batch
// before last one by one from the end, as an engine with a full cache does.
func storeAndEvict(batches int) (payloads [][]byte) {
	const blocks, size = 32, 16
	hash := func(batch, block int) uint64 {
		return 0x9e3779b97f4a7c15 * uint64((batch+batches)%batches*blocks+block+1)
	}
	for i := range batches {
		hashes, tokens := make([]uint64, blocks), make([]uint32, blocks*size)
		for j := range hashes {
			hashes[j] = hash(i, j)
		}
		for j := range tokens {
			tokens[j] = uint32(i*7919+j*31) % 150_000
		}
		all := []any{map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens,
			"block_size": size, "medium": "GPU"}}
		for j := blocks - 1; j >= 0; j-- {
			all = append(all, map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{hash(i-2, j)}, "medium": "GPU"})
		}
		raw, err := msgpack.Marshal([]any{1.5, all, 0})
		if err != nil {
			panic(err)
		}
		payloads = append(payloads, raw)
	}
	return payloads
}

// BenchmarkEvict is decoding and applying a batch of 32 stored and 32 removed blocks, with and
// without a ring of removals; compare them within one run.
func BenchmarkEvict(b *testing.B) {
	payloads := storeAndEvict(1024)
	for _, ring := range []int{0, 64 << 10} {
		b.Run(fmt.Sprintf("removals=%d", ring), func(b *testing.B) {
			c := newServer(serverOptions{HashSeed: 1337, RemovalsBytes: ring, Log: zerolog.Nop()})
			l := &loop{payloads: payloads, most: uint64(b.N), closed: make(chan struct{})}
			c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed { return l })
			b.ReportAllocs()
			b.ResetTimer()
			start := time.Now()
			must.Succeed(b, c.Register(registration.Registration{Endpoint: "ipc:///x", Type: "vLLM", Model: "m", Instance: "i",
				BlockSize: 16}, RegisterOptions{}))
			<-l.closed
			c.Close()
			b.StopTimer()
			b.ReportMetric(float64(b.N)*64/time.Since(start).Seconds(), "blocks/s")
		})
	}
}
