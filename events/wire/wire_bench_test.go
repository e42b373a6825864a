package wire

import (
	"fmt"
	"testing"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// bigStore is a vLLM 0.31 store of n 16-token blocks.
func bigStore(n int) obj {
	hashes, tokens, extra := arr{}, arr{}, arr{}
	for i := range n {
		hashes = append(hashes, 0x9e3779b97f4a7c15*uint64(i+1))
		extra = append(extra, nil)
	}
	for i := range 16 * n {
		tokens = append(tokens, i*7919%151936)
	}
	return obj{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", uint64(1) << 63, "token_ids", tokens, "block_size", 16,
		"lora_id", nil, "medium", "GPU", "lora_name", "adapter-A", "extra_keys", extra, "group_idx", 0, "kv_cache_spec_kind",
		"full_attention"}
}

// arrayStore is bigStore as an array.
func arrayStore(n int) arr {
	o := bigStore(n)
	return arr{o[1], o[3], o[5], o[7], 16, nil, "GPU", "adapter-A", o[17], 0, "full_attention", nil}
}

// storm is a batch of n events: half one-block stores, half removals, as a full
// cache under load publishes.
func storm(n int) arr {
	list := arr{}
	for i := range n {
		if i%2 == 0 {
			list = append(list, bigStore(1))
		} else {
			list = append(list, obj{"type", "BlockRemoved", "block_hashes", arr{0xd1b54a32d192ed03 * uint64(i)}, "medium", "GPU",
				"group_idx", 0})
		}
	}
	return arr{1.5, list, 0}
}

func bench(b *testing.B, p []byte, blocks int) {
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		batch, err := Decode(p, DefaultLimits)
		must.Succeed(b, err)
		ReleaseBatch(&batch)
	}
	b.ReportMetric(float64(blocks)*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 16, 64, 1024} {
		b.Run(fmt.Sprintf("map/blocks=%d", n), func(b *testing.B) { bench(b, pack(b, arr{1.5, arr{bigStore(n)}, 0}), n) })
	}
	b.Run("array/blocks=64", func(b *testing.B) { bench(b, pack(b, arr{1.5, arr{arrayStore(64)}, 0}), 64) })
	b.Run("map/events=256", func(b *testing.B) { bench(b, pack(b, storm(256)), 256) })
	b.Run("removals/events=256", func(b *testing.B) {
		list := arr{}
		for i := range 256 {
			list = append(list, arr{"BlockRemoved", arr{uint64(i) << 40}, "GPU", 0})
		}
		bench(b, pack(b, arr{1.5, list, 0}), 256)
	})
}

// Blocks cost no allocation, and events alike none beyond their share of chunks.
func TestDecodeAllocations(t *testing.T) {
	f := func(batch any, most float64) {
		t.Helper()
		p := pack(t, batch)
		got := alloctest.PerRun(50, func() {
			if _, err := Decode(p, DefaultLimits); err != nil {
				t.Fatal(err)
			}
		})
		if got > most {
			t.Errorf("%d bytes: %v allocations, want at most %v", len(p), got, most)
		}
	}
	// What holds the rest, the event list, hashes, tokens, and the adapter's name with
	// its pointer.
	f(arr{1.5, arr{bigStore(1)}, 0}, 6)
	f(arr{1.5, arr{bigStore(64)}, 0}, 6)
	f(arr{1.5, arr{bigStore(5000)}, 0}, 6)
	f(storm(256), 9)
	f(storm(2), 9)

	// Once it was released, only the last two.
	g := func(batch any) {
		t.Helper()
		p := pack(t, batch)
		m := new(memory)
		if got := alloctest.PerRun(50, func() {
			if _, err := m.decodeBatch(p, DefaultLimits); err != nil {
				t.Fatal(err)
			}
			m.resetForReuse()
		}); got > 2 {
			t.Errorf("%d bytes: %v allocations with memory to use again, want at most 2", len(p), got)
		}
	}
	g(arr{1.5, arr{bigStore(1)}, 0})
	g(arr{1.5, arr{bigStore(500)}, 0})
	adapted := bigStore(500) // with nothing but the adapter's name in extra keys
	for i := range 500 {
		adapted[17].(arr)[i] = arr{"adapter-A"}
	}
	g(arr{1.5, arr{adapted}, 0})
	g(storm(256))
	arrays := arr{}
	for range 128 {
		arrays = append(arrays, arrayStore(1), arr{"BlockRemoved", arr{uint64(1) << 40}, "GPU", 0})
	}
	g(arr{1.5, arrays, 0})
	g(arr{1.5, arr{}, 0})
}
