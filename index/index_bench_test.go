package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// prompts returns chains of local hashes that share beginnings as chats do: half
// of a prompt continues an earlier one.
func prompts(n, blocks int) [][]uint64 {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([][]uint64, n)
	for i := range out {
		p := make([]uint64, blocks)
		for j := range p {
			p[j] = rng.Uint64()
		}
		if i > 0 && rng.IntN(2) == 0 {
			copy(p, out[rng.IntN(i)][:rng.IntN(blocks)])
		}
		out[i] = p
	}
	return out
}

// fleet is an index with one owner per source, and each source's own hashes.
type fleet struct {
	x      *Index
	owners []Owner
	locals [][]uint64
	chains [][]uint64
}

func newFleet(workers, n, blocks int) *fleet {
	return newFleetOf(Options{Scheme: hash.DefaultScheme()}, workers, n, blocks)
}

func newFleetOf(opts Options, workers, n, blocks int) *fleet {
	f := &fleet{x: New(opts), locals: prompts(n, blocks)}
	for range workers {
		f.owners = append(f.owners, f.x.NewOwner(f.x.NewSource()))
	}
	for _, l := range f.locals {
		f.chains = append(f.chains, hash.DefaultScheme().AppendChain(nil, l))
	}
	return f
}

// engine returns worker w's hashes of a prompt.
func (f *fleet) engine(dst []uint64, w, prompt int) []uint64 {
	for _, key := range f.chains[prompt] {
		dst = append(dst, key^uint64(w+1)*0x9e3779b97f4a7c15)
	}
	return dst
}

func (f *fleet) store(buf []uint64, w, prompt int) []uint64 {
	buf = f.engine(buf[:0], w, prompt)
	f.x.Store(&Store{Owner: f.owners[w], Engine: buf, Local: f.locals[prompt], Copies: CopySet})
	return buf
}

// fill stores each prompt at a few workers.
func (f *fleet) fill() {
	rng := rand.New(rand.NewPCG(3, 4))
	var buf []uint64
	for p := range f.chains {
		for range 1 + rng.IntN(4) {
			buf = f.store(buf, rng.IntN(len(f.owners)), p)
		}
	}
}

var sizes = []struct{ workers, prompts, blocks int }{
	{16, 2000, 64}, {128, 2000, 256}, {1000, 2000, 256},
}

func each(b *testing.B, run func(b *testing.B, f *fleet)) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("workers=%d/blocks=%d", s.workers, s.blocks), func(b *testing.B) {
			f := newFleet(s.workers, s.prompts, s.blocks)
			f.fill()
			b.ReportAllocs()
			b.ResetTimer()
			run(b, f)
		})
	}
}

func perBlock(b *testing.B, blocks int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}

// A prompt leaves one worker and appears at another: as much stored as removed.
func BenchmarkStoreRemove(b *testing.B) {
	each(b, func(b *testing.B, f *fleet) {
		var buf []uint64
		n := 0
		for i := 0; b.Loop(); i++ {
			p, w := i%len(f.chains), i%len(f.owners)
			buf = f.store(buf, w, p)
			f.x.Remove(f.owners[w], buf, nil, CopySet)
			n += 2 * len(buf)
		}
		perBlock(b, n)
	})
}

// The same blocks again, as engines report them after a hit.
func BenchmarkStoreAgain(b *testing.B) {
	each(b, func(b *testing.B, f *fleet) {
		var buf []uint64
		n := 0
		for p := range f.chains {
			buf = f.store(buf, 0, p)
		}
		b.ResetTimer()
		for i := 0; b.Loop(); i++ {
			buf = f.store(buf, 0, i%len(f.chains))
			n += len(buf)
		}
		perBlock(b, n)
	})
}

func BenchmarkMatch(b *testing.B) {
	each(b, func(b *testing.B, f *fleet) {
		var m Match
		var list keyList
		n := 0
		for i := 0; b.Loop(); i++ {
			c := f.chains[i%len(f.chains)]
			list = c
			f.x.matchChain(0, &list, &m)
			n += len(c)
		}
		perBlock(b, n)
	})
}

