package index

import (
	"bytes"
	"cmp"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/lab/harness"
)

// segmentBytes is how many bytes of payloads are encoded before they are timed.
const segmentBytes = 32 << 20

// media are vLLM's names of the tiers.
var media = [...]string{"GPU", "CPU", "STORAGE"}

// WireResult is the way of stored and removed blocks from payload to index. A
// payload is the batch of one operation, its events as long as Config.EventBlock.
type WireResult struct {
	Blocks         int     `json:"blocks"`
	BlocksPerSec   float64 `json:"blocks_per_sec"`
	BytesPerBlock  float64 `json:"payload_bytes_per_block"`
	AllocsPerBlock float64 `json:"allocs_per_block"`
	DecodeNs       float64 `json:"decode_ns_per_block"`
	HashNs         float64 `json:"hash_ns_per_block"`
	IndexNs        float64 `json:"index_ns_per_block"`
}

// payload is one message of a worker, or a query where there are no bytes.
type payload struct {
	worker uint32
	ask    *op
	bytes  []byte
}

// wired is the replay of payloads as a Conductor applies them.
type wired struct {
	*load
	c      *Config
	locals []uint64
	decode time.Duration
	hash   time.Duration
	index  time.Duration
	blocks int
	bytes  int
	allocs uint64
}

// replayWire runs the stream as payloads, encoded segment by segment outside of
// the timing. Queries are timed as in replay.
func (l *load) replayWire(c *Config, p *prompts) (*WireResult, error) {
	w := &wired{load: l, c: c}
	s := l.x.s
	enc := newEncoder(p, s, c)
	for at := 0; at < len(s.ops); {
		var segment []payload
		size := 0
		for ; at < len(s.ops) && size < segmentBytes; at++ {
			o := &s.ops[at]
			if o.kind == query {
				segment = append(segment, payload{ask: o})
				continue
			}
			b, err := enc.encodeOp(o)
			if err != nil {
				return nil, fmt.Errorf("cannot encode a payload: %w", err)
			}
			size += len(b)
			segment = append(segment, payload{worker: o.owner / uint32(c.Tiers), bytes: b})
		}
		if err := w.applySegment(segment); err != nil {
			return nil, err
		}
	}
	took := w.decode + w.hash + w.index
	l.written += took
	n := float64(max(1, w.blocks))
	return &WireResult{
		Blocks: w.blocks, BlocksPerSec: perSecond(w.blocks, took),
		BytesPerBlock: float64(w.bytes) / n, AllocsPerBlock: float64(w.allocs) / n,
		DecodeNs: float64(w.decode) / n, HashNs: float64(w.hash) / n, IndexNs: float64(w.index) / n,
	}, nil
}

// applySegment applies a segment. The four readings of the clock a payload costs stay in
// the figures.
func (w *wired) applySegment(segment []payload) error {
	before, cpu := readRuntime(), w.cpu-harness.CPU()
	for i := range segment {
		m := &segment[i]
		if m.ask != nil {
			w.replayOps([]op{*m.ask})
			continue
		}
		t0 := w.clk.now()
		batch, err := wire.Decode(m.bytes, wire.DefaultLimits)
		if err != nil {
			return err
		}
		t1 := w.clk.now()
		w.locals = w.locals[:0]
		for j := range batch.Events {
			if e := &batch.Events[j]; len(e.Tokens) == len(e.Hashes)*e.BlockSize {
				w.locals = hash.DefaultScheme().AppendLocals(w.locals, e.Tokens, e.BlockSize)
			}
		}
		t2 := w.clk.now()
		w.applyBatch(m.worker, &batch)
		t3 := w.clk.now()
		w.decode += t1 - t0
		w.hash += t2 - t1
		w.index += t3 - t2
		w.bytes += len(m.bytes)
		wire.ReleaseBatch(&batch)
	}
	w.allocs += readRuntime().objects - before.objects
	w.cpu = cpu + harness.CPU() // that of queries is in it
	return nil
}

