package payload

import (
	"sync"
	"testing"
)

func TestTakeSizes(t *testing.T) {
	f := func(n, want int) {
		t.Helper()
		b := TakeBlock(n)
		if len(b.Bytes) != want {
			t.Errorf("Take(%d) has %d bytes, want %d", n, len(b.Bytes), want)
		}
		b.Release()
	}
	f(0, MinBlock)
	f(1, MinBlock)
	f(MinBlock, MinBlock)
	f(MinBlock+1, 2*MinBlock)
	f(100_000, 128<<10)
	f(maxPooled-1, maxPooled)
	f(maxPooled, maxPooled)
	f(maxPooled+1, maxPooled+1)
}

// A block goes round only after its last reference.
func TestBlockReferences(t *testing.T) {
	b := TakeBlock(100)
	b.Retain()
	b.Release()
	if !b.HasOneReference() {
		t.Error("a block with one reference is not alone")
	}
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("a block is released twice without a word")
		}
	}()
	b.Release()
}

// Free blocks are bounded and counted, and go when they are trimmed.
func TestPoolsAreBounded(t *testing.T) {
	TrimPools()
	var all []*Block
	for range 100 {
		all = append(all, TakeBlock(64<<10))
	}
	before, _ := DiscardedBytes()
	for _, b := range all {
		b.Release()
	}
	if after, more := DiscardedBytes(); PooledBytes() != poolBytes || after-before != 100*64<<10-poolBytes || len(more) > 1 {
		t.Errorf("%d bytes are free, %d are discarded", PooledBytes(), after-before)
	}
	if TrimPools(); PooledBytes() != 0 {
		t.Errorf("%d bytes are free after all have gone", PooledBytes())
	}
}

// A nil block and a nil Memory do nothing.
func TestNilBlockDoesNothing(t *testing.T) {
	var b *Block
	b.Retain()
	b.Release()
	var m *Memory
	m.CountRead(10)
	s := m.LiveShare()
	s.Set(10, 1<<40)
	if waiting, reading := m.Used(); !s.Fits(1<<40) || waiting+reading != 0 {
		t.Error("a Memory that is nil bounds something")
	}
}

// Blocks that several goroutines take, share and release stay whole.
func TestBlocksAreNotShared(t *testing.T) {
	var all sync.WaitGroup
	for g := range byte(4) {
		all.Go(func() {
			for i := range 2000 {
				b := TakeBlock(MinBlock << (i % 4))
				for j := range b.Bytes[:64] {
					b.Bytes[j] = g
				}
				b.Retain()
				b.Release()
				for _, v := range b.Bytes[:64] {
					if v != g {
						t.Error("another goroutine writes to the block")
						return
					}
				}
				b.Release()
			}
		})
	}
	all.Wait()
}

// n shares that take what they can get have 4/(4n+1) of the limit each, if they take it
// in turn.
func TestSharesAreFair(t *testing.T) {
	f := func(n int) {
		t.Helper()
		const limit, size = 1 << 20, 1000
		m := NewMemory(2 * limit)
		shares, held := make([]Share, n), make([]int, n)
		for i := range shares {
			shares[i] = m.LiveShare()
		}
		for more := true; more; {
			more = false
			for i := range shares {
				if shares[i].Fits(size) {
					held[i]++
					shares[i].Set(held[i], held[i]*size)
					more = true
				}
			}
		}
		want := maxShareOfFree * limit / (maxShareOfFree*n + 1)
		for i, k := range held {
			if got := k * (size + Overhead); got < want-2*(size+Overhead) || got > want+2*(size+Overhead) {
				t.Errorf("share %d of %d has %d bytes, want about %d", i, n, got, want)
			}
		}
		if used, _ := m.Used(); used > limit {
			t.Errorf("%d shares have %d bytes of %d", n, used, limit)
		}
	}
	f(1)
	f(2)
	f(5)
	f(50)
}

// A message larger than all goes into an empty queue, and nothing behind it.
func TestShareTakesOne(t *testing.T) {
	m := NewMemory(2000)
	s := m.ReplayShare()
	if !s.Fits(5000) {
		t.Error("an empty queue refuses a message")
	}
	s.Set(1, 5000)
	other := m.ReplayShare()
	if s.Fits(1) || !other.Fits(1) {
		t.Error("a full share takes more, or an empty one nothing")
	}
	live := m.LiveShare()
	live.Set(1, 1)
	if !live.Fits(500) {
		t.Error("replayed messages take the room of live ones")
	}
}
