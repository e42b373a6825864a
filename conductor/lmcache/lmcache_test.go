package lmcache

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// monday is when batches come.
var monday = time.Unix(1_700_000_000, 0)

// A batch passes once, by incarnation and number (LMCACHE-3).
func TestGate(t *testing.T) {
	var g gate
	f := func(incarnation, seq uint64, want admission) {
		t.Helper()
		if got := g.admitBatch(&Batch{Instance: "n", Incarnation: incarnation, Seq: seq}, monday); got != want {
			t.Errorf("batch %d of incarnation %d: %+v, want %+v", seq, incarnation, got, want)
		}
	}
	f(5, 3, admission{outcome: Applied, late: true})
	f(5, 3, admission{outcome: Duplicate})
	f(5, 4, admission{outcome: Applied})
	f(5, 7, admission{outcome: Applied, hole: true})
	f(5, 6, admission{outcome: Duplicate})
	f(4, 9, admission{outcome: Stale})
	f(6, 1, admission{outcome: Applied, fence: true, begins: true})
	f(8, 2, admission{outcome: Applied, fence: true, hole: true})
	f(6, 2, admission{outcome: Stale})
	for i := range MaxInstances {
		g.admitBatch(&Batch{Instance: fmt.Sprint(i), Seq: 1}, monday)
	}
	if got := g.admitBatch(&Batch{Instance: "one too many", Seq: 1}, monday); got.outcome != Refused {
		t.Errorf("an instance too many is %s", got.outcome)
	}
	f(8, 3, admission{outcome: Applied})
}

// Instances that are gone make room for others. One with a source keeps its place, so that a
// restart of it is seen however long it was silent (LMCACHE-3).
func TestInstancesAreForgotten(t *testing.T) {
	now, hub := monday, new(Hub)
	to := newHeard(t)
	hub.Add(NewFeed("own", "m", to, 1<<30, chunkTokens))
	pool := NewFeed("pool:fs", "m", newHeard(t), 1<<30, chunkTokens)
	hub.Add(pool)
	chunk := newPrompt(nil, 0, 1).chunks
	push := func(instance string, incarnation, seq uint64, want Outcome) {
		t.Helper()
		b := Batch{Instance: instance, Incarnation: incarnation, Seq: seq, Type: Store, Tier: storage, Backend: "fs", Shared: true,
			Entries: chunk}
		if instance == "own" {
			b.Tier, b.Shared = host, false
		}
		if got, _, _ := hub.Push(t.Context(), &b, now); got != want {
			t.Errorf("batch %d of %s is %s, want %s", seq, instance, got, want)
		}
	}
	push("own", 1, 1, Applied)
	for i := range MaxInstances - 1 {
		push(fmt.Sprint(i), 1, 1, Applied)
	}
	now = now.Add(forgetAfter - time.Second)
	push("one too many", 1, 1, Refused)
	push("7", 1, 2, Applied)
	now = now.Add(sweepEvery)
	push("one too many", 1, 1, Applied)
	push("7", 1, 2, Duplicate)
	if got := len(hub.gate.cursors); got != 3 || len(pool.sent) != 2 {
		t.Errorf("%d instances are remembered and %d by the storage, want 3 and 2", got, len(pool.sent))
	}
	push("own", 2, 1, Applied)
	if n := len(to.blocks[mediumHost]); n != 1 || to.clears != 1 {
		t.Errorf("after a restart: %d blocks and %d clears, want one of each", n, to.clears)
	}
}

