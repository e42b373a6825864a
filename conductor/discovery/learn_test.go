package discovery

import (
	"testing"
	"testing/synctest"

	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/wire"
)

// An engine whose groups have blocks of several sizes is registered with the smallest one, and one whose layers all have a sliding
// window is registered, too.
func TestLearnBlockSizeOfGroups(t *testing.T) {
	stored := func(group int, kind string, size int) any {
		return map[string]any{"type": "BlockStored", "block_hashes": []uint64{1}, "parent_block_hash": nil,
			"token_ids": make([]uint32, size), "block_size": size, "medium": "GPU", "group_idx": group, "kv_cache_spec_kind": kind}
	}
	f := func(name string, want int, batches ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var net streamtest.Network
			p := net.PublisherAt("tcp://e:1")
			got := make(chan int, 1)
			go func() {
				size, err := LearnBlockSize(t.Context(), &net, Rank{Endpoint: "tcp://e:1"},
					func(b []byte) (events.Batch, error) { return wire.Decode(b, wire.DefaultLimits) })
				if err != nil {
					size = -1
				}
				got <- size
			}()
			synctest.Wait()
			for _, b := range batches {
				p.Publish(b)
			}
			if size := <-got; size != want {
				t.Errorf("%s: learned %d, want %d", name, size, want)
			}
		})
	}
	batch := func(all ...any) string { return streamtest.EncodeBatch(1.5, 0, all...) }
	f("several sizes", 16, batch(stored(0, "full_attention", 64), stored(1, "sliding_window", 16), stored(2, "mamba", 64)))
	f("windows alone", 32, batch(stored(0, "sliding_window", 32)))
	f("an encoder first", 16, batch(stored(0, "cross_attention", 8)), batch(stored(1, "mla_attention", 16)))
}
