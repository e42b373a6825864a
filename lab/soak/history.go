package soak

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Tiers, and their names in events of engines and pools.
const (
	device = iota
	host
	disk
	tierCount
)

var media = [tierCount]string{"GPU", "CPU", "STORAGE"}

// firstOfPool is the first sequence number of a Mooncake master.
const firstOfPool = 1

// shards is how many objects make a block of a pool; allShards has a bit for each.
const (
	shards    = 2
	allShards = 1<<shards - 1
)

// Kinds of events that a result counts.
const (
	kindStore   = iota
	kindCopy    // a store that adds copies
	kindHashes  // a store without tokens
	kindOrphan  // a store behind an unknown parent
	kindRemove  // in order
	kindShuffle // a removal in any order
	kindPut     // an object
	kindTake    // of an object
	kindClear
	kindDrop // of the source, which registers again
	kinds
)

var kindNames = [kinds]string{"stores", "stores of copies", "stores without tokens", "stores of orphans", "removals", "shuffled removals",
	"objects put", "objects taken", "clears", "sources dropped"}

// step is the next act of a source: it publishes a batch, or leaves and registers again.
type step struct {
	batch []byte
	seq   uint64
	event int32 // last one of the batch
	drop  bool
}

// writer imagines the history of one source.
type writer struct {
	source *source
	rng    *rand.Rand
	events []any
}

// imagine makes the history of a round.
func (s *source) imagine(rng *rand.Rand) {
	s.restart()
	w := &writer{source: s, rng: rng}
	switch {
	case s.taught != nil:
		w.teach()
	case s.pool():
		if s.next == firstOfPool {
			w.reserve()
		}
		w.repeat(w.actOfPool)
	default:
		w.repeat(w.act)
		for _, h := range s.holders { // remove the blocks that wait for a parent
			var waiting []int32
			for n, st := range h.now {
				if st == orphan {
					waiting = append(waiting, int32(n))
				}
			}
			for some := range slices.Chunk(waiting, maxDepth) {
				w.remove(h, some, kindRemove)
			}
		}
	}
	w.send()
}

// repeat acts until the history is long enough.
func (w *writer) repeat(act func()) {
	for w.source.event < roundEvents {
		for range 1 + w.rng.IntN(4) {
			act()
		}
		w.send()
	}
}

// send ends a batch.
func (w *writer) send() {
	if len(w.events) == 0 {
		return
	}
	batch, err := msgpack.Marshal([]any{1.5, w.events, w.source.reg.Rank})
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	w.source.steps = append(w.source.steps, step{batch: batch, seq: w.source.next, event: w.source.event})
	l := &w.source.lives[len(w.source.lives)-1]
	l.ends = append(l.ends, w.source.event)
	w.source.next++
	w.events = nil
}

// drop lets the source leave with all it holds, and register again.
func (w *writer) drop() {
	w.send()
	w.forget(func(*holder) bool { return true }, kindDrop)
	w.source.next = 0
	if w.source.pool() {
		w.source.next = firstOfPool
	}
	w.source.steps = append(w.source.steps, step{drop: true, event: w.source.event})
	w.source.lives = append(w.source.lives, life{first: w.source.next})
	if w.source.pool() {
		w.reserve()
	}
}

// forget notes an event after which holders have nothing.
func (w *writer) forget(of func(*holder) bool, kind int) {
	w.begin(kind)
	for _, h := range w.source.holders {
		for n := range h.now {
			if of(h) {
				w.source.set(h, int32(n), absent)
				h.count[n] = 0
			}
		}
	}
}

// begin numbers an event.
func (w *writer) begin(kind int) {
	w.source.event++
	w.source.played[kind]++
}

// teach stores all prompts on the device, after a clear or not.
func (w *writer) teach() {
	if w.source.has(w.source.prompts[0].path[0]) && w.rng.IntN(2) == 0 {
		for n := range w.source.taught {
			w.source.taught[n] = 0
		}
	} else {
		for n := range w.source.taught {
			w.source.taught[n] = math.MaxInt32
		}
		w.clear()
	}
	h := w.source.holders[0]
	for _, i := range w.rng.Perm(len(w.source.prompts)) {
		path := w.source.prompts[i].path
		at := slices.IndexFunc(path, func(n int32) bool { return h.now[n] != sure })
		for at >= 0 && at < len(path) {
			to := min(len(path), at+1+w.rng.IntN(64))
			w.store(h, path[at:to], true)
			for _, n := range path[at:to] {
				w.source.taught[n] = w.source.event
			}
			if at = to; w.rng.IntN(3) == 0 {
				w.send()
			}
		}
	}
	w.repeat(func() { // chains are complete, so these are copies and their ends
		path, _ := w.stretch()
		w.store(h, path, true)
		w.remove(h, path, kindRemove)
	})
}