func TestParseFaults(t *testing.T) {
	const head = `{"instance_id":"n","incarnation":1,"seq":1,"event_type":"store","tier":"l1","backend":"dram","entries":[`
	batch := func(text, field, reason string) {
		t.Helper()
		_, _, err := Parse([]byte(text))
		if err == nil || err.Field != field || err.Reason != reason {
			t.Errorf("%s: %+v, want %s %s", text, err, field, reason)
		}
	}
	batch(`[]`, "", "invalid_type")
	batch(`{`, "", "invalid_type")
	batch(`{}`, "instance_id", "missing")
	batch(`{"instance_id":"n","incarnation":1.5}`, "incarnation", "invalid_type")
	batch(`{"instance_id":"n","incarnation":1,"seq":1,"event_type":"store"}`, "tier", "missing")
	batch(strings.Replace(head, `"seq":1`, `"seq":0`, 1)+"]}", "seq", "out_of_range")
	batch(strings.Replace(head, "store", "put", 1)+"]}", "event_type", "invalid_value")
	batch(strings.Replace(head, `"l1"`, `"all"`, 1)+"]}", "tier", "invalid_value")
	batch(strings.Replace(head, "dram", "", 1)+"]}", "backend", "out_of_range")
	batch(strings.Replace(head, `"n"`, `""`, 1)+"]}", "instance_id", "out_of_range")

	entry := func(text, field, reason string) {
		t.Helper()
		b, bad, err := Parse([]byte(head + text + `,{"key":{"chunk_hash_hex":"0a","model_name":"m","kv_rank":16777472}}]}`))
		if err != nil || len(b.Entries) != 1 || len(bad) != 1 || bad[0].Field != "entries[0]."+field || bad[0].Reason != reason {
			t.Errorf("%s: %d entries, %+v %v, want %s %s", text, len(b.Entries), bad, err, field, reason)
		}
	}
	entry(`{"key":{"chunk_hash_hex":"x","model_name":"m","kv_rank":0}}`, "key.chunk_hash_hex", "invalid_value")
	entry(`{"key":{"chunk_hash_hex":"","model_name":"m","kv_rank":0}}`, "key.chunk_hash_hex", "invalid_value")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"","kv_rank":0}}`, "key.model_name", "out_of_range")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m"}}`, "key.kv_rank", "missing")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":33685504}}`, "key.kv_rank", "out_of_range") // rank 2 of 2
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":-1}}`, "key.kv_rank", "invalid_type")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"token_ids":[1,-1]}`, "token_ids", "invalid_type")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"token_offset":-2}`, "token_offset", "out_of_range")
	entry(`{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"parent_hash_hex":"0"}`, "parent_hash_hex", "invalid_value")
}

// A parent is found by its digest alone: chunks that only lie next to each other are none
// (LMCACHE-5). A parent that is named needs no digest.
func TestChains(t *testing.T) {
	c := newChains()
	a, b := newPrompt(nil, 0, 3).chunks, newPrompt(nil, 500, 3).chunks
	trials := 1000
	f := func(e, before *Entry, parent string, known bool) {
		t.Helper()
		if got, is := c.findParent(e, before, &trials); got != parent || is != known {
			t.Errorf("the chunk at %d follows %x (%t), want %x (%t)", e.Offset, got, is, parent, known)
		}
	}
	f(&a[0], nil, "", true)
	f(&b[1], &a[0], "", false) // b[0] is not known
	f(&b[0], &b[1], "", true)
	f(&b[1], &a[0], b[0].Hash, true)
	f(&a[1], &b[1], a[0].Hash, true)
	spent := trials
	f(&a[1], nil, a[0].Hash, true)
	if trials != spent {
		t.Error("a chunk that is known costs a digest")
	}
	foreign := Entry{Hash: "another algorithm", Offset: 2 * chunkTokens, Tokens: a[2].Tokens}
	f(&foreign, &a[1], "", false)
	foreign.Parent = a[1].Hash
	f(&foreign, nil, a[1].Hash, true)
	trials = 0
	f(&a[2], &a[1], "", false)
}

