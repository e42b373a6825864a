package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// traceFile writes a small trace in which conversations go on and everybody begins
// with the same segment.
func traceFile(t testing.TB) string {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	var text strings.Builder
	var talks [][]uint64
	next := uint64(1)
	for range 300 {
		var ids []uint64
		if len(talks) > 0 && r.IntN(2) == 0 {
			ids = slices.Clone(talks[r.IntN(len(talks))])
		} else {
			ids = []uint64{0}
		}
		for range 1 + r.IntN(4) {
			ids = append(ids, next)
			next++
		}
		talks = append(talks, ids)
		js, err := json.Marshal(map[string]any{
			"timestamp": 0, "input_length": len(ids)*segmentTokens - r.IntN(segmentTokens), "output_length": 1, "hash_ids": ids,
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s\n", js)
	}
	name := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func small(t testing.TB) Config {
	return Config{
		Trace: traceFile(t), Workers: 6, Copies: 2, BlockSize: 128, Capacity: 100, Tiers: 1, Choices: 2, Seed: 1, Holders: 1,
		Events: Canonical, HashSeeds: 1, EventBlock: 8, Structures: Structures, Writers: 1, Readers: 1,
	}
}

func TestStreamIsDeterministic(t *testing.T) {
	c := small(t)
	f := func(change func(*Config), same bool) {
		t.Helper()
		other := c
		change(&other)
		var prints [2]uint64
		for i, c := range []Config{c, other} {
			s, _, err := generate(&c)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.ops) == 0 || s.Size.QueryBlocks == 0 {
				t.Fatal("the stream is empty")
			}
			prints[i] = s.named(c.HashSeeds).print()
		}
		if (prints[0] == prints[1]) != same {
			t.Errorf("prints %x and %x, want equal: %t", prints[0], prints[1], same)
		}
	}
	f(func(*Config) {}, true)
	f(func(c *Config) { c.Seed = 2 }, false)
	f(func(c *Config) { c.Copies = 1 }, false)
	f(func(c *Config) { c.Tiers = 3 }, false)
	f(func(c *Config) { c.HashSeeds = 3 }, false)
	f(func(c *Config) { c.Trace, c.Synthetic = "", 1000 }, false)
	c.Trace, c.Synthetic = "", 1000
	f(func(*Config) {}, true)
	f(func(c *Config) { c.Holders = 2 }, false)
}

// Devices stay closed whatever is evicted, no tier holds more than it can, and the
// operations say what the caches hold.
func TestCachesAreClosed(t *testing.T) {
	for _, tiers := range []int{1, 3} {
		c := small(t)
		c.Tiers = tiers
		p, err := openPrompts(&c)
		if err != nil {
			t.Fatal(err)
		}
		evicted := false
		oracle, at := NewOracle(c.owners()), 0
		s := run(&c, p, func(f *caches) {
			for ; at < len(f.s.ops); at++ {
				switch o := &f.s.ops[at]; o.kind {
				case store:
					oracle.Store(o.owner, 0, false, f.s.seq[o.from:o.to], nil)
				case remove:
					evicted = true
					oracle.Remove(o.owner, f.s.gone[o.from:o.to])
				}
			}
			for id, w := range f.workers {
				for n, l := range w.tiers {
					if len(l.at) > c.Capacity {
						t.Fatalf("tier %d holds %d blocks, its capacity is %d", n, len(l.at), c.Capacity)
					}
					if len(l.at) != len(oracle.held[id*tiers+n]) {
						t.Fatalf("tier %d holds %d blocks, announced are %d", n, len(l.at), len(oracle.held[id*tiers+n]))
					}
					for b := range l.at {
						if oracle.held[id*tiers+n][p.blocks[b].seq] != 1 {
							t.Fatalf("tier %d holds a block it did not announce", n)
						}
						parent := p.blocks[b].parent
						if parent >= 0 && n == 0 && !l.has(parent) {
							t.Fatal("a device holds a block without its parent")
						}
						if parent >= 0 && !slices.ContainsFunc(w.tiers, func(l *lru) bool { return l.has(parent) }) {
							t.Fatalf("tier %d holds a block without its parent", n)
						}
					}
				}
			}
		})
		if !evicted || s.Size.StoreBlocks-s.Size.RemoveBlocks != oracle.Memberships() {
			t.Errorf("tiers %d: evicted %t, %d stored, %d removed, %d held", tiers, evicted, s.Size.StoreBlocks, s.Size.RemoveBlocks, oracle.Memberships())
		}
		if unique, memberships := s.held(&c); memberships != oracle.Memberships() || unique == 0 || unique > memberships {
			t.Errorf("%d unique blocks, %d memberships, want %d", unique, memberships, oracle.Memberships())
		}
	}
}

// A trace longer than a cache is cut at its end.
func TestCapacityBelowPrompt(t *testing.T) {
	c := small(t)
	c.Capacity = 5
	s, _, err := generate(&c)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range s.ops {
		if o.kind == store && o.to-o.from > 5 {
			t.Fatalf("%d blocks stored at once", o.to-o.from)
		}
	}
}

func TestRunReport(t *testing.T) {
	f := func(change func(*Config), keys ...string) {
		t.Helper()
		c := small(t)
		change(&c)
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		var js, table bytes.Buffer
		if err := r.JSON(&js); err != nil {
			t.Fatal(err)
		}
		if err := r.Table(&table); err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(js.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		for _, k := range append(keys, "block_ops_per_sec", "query_blocks_per_sec", "write_blocks_per_sec", "query_p50_ns", "query_p99_ns", "query_p999_ns",
			"unique_blocks", "memberships", "index_bytes", "alias_bytes", "bytes_per_block", "bytes_per_membership", "gc_pause_p99_ns", "gc_cpu_fraction",
			"machine", "structures", "config", "stream") {
			if _, ok := got[k]; !ok {
				t.Errorf("no key %q in %s", k, js.String())
			}
		}
		for _, name := range c.Structures {
			s, ok := got["structures"].(map[string]any)[name].(map[string]any)
			if !ok || s["block_ops_per_sec"].(float64) <= 0 || s["heap_bytes"].(float64) <= 0 || s["memberships"].(float64) <= 0 {
				t.Errorf("structure %s shows %v", name, s)
			}
			if !strings.Contains(table.String(), name) {
				t.Errorf("the table lacks %s:\n%s", name, table.String())
			}
		}
	}
	f(func(*Config) {}, "ratios")
	f(func(c *Config) { c.Tiers = 3 }, "ratios")
	f(func(c *Config) { c.Events, c.HashSeeds = Engine, 2 }, "ratios")
	f(func(c *Config) { c.Events, c.HashSeeds, c.Tiers = Wire, 2, 3 }, "ratios", "wire")
	f(func(c *Config) { c.Trace, c.Synthetic, c.Holders = "", 5000, 3 }, "ratios", "bytes_per_further_membership")
	f(func(c *Config) { c.Structures, c.Duration, c.Together = []string{Index}, 10*time.Millisecond, true }, "together")
	f(func(c *Config) {
		c.Structures, c.Scale, c.Duration = []string{Radix, Map, Positional}, []int{1, 2}, 10*time.Millisecond
	}, "scale")
}

func TestConfigCheck(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		c := small(t)
		change(&c)
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f(func(c *Config) { c.Trace = "" }, "either a trace")
	f(func(c *Config) { c.Synthetic = 5 }, "either a trace")
	f(func(c *Config) { c.Trace, c.Synthetic, c.Holders = "", 5, 7 }, "holders is 7")
	f(func(c *Config) { c.Trace, c.Synthetic, c.Tiers = "", 5, 3 }, "tiers is 3")
	f(func(c *Config) { c.Trace, c.Synthetic, c.Events = "", 5, Wire }, "no tokens")
	f(func(c *Config) { c.Tiers = 2 }, "tiers is 2")
	f(func(c *Config) { c.Events = "raw" }, `"raw"`)
	f(func(c *Config) { c.Structures = []string{"tree"} }, `"tree"`)
	f(func(c *Config) { c.Structures = nil }, "no structure")
	f(func(c *Config) { c.Workers = 0 }, "workers is 0")
	f(func(c *Config) { c.Scale = []int{0} }, "scale is 0")
	f(func(c *Config) { c.BlockSize = 100 }, "block size 100")
	f(func(c *Config) { c.Trace += ".gone" }, "cannot open the trace")
}

// Different answers are an error, not a figure.
func TestDifferentAnswers(t *testing.T) {
	r := Report{order: []string{Index, Map}, Ratios: map[string]Ratio{}, Structures: map[string]Result{Index: {answers: 1}, Map: {answers: 2}}}
	if err := r.compare(); err == nil {
		t.Error("no error")
	}
}