// BenchmarkClientHashes compares an index without and with what snapshots need.
func BenchmarkClientHashes(b *testing.B) {
	for _, op := range []string{"fill", "store", "match"} {
		for _, clientHashes := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/clientHashes=%t", op, clientHashes), func(b *testing.B) {
				opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: clientHashes}
				f := newFleetOf(opts, 128, 2000, 256)
				f.fill()
				var m Match
				var buf []uint64
				n := 0
				b.ResetTimer()
				for i := 0; b.Loop(); i++ {
					p, w := i%len(f.chains), i%len(f.owners)
					switch op {
					case "fill":
						f.x = New(opts)
						for o := range f.owners {
							f.owners[o] = f.x.NewOwner(f.x.NewSource())
						}
						f.fill()
						n += f.x.Stats().Memberships
					case "store":
						buf = f.store(buf, w, p)
						f.x.Remove(f.owners[w], buf, nil, CopySet)
						n += 2 * len(buf)
					case "match":
						f.x.matchKeys(0, f.chains[p], &m)
						n += len(f.chains[p])
					}
				}
				perBlock(b, n)
				st := f.x.Stats()
				b.ReportMetric(float64(st.Bytes)/float64(st.Blocks), "B/key")
			})
		}
	}
}

// A prompt that is new to all, 8192 tokens: with the lazy chain one block is hashed.
func BenchmarkMatchMiss(b *testing.B) {
	f := newFleet(16, 100, 64)
	f.fill()
	tokens := make([]uint32, 8192)
	b.Run("eager", func(b *testing.B) {
		var m Match
		var chain keyList
		b.ReportAllocs()
		for b.Loop() {
			chain = hash.DefaultScheme().AppendTokenChain(chain[:0], tokens, 16)
			f.x.matchChain(0, &chain, &m)
		}
	})
	b.Run("lazy", func(b *testing.B) {
		var m Match
		var c hash.Chain
		b.ReportAllocs()
		for b.Loop() {
			c.Reset(hash.DefaultScheme(), tokens, 16, 0)
			f.x.matchChain(0, &c, &m)
		}
	})
}

// Prompts of 8192 tokens, half of them held, among a million blocks: looked up in
// groups, and one block at a time.
func BenchmarkMatchLazy(b *testing.B) {
	const n, blocks, size = 4000, 256, 16
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	prompts := make([][]uint32, n)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range prompts {
		for range 2 * blocks * size {
			prompts[i] = append(prompts[i], rng.Uint32N(150_000))
		}
		held := prompts[i][:blocks*size]
		x.Store(&Store{Owner: o, Engine: hash.DefaultScheme().AppendTokenChain(nil, held, size),
			Local:  hash.DefaultScheme().AppendLocals(nil, held, size),
			Copies: CopySet})
	}
	run := func(name string, match func(c Chain, m *Match)) {
		b.Run(name, func(b *testing.B) {
			var m Match
			var c hash.Chain
			i := 0
			for b.Loop() {
				c.Reset(hash.DefaultScheme(), prompts[i*7919%n], size, 0)
				if match(&c, &m); m.Blocks != blocks {
					b.Fatal(m.Blocks)
				}
				i++
			}
			perBlock(b, i*blocks)
		})
	}
	run("groups", func(c Chain, m *Match) { x.matchChain(0, c, m) })
}

// Memory by membership, with every source hashing on its own.
func BenchmarkBytes(b *testing.B) {
	each(b, func(b *testing.B, f *fleet) {
		for b.Loop() {
			f.x.Stats()
		}
		st := f.x.Stats()
		b.ReportMetric(float64(st.Bytes)/float64(st.Memberships), "B/membership")
		b.ReportMetric(float64(st.Bytes)/float64(st.Blocks), "B/key")
		b.ReportMetric(float64(st.Memberships), "memberships")
	})
}

func BenchmarkClear(b *testing.B) {
	each(b, func(b *testing.B, f *fleet) {
		var buf []uint64
		n := 0
		for b.Loop() {
			b.StopTimer()
			for p := range 100 {
				buf = f.store(buf, 0, p)
			}
			b.StartTimer()
			n += f.x.ClearOwner(f.owners[0])
		}
		perBlock(b, max(n, 1))
	})
}

// BenchmarkClearMillion clears an owner of a million blocks: the call, after which
// no answer names them, and the rebuild that gives their memory back.
func BenchmarkClearMillion(b *testing.B) {
	const million = 1 << 20
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	keys := make([]uint64, 128)
	var clearing, tidying time.Duration
	for b.Loop() {
		b.StopTimer()
		for i := 0; i < million; i += len(keys) {
			for j := range keys {
				keys[j] = mix(uint64(i + j + 1))
			}
			x.Store(&Store{Owner: o, Engine: keys})
		}
		b.StartTimer()
		begin := time.Now()
		x.ClearOwner(o)
		cleared := time.Now()
		x.Stats()
		clearing += cleared.Sub(begin)
		tidying += time.Since(cleared)
	}
	b.ReportMetric(float64(clearing.Microseconds())/float64(b.N), "clear-µs")
	b.ReportMetric(float64(tidying.Microseconds())/float64(b.N), "memory-back-µs")
}
