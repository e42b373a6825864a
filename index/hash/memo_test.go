package hash

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

func newMemo(t testing.TB, bytes int64) *Memo {
	t.Helper()
	m, err := NewMemo(bytes)
	must.Succeed(t, err)
	t.Cleanup(m.Close)
	return m
}

// A stretch is looked up once, kept when it was hashed whole for the second time, and
// no block is hashed before it is asked for.
func TestMemoIsLazy(t *testing.T) {
	m := newMemo(t, 8<<20)
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 4*40)
	c := chainOf(t, vllm(AlgorithmSHA256, "0", ""), "adapter-A", "tenant-salt", 4, nil)
	c.SetMemo(m)
	f := func(tokens []uint32, block, computed int, hits, misses uint64) {
		t.Helper()
		before := m.Stats()
		c.Reset(tokens, 4)
		c.At(block)
		m.Wait()
		st := m.Stats()
		if c.Computed() != computed || st.Hits-before.Hits != hits || st.Misses-before.Misses != misses {
			t.Errorf("%d hashed, %d hits, %d misses; want %d, %d, %d", c.Computed(), st.Hits-before.Hits, st.Misses-before.Misses,
				computed, hits, misses)
		}
	}
	for range 3 { // stretches that are not whole are not kept
		f(tokens, 0, 1, 0, 1)
		f(tokens, 14, 15, 0, 1)
	}
	f(tokens, 15, 16, 0, 1)
	f(tokens, 16, 17, 0, 2) // the first one is kept now
	f(tokens, 0, 0, 1, 0)
	f(tokens, 15, 0, 1, 0)
	f(tokens, 16, 1, 1, 1)
	f(tokens, 39, 24, 1, 2)
	f(tokens, 39, 24, 1, 2) // and so are those behind it, the short one too
	f(tokens, 39, 0, 3, 0)
	f(tokens[:4*16], 15, 0, 1, 0)
	f(tokens[:4*16+3], 15, 0, 1, 0)
	f(tokens[:4*15], 14, 15, 0, 1) // it ends elsewhere
	other := append([]uint32(nil), tokens...)
	other[4*16]++ // behind the first stretch
	f(other, 39, 24, 1, 2)
}

func TestMemoOfNoBytes(t *testing.T) {
	for _, n := range []int64{-1, 0, LeastMemoBytes - 1} {
		if m, err := NewMemo(n); err == nil || m != nil {
			t.Errorf("a memo of %d bytes", n)
		}
	}
	var m *Memo
	m.Wait()
	m.Close()
	if st := m.Stats(); st != (MemoStats{}) {
		t.Errorf("no memo has %+v", st)
	}
	newMemo(t, LeastMemoBytes)
}

// Digests go on without a memo that is closed under them.
func TestMemoIsClosed(t *testing.T) {
	m := newMemo(t, 2<<20)
	s := vllm(AlgorithmXXHash, "0", "")
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 999)
	want := *chainOf(t, s, "", "", 3, tokens).Digest(332)
	var started, done sync.WaitGroup
	started.Add(4)
	for range 4 {
		done.Go(func() {
			c := chainOf(t, s, "", "", 3, nil)
			c.SetMemo(m)
			for i := range 100 {
				c.Reset(tokens, 3)
				if *c.Digest(332) != want {
					t.Error("another digest")
				}
				m.Wait()
				if i == 5 {
					started.Done()
				}
			}
		})
	}
	started.Wait()
	m.Close()
	m.Close()
	done.Wait()
	c := chainOf(t, s, "", "", 3, nil)
	c.SetMemo(m)
	c.Reset(tokens, 3)
	if *c.Digest(332) != want || c.Computed() != 333 {
		t.Error("a closed memo has digests")
	}
}

// An entry found by the hash of another key is none.
func TestMemoCompares(t *testing.T) {
	m := newMemo(t, 2<<20)
	const h = 12345
	f := func(entry, key, want string) {
		t.Helper()
		m.addEntry(h, []byte(entry))
		m.Wait()
		if got := string(m.findDigests(h, []byte(key))); got != want {
			t.Errorf("%q under %q: got %q, want %q", entry, key, got, want)
		}
	}
	f("key|digest", "key|", "digest")
	f("key|digest", "kez|", "")
	f("key|digest", "key|digest and more", "")
	f("kez|other", "key|", "")
	f("kez|other", "kez|", "other")
}

// memoPrompt is what a chain is asked for.
type memoPrompt struct {
	profile    Profile
	lora, salt string
	size       int
	tokens     []uint32
}

// memoPrompts have the same few tokens under everything else that digests depend on,
// and share beginnings.
func memoPrompts(t testing.TB, rng *rand.Rand, n int) (out []memoPrompt) {
	t.Helper()
	texts := []string{"", "", "a", "b", "ab", strings.Repeat("a", 30)}
	sizes := []int{1, 2, 3, 4, 8, 16}
	trunk := randomTokens(rng, 600)
	for range n {
		all := everyProfile()
		p, err := NewProfile(all[rng.IntN(len(all))])
		must.Succeed(t, err)
		tokens := append([]uint32(nil), trunk[:rng.IntN(len(trunk))]...)
		if len(tokens) > 0 && rng.IntN(2) == 0 {
			tokens[rng.IntN(len(tokens))]++
		}
		p = p.WithAhead([]int{0, 0, 1, 3}[rng.IntN(4)])
		out = append(out, memoPrompt{p, texts[rng.IntN(len(texts))], texts[rng.IntN(len(texts))], sizes[rng.IntN(len(sizes))], tokens})
	}
	return out
}

