package lmcache

import (
	"runtime"
	"testing"
)

// The account follows the heap, and all of it goes with the sources.
func TestMemoryIsCounted(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	hub := new(Hub)
	check := func(what string, more func()) {
		t.Helper()
		h, n := heap(), hub.Bytes()
		more()
		h, n = heap()-h, hub.Bytes()-n
		t.Logf("%s: %d bytes are counted, the heap has %d more", what, n, h)
		if n < h/2 || n > 2*h {
			t.Errorf("%s: %d bytes are counted, and the heap has %d more", what, n, h)
		}
	}
	var feeds []*Feed
	for _, emitter := range []string{"n", "pool:fs"} {
		feeds = append(feeds, NewFeed(emitter, "m", discard{}, 1<<30, chunkTokens))
		hub.Add(feeds[len(feeds)-1])
	}
	seq := uint64(0)
	push := func(shared bool, world int, from, to uint32) {
		for first := from; first < to; first++ {
			seq++
			b := Batch{Instance: "n", Seq: seq, Type: Store, Tier: host, Backend: "dram", Shared: shared}
			if shared {
				b.Tier, b.Backend = storage, "fs"
			}
			for _, e := range newPrompt(nil, 1000*first, 64).chunks {
				if e.World = world; shared && e.Offset == 0 {
					continue
				}
				b.Entries = append(b.Entries, e)
			}
			// As from the wire.
			again, _, _ := Parse(encode(&b))
			hub.Push(t.Context(), &again, monday)
		}
	}
	check("chunks", func() { push(false, 1, 0, 128) })
	check("shards", func() { push(false, 2, 512, 640) })
	check("shared chunks", func() { push(true, 1, 0, 128) })
	for _, f := range feeds {
		hub.Remove(f)
	}
	if n := hub.Bytes(); n != hub.gate.bytes || n < cursorBytes || n > 2*cursorBytes {
		t.Errorf("without sources %d bytes are counted", n)
	}
	runtime.KeepAlive(hub)
}