// stretch returns a part of a prompt, and the holder of a medium.
func (w *writer) stretch() ([]int32, *holder) {
	path := w.source.prompts[w.source.pick(w.rng)].path
	from := w.rng.IntN(len(path))
	return path[from:min(len(path), from+1+w.rng.IntN(64))], w.source.holders[w.rng.IntN(len(w.source.holders))]
}

// act is one thing that an engine does.
func (w *writer) act() {
	path, h := w.stretch()
	switch dice := w.rng.IntN(1000); {
	case dice < 400: // behind a block that the engine holds
		path = w.source.prompts[w.source.pick(w.rng)].path
		from := w.rng.IntN(len(path))
		for from > 0 && !w.source.has(path[from-1]) {
			from--
		}
		w.store(h, path[from:min(len(path), from+1+w.rng.IntN(64))], true)
	case dice < 430:
		w.store(h, path, true)
	case dice < 500:
		w.store(w.source.holders[host+w.rng.IntN(2)], path, false)
	case dice < 600: // blocks leave the device for a lower tier
		from := w.source.holders[device]
		if end := slices.IndexFunc(path, func(n int32) bool { return from.now[n] != sure }); end >= 0 {
			path = path[:end]
		}
		w.store(w.source.holders[host+w.rng.IntN(2)], path, w.rng.IntN(3) == 0)
		if w.rng.IntN(2) == 0 {
			w.send()
		}
		w.remove(from, path, kindRemove)
	case dice < 750:
		w.remove(h, path, kindRemove)
	case dice < 850: // as engines evict
		path = slices.Clone(path)
		slices.Reverse(path)
		w.remove(h, path, kindRemove)
	case dice < 990:
		path = slices.Clone(path)
		w.rng.Shuffle(len(path), func(i, j int) { path[i], path[j] = path[j], path[i] })
		w.remove(h, path[:1+w.rng.IntN(len(path))], kindShuffle)
	case dice < 994:
		w.clear()
	case dice < 998:
		w.forget(func(other *holder) bool { return other == h }, kindClear)
		w.events = append(w.events, map[string]any{"event_type": "cleared", "medium": media[h.tier], "dp_rank": nil})
	default:
		w.drop()
	}
}

func (w *writer) clear() {
	w.forget(func(*holder) bool { return true }, kindClear)
	w.events = append(w.events, map[string]any{"type": "AllBlocksCleared"})
}

// store stores a stretch of a prompt. It ends before a block whose copies the truth cannot
// count: one that waits, or one stored again behind a block that the source does not hold.
func (w *writer) store(h *holder, path []int32, tokens bool) {
	parent := int32(-1)
	if len(path) > 0 {
		parent = w.source.nodes[path[0]].parent
	}
	placed := parent < 0 || w.source.has(parent)
	end := slices.IndexFunc(path, func(n int32) bool {
		return h.now[n] == orphan || h.now[n] == named || h.now[n] == sure && tokens && !placed || h.count[n] == math.MaxUint8
	})
	if end >= 0 {
		path = path[:end]
	}
	if len(path) == 0 {
		return
	}
	kind := kindStore
	switch {
	case !tokens:
		kind = kindHashes
	case !placed:
		kind = kindOrphan
	case h.now[path[0]] == sure:
		kind = kindCopy
	}
	w.begin(kind)
	for _, n := range path {
		switch known := w.source.has(n); {
		case tokens && placed || !tokens && known:
			w.source.set(h, n, sure)
			w.source.settleBlock(n)
		case tokens:
			w.source.set(h, n, orphan)
		default:
			w.source.set(h, n, named)
		}
		if h.count[n]++; w.source.reg.Copies != "" {
			h.count[n] = 1
		}
	}
	e := map[string]any{
		"type": "BlockStored", "block_hashes": w.hashes(path), "parent_block_hash": nil, "token_ids": []uint32{}, "block_size": blockSize,
		"lora_id": nil, "lora_name": nil, "medium": media[h.tier],
	}
	if tokens {
		ids := make([]uint32, 0, len(path)*blockSize)
		for _, n := range path {
			ids = append(ids, w.source.nodes[n].tokens[:]...)
		}
		e["token_ids"] = ids
		if parent >= 0 {
			e["parent_block_hash"] = w.source.name(parent)
		}
	}
	w.events = append(w.events, e)
}

