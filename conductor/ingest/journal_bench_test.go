package ingest

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
)

// loop is a feed that hands out the same payloads again and again, as the
// batches of one epoch, without a socket.
type loop struct {
	payloads [][]byte
	n, most  uint64
	closed   chan struct{}
}

func (l *loop) Next() (stream.Step, bool) {
	if l.n == l.most {
		<-l.closed
		return stream.Step{}, false
	}
	payload := l.payloads[l.n%uint64(len(l.payloads))]
	batch, err := wire.Decode(payload, wire.DefaultLimits)
	if err != nil {
		panic(err)
	}
	l.n++
	if l.n == l.most {
		close(l.closed)
	}
	return stream.Step{Kind: stream.ApplyBatch, Batch: batch, Payload: payload, Seq: l.n - 1, Epoch: 1}, true
}

func (l *loop) Status() stream.Status    { return stream.Status{State: stream.Synced} }
func (l *loop) Resync(string)            {}
func (l *loop) ResumeBehind(stream.Mark) {}
func (l *loop) MarkIncomplete(string)    {}
func (l *loop) MarkUnusable(string)      {}
func (l *loop) Close()                   {}

// storeAndClear is batches of 32 blocks of 16 tokens in vLLM's maps, and a clear
// behind all of them.
func storeAndClear(batches int) (payloads [][]byte) {
	const blocks, size = 32, 16
	add := func(events ...any) {
		raw, err := msgpack.Marshal([]any{1.5, events, 0})
		if err != nil {
			panic(err)
		}
		payloads = append(payloads, raw)
	}
	for i := range batches {
		hashes, tokens := make([]uint64, blocks), make([]uint32, blocks*size)
		for j := range hashes {
			hashes[j] = 0x9e3779b97f4a7c15 * uint64(i*blocks+j+1)
		}
		for j := range tokens {
			tokens[j] = uint32(i*7919+j*31) % 150_000
		}
		add(map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens,
			"block_size": size, "lora_id": nil, "medium": "GPU", "lora_name": nil, "group_idx": 0, "kv_cache_spec_kind": "full_attention"})
	}
	add(map[string]any{"type": "AllBlocksCleared"})
	return payloads
}

// BenchmarkIngest is decoding and indexing a batch of 32 blocks, without and
// with a journal, in memory and on the disk; compare them within one run.
func BenchmarkIngest(b *testing.B) {
	payloads := storeAndClear(1024)
	bytes := 0
	for _, p := range payloads {
		bytes += len(p)
	}
	run := func(b *testing.B, j *tape.Tape) {
		c := newServer(serverOptions{HashSeed: 1337, Tape: j, Log: zerolog.Nop()})
		l := &loop{payloads: payloads, most: uint64(b.N), closed: make(chan struct{})}
		c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed { return l })
		b.SetBytes(int64(bytes / len(payloads)))
		b.ReportAllocs()
		b.ResetTimer()
		start := time.Now()
		must.Succeed(b, c.Register(registration.Registration{Endpoint: "ipc:///x", Type: "vLLM", Model: "m", Instance: "i", BlockSize: 16},
			RegisterOptions{}))
		<-l.closed // the feed has handed out everything
		c.Close()
		b.StopTimer()
		b.ReportMetric(float64(b.N)*32/time.Since(start).Seconds(), "blocks/s")
	}
	b.Run("journal=off", func(b *testing.B) { run(b, nil) })
	record := func(o tape.Options) func(*testing.B) {
		return func(b *testing.B) {
			if o.MaxBytes = 512 << 20; o.Memory == 0 {
				o.Dir, o.Delay = b.TempDir(), 10*time.Millisecond
			}
			w, err := tape.Create(o)
			must.Succeed(b, err)
			defer w.Close()
			run(b, w)
			b.ReportMetric(float64(w.Stats().Dropped)/float64(b.N), "dropped/op")
		}
	}
	b.Run("journal=memory", record(tape.Options{Memory: 256 << 10}))
	b.Run("journal=on", record(tape.Options{}))
	b.Run("journal=sealed", record(tape.Options{Key: &keyfile.Key{1}}))
}
