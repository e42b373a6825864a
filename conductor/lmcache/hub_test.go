package lmcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
)

// slowBench is a hub with two instances and a shared storage.
type slowBench struct {
	t     *testing.T
	hub   Hub
	to    map[string]*heard
	seq   map[string]uint64
	chunk []Entry
}

func newSlowBench(t *testing.T) *slowBench {
	b := &slowBench{t: t, to: make(map[string]*heard), seq: make(map[string]uint64), chunk: newPrompt(nil, 0, 4).chunks}
	for i := range b.chunk[1:] {
		b.chunk[i+1].Parent = b.chunk[i].Hash
	}
	for _, emitter := range []string{"a", "b", "pool:fs"} {
		b.to[emitter] = newHeard(t)
		b.hub.Add(NewFeed(emitter, "m", b.to[emitter], 1<<30, chunkTokens))
	}
	return b
}

// push reports chunks.
func (b *slowBench) push(ctx context.Context, instance string, shared bool, chunks ...Entry) error {
	b.seq[instance]++
	batch := Batch{Instance: instance, Seq: b.seq[instance], Type: Store, Tier: host, Backend: "dram", Entries: chunks}
	if shared {
		batch.Tier, batch.Backend, batch.Shared = storage, "fs", true
	}
	outcome, _, err := b.hub.Push(ctx, &batch, monday)
	if outcome != Applied && err == nil {
		b.t.Errorf("batch %d of %s is %s", batch.Seq, instance, outcome)
	}
	return err
}

// A receiver that is slow holds up its own senders alone, and no longer than they want to wait.
// What it was sent is applied once and in order.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBench(t)
		slow := b.to["a"]
		slow.slow = true
		ctx, stop := context.WithCancel(t.Context())
		answer := make(chan error)
		go func() { answer <- b.push(ctx, "a", false, b.chunk[0]) }()
		synctest.Wait()
		if err := b.push(t.Context(), "b", false, b.chunk[0]); err != nil {
			t.Errorf("next to a slow receiver: %v", err)
		}
		stop()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Errorf("a sender that waits no more gets %v", err)
		}
		b.seq["a"]-- // it sends the batch once more
		outcome, _, err := b.hub.Push(t.Context(), &Batch{Instance: "a", Seq: 1, Type: Store, Tier: host, Backend: "dram",
			Entries: b.chunk[:1]}, monday)
		if outcome != Duplicate || err != nil {
			t.Errorf("the batch once more is %s, %v", outcome, err)
		}
		b.seq["a"]++
		go func() { answer <- b.push(t.Context(), "a", false, b.chunk[1]) }()
		synctest.Wait()
		if len(slow.queue) != 2 {
			t.Errorf("%d deliveries wait, want 2", len(slow.queue))
		}
		slow.drain()
		if err := <-answer; err != nil || len(slow.blocks[mediumHost]) != 2 {
			t.Errorf("in the end: %v, %d chunks", err, len(slow.blocks[mediumHost]))
		}
	})
}

// A batch for a receiver without room is not read: its sender may send it once more.
func TestReceiverWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBench(t)
		full := b.to["a"]
		full.full = make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		answer := make(chan error)
		go func() { answer <- b.push(ctx, "a", false, b.chunk[0]) }()
		synctest.Wait()
		if err := b.push(t.Context(), "b", true, b.chunk[0]); err != nil {
			t.Errorf("next to a receiver without room: %v", err)
		}
		stop()
		if err := <-answer; !errors.Is(err, context.Canceled) || b.hub.gate.cursors["a"] != nil {
			t.Errorf("without room: %v", err)
		}
		b.seq["a"]--
		go func() { answer <- b.push(t.Context(), "a", false, b.chunk[0]) }()
		synctest.Wait()
		room := full.full
		full.full = nil
		close(room)
		if err := <-answer; err != nil || len(full.blocks[mediumHost]) != 1 {
			t.Errorf("with room: %v, %d chunks", err, len(full.blocks[mediumHost]))
		}
	})
}

// A chunk is applied behind its parent, also where that is at another receiver, a slow one
// (LMCACHE-6).
func TestChildWaitsForParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBench(t)
		a, pool := b.to["a"], b.to["pool:fs"]
		a.slow, pool.slow = true, true
		for _, p := range []struct {
			instance string
			shared   bool
			chunk    int
		}{{"b", true, 2}, {"a", false, 0}, {"b", true, 1}, {"a", false, 3}} {
			go b.push(t.Context(), p.instance, p.shared, b.chunk[p.chunk])
			synctest.Wait()
		}
		names := func(h *heard) (all []uint64) {
			for _, blocks := range h.blocks {
				for hash := range blocks {
					all = append(all, hash)
				}
			}
			return all
		}
		pool.drain()
		if got := names(pool); !slices.Equal(got, []uint64{blockHashOf("", b.chunk[2].Hash)}) {
			t.Errorf("before the parents are applied the storage has %x", got)
		}
		a.drain()
		if len(a.queue) != 1 || len(names(a)) != 1 {
			t.Errorf("%d deliveries wait behind the storage, want 1", len(a.queue))
		}
		pool.drain()
		a.drain()
		if len(names(pool)) != 2 || len(names(a)) != 2 || len(a.queue)+len(pool.queue) != 0 {
			t.Errorf("in the end: %x and %x", names(pool), names(a))
		}
		if err := b.push(t.Context(), "b", false, b.chunk[0]); err != nil || len(b.hub.flying) != 1 ||
			len(b.hub.chains["m"].attachments.fresh) != 0 {
			t.Errorf("%v, %d deliveries and %d chunks are kept", err, len(b.hub.flying), len(b.hub.chains["m"].attachments.fresh))
		}
	})
}

// However slow receivers are, each chunk is attached in the end, and nothing waits for ever.
func TestSlowReceiversByChance(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 4))
			b := newSlowBench(t)
			b.to["a again"] = newHeard(t) // a second source of an emitter
			b.hub.Add(NewFeed("a", "m", b.to["a again"], 1<<30, chunkTokens))
			found := make(map[uint64]bool)
			var all []*heard
			for _, emitter := range []string{"a", "a again", "b", "pool:fs"} {
				h := b.to[emitter]
				h.slow, h.found = true, found
				all = append(all, h)
			}
			var chunks []Entry
			for first := range uint32(4) {
				p := newPrompt(nil, 1000*first, 6).chunks
				for i := range p[1:] {
					p[i+1].Parent = p[i].Hash
				}
				chunks = append(chunks, p...)
			}
			todo := slices.Clone(chunks)
			r.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
			for len(todo) > 0 {
				instance, shared, n := []string{"a", "b"}[r.IntN(2)], r.IntN(3) == 0, 1+r.IntN(min(3, len(todo)))
				some := todo[:n]
				todo = todo[n:]
				if r.IntN(3) == 0 { // also elsewhere
					todo = append(todo, some[0])
				}
				go b.push(t.Context(), instance, shared, some...)
				synctest.Wait()
				if r.IntN(3) == 0 {
					all[r.IntN(len(all))].drain()
				}
			}
			for range 10 * len(chunks) {
				all[r.IntN(len(all))].drain()
			}
			for i, c := range chunks {
				if !found[blockHashOf("", c.Hash)] {
					t.Errorf("seed %d: chunk %d of prompt %d is not attached", seed, i%6, i/6)
				}
			}
			for _, h := range all {
				if len(h.queue) > 0 {
					t.Errorf("seed %d: %d deliveries wait for ever", seed, len(h.queue))
				}
			}
		})
	}
}