func (w *writer) hashes(path []int32) []uint64 {
	all := make([]uint64, len(path))
	for i, n := range path {
		all[i] = w.source.name(n)
	}
	return all
}

// remove takes a copy of each block, held or not.
func (w *writer) remove(h *holder, path []int32, kind int) {
	if len(path) == 0 {
		return
	}
	w.begin(kind)
	for _, n := range path {
		if h.count[n] > 1 {
			h.count[n]--
		} else {
			w.source.set(h, n, absent)
			h.count[n] = 0
		}
	}
	w.events = append(w.events, map[string]any{"type": "BlockRemoved", "block_hashes": w.hashes(path), "medium": media[h.tier]})
}

// reserve puts a block of no prompt into each backend. So the pool knows the number of
// shards of its blocks, also if all other blocks leave.
func (w *writer) reserve() {
	for _, h := range w.source.holders {
		for shard := range shards {
			if h.tier == host && h.count[anchor]>>shard&1 == 0 {
				w.put(h, anchor, shard)
			}
		}
	}
	w.send()
}

// actOfPool is one thing that a pool does.
func (w *writer) actOfPool() {
	path, h := w.stretch()
	path = path[:min(len(path), 4)]
	shard := w.rng.IntN(shards)
	switch dice := w.rng.IntN(1000); {
	case dice < 500:
		for _, n := range path {
			for shard := range shards {
				w.put(h, n, shard)
			}
		}
	case dice < 600:
		for _, n := range path {
			w.put(h, n, shard)
		}
	case dice < 800:
		for _, n := range path {
			w.take(h, n, shard)
		}
	case dice < 980:
		for _, n := range path {
			for shard := range shards {
				w.take(h, n, shard)
			}
		}
	case dice < 998:
		medium := any(nil)
		if w.rng.IntN(2) == 0 {
			medium = media[h.tier]
		}
		w.forget(func(other *holder) bool { return other.backend == h.backend && (medium == nil || other == h) }, kindClear)
		w.events = append(w.events, map[string]any{"event_type": "cleared", "tenant_id": "default", "backend_id": h.backend,
			"medium": medium})
		w.reserve()
	default:
		w.drop()
	}
}

// put stores one object of a block. The block counts when all its shards are there.
func (w *writer) put(h *holder, n int32, shard int) {
	known := w.source.has(n)
	w.begin(kindPut)
	if h.count[n] |= 1 << shard; h.count[n] == allShards && h.now[n] == absent {
		if w.source.set(h, n, named); known {
			w.source.set(h, n, sure)
		}
	}
	w.tell(h, n, shard, "stored")
}

// take removes one object.
func (w *writer) take(h *holder, n int32, shard int) {
	w.begin(kindTake)
	left := h.count[n] &^ (1 << shard)
	w.source.set(h, n, absent)
	h.count[n] = left
	w.tell(h, n, shard, "removed")
}

// tell publishes an event of a Mooncake master.
func (w *writer) tell(h *holder, n int32, shard int, what string) {
	w.source.object++
	w.events = append(w.events, map[string]any{
		"event_id": w.source.object, "timestamp": 0, "event_type": what, "model_name": nil, "block_size": nil, "lora_name": nil,
		"additional_salt": nil,
		"tenant_id":       "default", "backend_id": h.backend, "medium": media[h.tier], "dp_rank": nil,
		"object_key": fmt.Sprintf("%s@tp_rank:%d@%048x%016x", model, shard, 0, w.source.name(n)), "seq_hashes": []any{},
		"base_block_idx": 0,
	})
}

// publish plays the history.
func (s *source) publish(ctx context.Context) error {
	l := s.line(s.endpoint())
	for i := range s.steps {
		at := &s.steps[i]
		s.begun.Store(int64(at.event))
		if !at.drop {
			l.send(ctx, at.seq, at.batch)
			continue
		}
		s.life.Add(1)
		if _, err := s.conductor.Unregister(s.reg.Key()); err != nil {
			return err
		}
		s.lines.Delete(s.endpoint())
		s.number++
		l = s.line(s.endpoint())
		if err := s.register(); err != nil {
			return err
		}
		s.floor.Store(int64(at.event))
		s.life.Add(1)
	}
	return nil
}
