package lmcache

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/blake3"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
)

// heard is a receiver that keeps what it was told.
type heard struct {
	t       *testing.T
	blocks  map[string]map[uint64]bool // by medium
	parents map[uint64]string          // printed parent and first token of stored blocks
	trust   string
	drops   map[string]int
	clears  int
	paused  bool
	broken  bool
	found   map[uint64]bool // by all receivers: blocks that are attached
	slow    bool            // deliveries stay in queue until drain
	full    chan struct{}   // nil: there is room
	queue   []*Delivery
}

func newHeard(t *testing.T) *heard {
	return &heard{t: t, blocks: make(map[string]map[uint64]bool), parents: make(map[uint64]string), trust: "none",
		drops: make(map[string]int)}
}

func (h *heard) Take(d *Delivery) {
	if h.slow {
		h.queue = append(h.queue, d)
		return
	}
	h.apply(d)
}

// drain applies what can be applied of the queue.
func (h *heard) drain() {
	for len(h.queue) > 0 && h.queue[0].Blocked() == nil {
		h.apply(h.queue[0])
		h.queue = h.queue[1:]
	}
}

func (h *heard) apply(d *Delivery) {
	defer d.End()
	if d.Blocked() != nil {
		h.t.Error("a delivery comes before one that it waits for")
	}
	if h.broken = h.broken || h.paused; h.broken {
		return
	}
	b, err := wire.Decode(d.Payload, wire.DefaultLimits)
	if err != nil || len(b.Dropped) > 0 {
		h.t.Fatalf("the decoder refuses a batch: %v, %v %s", err, b.Dropped, b.Note)
	}
	for i := range b.Events {
		for e := range b.Events[i].Split() {
			h.note(e)
		}
	}
}

// note applies one event.
func (h *heard) note(e *events.Event) {
	at := h.blocks[e.Medium]
	if at == nil {
		at = make(map[uint64]bool)
		h.blocks[e.Medium] = at
	}
	switch e.Kind {
	case events.Stored:
		at[e.Hashes[0]] = true
		if h.found != nil && len(e.Tokens) > 0 && (!e.HasParent || h.found[e.Parent]) {
			h.found[e.Hashes[0]] = true
		}
		if len(e.Tokens) > 0 {
			h.parents[e.Hashes[0]] = fmt.Sprintf("%v %x %d", e.HasParent, e.Parent, e.Tokens[0])
		}
	case events.Removed:
		if !at[e.Hashes[0]] {
			h.t.Fatalf("block %x is removed from %s, where it is not", e.Hashes[0], e.Medium)
		}
		delete(at, e.Hashes[0])
	case events.Cleared:
		clear(at)
		h.clears++
	}
}

func (h *heard) Room() <-chan struct{} { return h.full }

func (h *heard) Renew() bool {
	if !h.broken || h.paused {
		return false
	}
	h.broken = false
	clear(h.blocks)
	return true
}

func (h *heard) Trust(reason string)       { h.trust = reason }
func (h *heard) Drop(reason string, n int) { h.drops[reason] += n }

const chunkTokens = 8

// prompt is a chain of chunks as LMCache hashes them.
type prompt struct{ chunks []Entry }

func newPrompt(shared []Entry, first uint32, n int) prompt {
	p := prompt{slices.Clone(shared)}
	prefix := "none"
	if len(shared) > 0 {
		prefix = shared[len(shared)-1].Hash
	}
	for i := len(shared); i < n; i++ {
		e := Entry{Model: "m", Offset: i * chunkTokens, World: 1}
		buf := []byte(prefix)
		for j := range chunkTokens {
			e.Tokens = append(e.Tokens, first+uint32(i*chunkTokens+j))
			buf = binary.BigEndian.AppendUint32(buf, e.Tokens[j])
		}
		sum := blake3.Sum256(buf)
		e.Hash, prefix = string(sum[:]), string(sum[:])
		p.chunks = append(p.chunks, e)
	}
	return p
}