// What does not fit is counted, and room comes back (pool.max_bytes).
func TestBookBudget(t *testing.T) {
	to := newHeard(t)
	hub := new(Hub)
	f := NewFeed("n", "m", to, 4096, chunkTokens)
	hub.Add(f)
	chunks := newPrompt(nil, 0, 40).chunks
	hub.Push(t.Context(), &Batch{Instance: "n", Seq: 1, Type: Store, Tier: host, Backend: "dram", Entries: chunks}, monday)
	held := len(to.blocks[mediumHost])
	if held == 0 || held == 40 || to.drops[dropBudget] != 40-held {
		t.Fatalf("%d chunks are held, %v dropped", held, to.drops)
	}
	hub.Push(t.Context(), &Batch{Instance: "n", Seq: 2, Type: Delete, Tier: host, Backend: "dram", Entries: chunks}, monday)
	if f.book.bytes != 0 || len(f.book.chunks) != 0 || len(to.blocks[mediumHost]) != 0 || to.drops[dropUnknown] != 40-held {
		t.Errorf("%d bytes and %d chunks are left, %v dropped", f.book.bytes, len(f.book.chunks), to.drops)
	}
	if p := hub.chains["m"].attachments; len(p.held)+len(p.attached)+p.waiters+int(p.bytes) != 0 {
		t.Errorf("attachments are left: %d held, %d attached, %d waiting", len(p.held), len(p.attached), p.waiters)
	}
}

// A hub without feeds keeps nothing of the chunks, and of a model with one what others hold.
func TestRemoveForgets(t *testing.T) {
	var hub Hub
	one, two := NewFeed("n", "m", discard{}, 1<<30, chunkTokens), NewFeed("n", "m", discard{}, 1<<30, chunkTokens)
	hub.Add(one)
	hub.Add(two)
	hub.Push(t.Context(), &Batch{Instance: "n", Seq: 1, Type: Store, Tier: host, Backend: "cpu",
		Entries: []Entry{{Model: "m", Hash: "h", Tokens: make([]uint32, 16), World: 1}}}, monday)
	hub.Remove(one)
	if c := hub.chains["m"]; c == nil || len(c.attachments.held) != 1 || len(one.book.chunks) != 0 || len(two.book.chunks) != 1 {
		t.Errorf("after the first: %+v", c)
	}
	hub.Remove(two)
	if len(hub.chains) != 0 || len(two.book.chunks) != 0 {
		t.Errorf("after the last: %v, %d chunks", hub.chains, len(two.book.chunks))
	}
}

// Waiting chunks that are gone make room for others.
func TestWaitersAreSwept(t *testing.T) {
	p := newAttachments()
	f := NewFeed("n", "m", newHeard(t), 1<<30, chunkTokens)
	appear := func(hash string, held bool) {
		at := chunkID{tier: host, hash: hash}
		if held {
			f.book.chunks[at] = &chunk{whole: 1}
		}
		p.addChunk(waiter{feed: f, at: at, parent: "none of them"}, true)
	}
	for i := range maxWaiters {
		appear(fmt.Sprint(i), i%2 == 0)
	}
	if appear("x", true); p.waiters != maxWaiters/2+1 {
		t.Errorf("%d chunks wait, want %d", p.waiters, maxWaiters/2+1)
	}
	for i := range maxWaiters {
		appear(fmt.Sprint("more ", i), true)
	}
	if p.waiters != maxWaiters {
		t.Errorf("%d chunks wait, want %d", p.waiters, maxWaiters)
	}
}

// BenchmarkPush reports chunks of prompts as they are stored: two shards each, without parents.
func BenchmarkPush(b *testing.B) {
	const prompts, length = 64, 16
	var all []Batch
	for i := range prompts {
		batch := Batch{Instance: "n", Type: Store, Tier: host, Backend: "dram"}
		for _, e := range newPrompt(nil, uint32(i*10_000), length).chunks {
			for rank := range 2 {
				e.World, e.Rank = 2, rank
				batch.Entries = append(batch.Entries, e)
			}
		}
		all = append(all, batch)
	}
	b.ReportAllocs()
	for b.Loop() {
		hub := new(Hub)
		hub.Add(NewFeed("n", "m", discard{}, 1<<30, chunkTokens))
		for i := range all {
			all[i].Seq = uint64(i + 1)
			hub.Push(b.Context(), &all[i], monday)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*prompts*length*2), "ns/entry")
}

// discard is a receiver that keeps nothing.
type discard struct{}

func (discard) Take(d *Delivery)      { d.End() }
func (discard) Renew() bool           { return false }
func (discard) Room() <-chan struct{} { return nil }
func (discard) Trust(string)          {}
func (discard) Drop(string, int)      {}