// sameAsWithout compares a chain that has a memo with one that has none, asking for
// blocks in random order, from the start of the prompt or from a block in it.
func sameAsWithout(t *testing.T, rng *rand.Rand, c *DigestChain, p memoPrompt) {
	if err := c.SetProfile(p.profile, p.lora, p.salt); err != nil {
		t.Error(err)
		return
	}
	plain, err := p.profile.NewDigestChain(p.lora, p.salt)
	if err != nil {
		t.Error(err)
		return
	}
	plain.Reset(p.tokens, p.size)
	c.Reset(p.tokens, p.size)
	from := 0
	if n := plain.Len(); n > 1 && rng.IntN(3) == 0 {
		from = 1 + rng.IntN(n-1)
		c.ResetBehind(*plain.Digest(from - 1), p.tokens[from*p.size:], p.size)
	}
	if c.Len() != plain.Len()-from {
		t.Errorf("%d blocks, want %d", c.Len(), plain.Len()-from)
		return
	}
	ask := []int{}
	for range 3 {
		if c.Len() > 0 {
			ask = append(ask, rng.IntN(c.Len()), c.Len()-1)
		}
	}
	for _, i := range ask {
		if got, want := *c.Digest(i), *plain.Digest(from + i); got != want {
			t.Errorf("%+v, lora %q, salt %q, %d tokens of %d behind %d: block %d is %x, want %x", p.profile.Settings(), p.lora, p.salt,
				len(p.tokens), p.size, from, i, got, want)
			return
		}
	}
}

// Goroutines that share a memo get the digests that each would compute alone, be it
// large or so small that it forgets all the time.
func TestMemoOfManyPrompts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := func(bytes int64) {
		m := newMemo(t, bytes)
		prompts := memoPrompts(t, rand.New(rand.NewPCG(seed, 1)), 300)
		var done sync.WaitGroup
		for g := range 8 {
			done.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(2+g)))
				var c DigestChain
				c.SetMemo(m)
				for range 150 {
					sameAsWithout(t, rng, &c, prompts[rng.IntN(len(prompts))])
				}
				m.Wait()
				for range 150 {
					sameAsWithout(t, rng, &c, prompts[rng.IntN(len(prompts))])
				}
			})
		}
		done.Wait()
		if st := m.Stats(); st.Hits == 0 || st.Misses == 0 || st.Bytes > bytes {
			t.Errorf("%+v of %d bytes", st, bytes)
		}
	}
	f(LeastMemoBytes)
	f(16 << 20)
}

// Two prompts of one memo, each as if there were none.
func FuzzMemo(f *testing.F) {
	f.Add(uint8(2), "", "", 1, []byte("0123456789abcdef"), uint8(2), "", "", 2, []byte("0123456789abcdef"))
	f.Add(uint8(0), "", "s", 2, []byte("0123456789abcdef"), uint8(1), "s", "", 2, []byte("0123456789abcdefghij"))
	f.Add(uint8(4), "ab", "", 1, []byte("01234567"), uint8(5), "a", "b", 1, []byte("01234567"))
	m, err := NewMemo(8 << 20)
	must.Succeed(f, err)
	f.Cleanup(m.Close)
	f.Fuzz(func(t *testing.T, kindA uint8, loraA, saltA string, sizeA int, dataA []byte, kindB uint8, loraB, saltB string, sizeB int,
		dataB []byte) {
		var c DigestChain
		c.SetMemo(m)
		rng := rand.New(rand.NewPCG(1, 1))
		ask := func(kind uint8, lora, salt string, size int, data []byte) {
			all := everyProfile()
			p, err := NewProfile(all[int(kind)%len(all)])
			must.Succeed(t, err)
			if !utf8.ValidString(lora) || !utf8.ValidString(salt) {
				return
			}
			var tokens []uint32
			for ; len(data) >= 4; data = data[4:] {
				tokens = append(tokens, binary.LittleEndian.Uint32(data))
			}
			sameAsWithout(t, rng, &c, memoPrompt{p, lora, salt, size, tokens})
		}
		for range 3 {
			ask(kindA, loraA, saltA, sizeA, dataA)
			ask(kindB, loraB, saltB, sizeB, dataB)
			m.Wait()
		}
	})
}

// A known prompt costs allocations by the stretch at most, not by the block.
func TestMemoAllocates(t *testing.T) {
	m := newMemo(t, 8<<20)
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 8192)
	for _, s := range everyProfile() {
		c := chainOf(t, s, "adapter-A", "tenant-salt", 16, nil)
		c.SetMemo(m)
		twice(c, tokens)
		before := m.Stats()
		n := alloctest.PerRun(10, func() {
			must.Succeed(t, c.SetProfile(c.profile, "adapter-A", "tenant-salt"))
			c.Reset(tokens, 16)
			c.At(c.Len() - 1)
		})
		if stretches := float64(c.Len()) / stretch; n > stretches {
			t.Errorf("%+v: %v allocations for %v stretches", s, n, stretches)
		}
		if st := m.Stats(); st.Misses != before.Misses {
			t.Errorf("%+v: %d misses", s, st.Misses-before.Misses)
		}
	}
}

// Four hashes share a place, the latest of them.
func TestMemoSeesAgain(t *testing.T) {
	m := newMemo(t, LeastMemoBytes)
	f := func(print uint64, want bool) {
		t.Helper()
		if got := m.wasHashedBefore(print<<33 | 7); got != want {
			t.Errorf("%d again: %v", print, got)
		}
	}
	for print := range uint64(4) {
		f(print+1, false)
	}
	for _, print := range []uint64{2, 4, 1, 3, 3} {
		f(print, true)
	}
	f(5, false)
	f(4, true)
	f(2, false) // the one that was not asked for longest
}