// applyBatch brings a batch whose local hashes are in w.locals into the index.
func (w *wired) applyBatch(worker uint32, batch *events.Batch) {
	locals := w.locals
	for j := range batch.Events {
		e := &batch.Events[j]
		n := len(e.Hashes)
		w.blocks += n
		owner := index.Owner(worker*uint32(w.c.Tiers) + tierOf(e.Medium))
		if e.Kind == events.Removed {
			w.x.x.Remove(owner, e.Hashes, nil, w.x.copies)
			w.sizes.RemoveBlocks += n
			continue
		}
		w.x.x.Store(&index.Store{Owner: owner, Parent: e.Parent, HasParent: e.HasParent, Engine: e.Hashes, Local: locals[:n],
			Copies: w.x.copies})
		locals = locals[n:]
		w.sizes.StoreBlocks += n
	}
}

func tierOf(medium string) uint32 {
	for i, m := range media {
		if m == medium {
			return uint32(i)
		}
	}
	panic(fmt.Sprintf("BUG: medium %q", medium))
}

// storedEvent and removedEvent are vLLM's events, their keys in its order.
type (
	storedEvent struct {
		Type      string                  `msgpack:"type"`
		Hashes    harness.Compact[uint64] `msgpack:"block_hashes"`
		Parent    any                     `msgpack:"parent_block_hash"`
		Tokens    harness.Compact[uint32] `msgpack:"token_ids"`
		BlockSize int                     `msgpack:"block_size"`
		LoraID    any                     `msgpack:"lora_id"`
		Medium    string                  `msgpack:"medium"`
		LoraName  any                     `msgpack:"lora_name"`
		Group     int                     `msgpack:"group_idx"`
	}
	removedEvent struct {
		Type   string                  `msgpack:"type"`
		Hashes harness.Compact[uint64] `msgpack:"block_hashes"`
		Medium string                  `msgpack:"medium"`
		Group  int                     `msgpack:"group_idx"`
	}
)

// encoder writes vLLM's map events.
type encoder struct {
	p      *prompts
	s      *Stream
	c      *Config
	most   int // blocks of one event
	buf    bytes.Buffer
	mp     *msgpack.Encoder
	tokens []uint32 // of the events of one batch
}

func newEncoder(p *prompts, s *Stream, c *Config) *encoder {
	e := &encoder{p: p, s: s, c: c, most: cmp.Or(c.EventBlock, 64)}
	e.mp = msgpack.NewEncoder(&e.buf)
	e.mp.UseCompactInts(true)
	return e
}

// encodeOp returns the payload of one store or removal.
func (e *encoder) encodeOp(o *op) ([]byte, error) {
	var list []any
	medium := media[int(o.owner)%e.c.Tiers]
	for at, n := 0, int(o.to-o.from); at < n; at += e.most {
		k := min(e.most, n-at)
		if o.kind == remove {
			list = append(list, &removedEvent{"BlockRemoved", e.s.gone[int(o.from)+at:][:k], medium, 0})
			continue
		}
		ev := &storedEvent{Type: "BlockStored", Hashes: e.s.namesOf(o)[at:][:k], BlockSize: e.c.BlockSize, Medium: medium}
		switch {
		case at > 0:
			ev.Parent = e.s.namesOf(o)[at-1]
		case o.hasParent:
			ev.Parent = o.parent
		}
		from := len(e.tokens)
		for _, id := range e.s.ids[int(o.from)+at:][:k] {
			e.tokens = e.p.appendTokens(e.tokens, &e.p.blocks[id])
		}
		ev.Tokens = e.tokens[from:]
		list = append(list, ev)
	}
	e.buf.Reset()
	err := e.mp.Encode([]any{1.0, list, 0})
	e.tokens = e.tokens[:0]
	return bytes.Clone(e.buf.Bytes()), err
}