// encode writes a batch as a sender does.
func encode(b *Batch) []byte {
	entries := []any{}
	for _, e := range b.Entries {
		entry := map[string]any{
			"key": map[string]any{
				"chunk_hash_hex": hex.EncodeToString([]byte(e.Hash)), "model_name": e.Model,
				"kv_rank": e.World<<24 | e.Rank<<16 | e.World<<8 | e.Rank, "object_group_id": e.Group, "cache_salt": e.Salt,
			},
			"size_bytes": 0, "token_ids": e.Tokens, "token_offset": e.Offset,
		}
		if e.Tokens == nil {
			entry["token_ids"] = []int{}
		}
		if e.Parent != "" {
			entry["parent_hash_hex"] = hex.EncodeToString([]byte(e.Parent))
		}
		entries = append(entries, entry)
	}
	raw, err := json.Marshal(map[string]any{
		"instance_id": b.Instance, "incarnation": b.Incarnation, "seq": b.Seq, "event_type": b.Type, "tier": b.Tier,
		"backend": b.Backend, "entries": entries, "shared": b.Shared, "ts": b.Time, "capacity_bytes": 0, "capacity_revision": 0,
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// object is one key at one place, for the oracle.
type object struct {
	emitter, tier, backend, salt, hash string
	world, rank                        int
}

// TestModel feeds random stores, deletes, restarts, repeats and late batches, and compares what
// receivers hold with plain sets of objects.
func TestModel(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 21))
		hub := new(Hub)
		receivers := map[string]*heard{"node:a": newHeard(t), "node:b": newHeard(t), "pool:fs": newHeard(t)}
		for emitter, to := range receivers {
			hub.Add(NewFeed(emitter, "m", to, 1<<30, chunkTokens))
		}
		shared := newPrompt(nil, 0, 2).chunks
		prompts := []prompt{{shared}, newPrompt(shared, 1000, 5), newPrompt(shared, 2000, 4), newPrompt(nil, 9000, 6)}
		objects := make(map[object]bool)
		type sender struct{ incarnation, seq uint64 }
		senders := map[string]*sender{"node:a": {1, 0}, "node:b": {1, 0}}
		var sent []Batch
		for step := range 300 {
			instance := []string{"node:a", "node:b"}[r.IntN(2)]
			s := senders[instance]
			if r.IntN(40) == 0 {
				*s = sender{s.incarnation + 1 + uint64(r.IntN(3)), 0}
				maps.DeleteFunc(objects, func(o object, _ bool) bool { return o.emitter == instance && o.tier == host })
			}
			if len(sent) > 0 && r.IntN(5) == 0 { // once more, or late
				old := sent[r.IntN(len(sent))]
				at := senders[old.Instance]
				want := Stale
				if old.Incarnation == at.incarnation {
					want = Duplicate
				}
				// After a restart the gate learns of the new incarnation with its first batch.
				if got, _, _ := hub.Push(t.Context(), &old, monday); got != want && at.seq > 0 {
					t.Fatalf("seed %d, step %d: batch %d of %d again is %s, want %s", seed, step, old.Seq, old.Incarnation, got, want)
				}
				continue
			}
			s.seq++
			b := Batch{Instance: instance, Incarnation: s.incarnation, Seq: s.seq, Type: Store, Tier: host,
				Backend: []string{"dram", "cxl"}[r.IntN(2)]}
			switch r.IntN(4) {
			case 0:
				b.Tier, b.Backend, b.Shared = storage, "fs", true
			case 1:
				b.Tier, b.Backend = storage, "nvme"
			}
			if r.IntN(3) == 0 {
				b.Type = Delete
			}
			p := prompts[r.IntN(len(prompts))]
			salt, from := []string{"", "s"}[r.IntN(2)], r.IntN(len(p.chunks))
			for _, e := range p.chunks[from:] {
				world := 1 + r.IntN(2)
				for rank := range world {
					if r.IntN(4) == 0 {
						continue
					}
					e.World, e.Rank, e.Salt = world, rank, salt
					if b.Type == Delete {
						e.Tokens, e.Offset = nil, -1
					}
					b.Entries = append(b.Entries, e)
					o := object{instance, b.Tier, b.Backend, salt, e.Hash, world, rank}
					if b.Shared {
						o.emitter = "pool:fs"
					}
					if b.Type == Delete {
						delete(objects, o)
					} else {
						objects[o] = true
					}
				}
			}
			parsed, bad, fault := Parse(encode(&b))
			if fault != nil || len(bad) > 0 {
				t.Fatalf("seed %d: %v %v", seed, fault, bad)
			}
			if got, unclaimed, _ := hub.Push(t.Context(), &parsed, monday); got != Applied || unclaimed > 0 {
				t.Fatalf("seed %d, step %d: %s, %d unclaimed", seed, step, got, unclaimed)
			}
			sent = append(sent, parsed)
			for emitter, to := range receivers {
				if instance != emitter && emitter != "pool:fs" && senders[emitter].seq == 0 {
					continue // restarted, and not heard of since
				}
				compare(t, fmt.Sprintf("seed %d, step %d, %s", seed, step, emitter), to, emitter, objects)
			}
		}
		checkParents(t, receivers, prompts)
	}
}

// compare compares a receiver with the objects of its emitter.
func compare(t *testing.T, where string, to *heard, emitter string, objects map[object]bool) {
	t.Helper()
	count := make(map[object]int)
	for o := range objects {
		if o.emitter == emitter {
			o.rank = 0
			count[o]++
		}
	}
	want := make(map[string]bool) // tier and name
	for o, n := range count {
		if n == o.world {
			want[fmt.Sprintf("%s %x", o.tier, blockHashOf(o.salt, o.hash))] = true
		}
	}
	got := make(map[string]bool)
	for medium, hashes := range to.blocks {
		tier := host
		if medium != mediumHost {
			tier = storage
		}
		for h := range hashes {
			got[fmt.Sprintf("%s %x", tier, h)] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("%s: holds %v, want %v", where, got, want)
	}
}

// checkParents compares what was announced of chunks with their prompts.
func checkParents(t *testing.T, receivers map[string]*heard, prompts []prompt) {
	t.Helper()
	want := make(map[uint64]string)
	for _, p := range prompts {
		for i, e := range p.chunks {
			for _, salt := range []string{"", "s"} {
				text := fmt.Sprintf("false 0 %d", e.Tokens[0])
				if i > 0 {
					text = fmt.Sprintf("true %x %d", blockHashOf(salt, p.chunks[i-1].Hash), e.Tokens[0])
				}
				want[blockHashOf(salt, e.Hash)] = text
			}
		}
	}
	attached := 0
	for _, to := range receivers {
		for hash, text := range to.parents {
			if attached++; want[hash] != text {
				t.Fatalf("block %x is announced as %q, want %q", hash, text, want[hash])
			}
		}
	}
	if attached == 0 {
		t.Error("no block was announced with tokens")
	}
}
