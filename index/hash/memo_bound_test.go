//go:build !race

// The race detector changes what memory the runtime takes.

package hash

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// A memo of far more prompts than it can hold takes what it says, and no more than it
// may, whatever the sizes of blocks and adapters' names.
func TestMemoIsBounded(t *testing.T) {
	const bound = 4 << 20
	f := func(sizes []int, lora string) {
		t.Helper()
		rng := rand.New(rand.NewPCG(1, 1))
		c := chainOf(t, vllm(AlgorithmXXHash, "0", ""), lora, "", 1, nil)
		tokens := make([]uint32, 8*stretch*sizes[0])
		prompt := func() {
			for i := range tokens {
				tokens[i] = rng.Uint32()
			}
			for range 2 {
				c.Reset(tokens, sizes[rng.IntN(len(sizes))])
				c.At(c.Len() - 1)
			}
		}
		prompt() // grows the chain's buffers
		before := heapInUse()
		m := newMemo(t, bound)
		c.SetMemo(m)
		for half := range 2 {
			for range 500 {
				prompt()
				if half > 0 {
					m.Wait() // else it drops what a busy machine lets wait
				}
			}
			m.Wait()
			st, took := m.Stats(), heapInUse()-before
			t.Logf("blocks of %v, lora of %d: %d bytes, by its own account %d", sizes, len(lora), took, st.Bytes)
			if took > bound || st.Bytes > bound {
				t.Errorf("%d bytes, by its own account %d; the bound is %d", took, st.Bytes, bound)
			}
			const buffers = 64 << 10 // of the chain, which grow meanwhile
			if took > st.Bytes+buffers {
				t.Errorf("%d bytes, by its own account only %d", took, st.Bytes)
			}
		}
		if st := m.Stats(); st.Bytes < bound*3/4 {
			t.Errorf("only %d bytes of %d are used", st.Bytes, bound)
		}
		m.Close()
		runtime.KeepAlive(c)
	}
	f([]int{16}, "")
	f([]int{1}, "")
	f([]int{128}, "")
	f([]int{32, 4, 4}, strings.Repeat("l", 5000))
}

// heapInUse returns the bytes of reachable objects.
func heapInUse() int64 {
	var st runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied in two steps
	runtime.ReadMemStats(&st)
	return int64(st.HeapAlloc)
}
