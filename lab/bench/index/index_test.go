package index

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	payloads "example.com/conductor/events/payload"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/harness"
)

// small returns a load of 150 requests, or of a third under the race detector: make test
// runs this package once more without the detector.
func small() Config {
	requests := 150
	if payloads.PoisonsReleased {
		requests = 50
	}
	return Config{
		Requests: requests, Workers: 6, Copies: 2, BlockSize: 128, Capacity: 150, Tiers: 1, Choices: 2, Seed: 1, Holders: 1, Target: 20_000,
		Events: Engine, HashSeeds: 1, Writers: 1, Readers: 1,
	}
}

// streamOf makes the stream of a configuration in the hashes of its events.
func streamOf(t testing.TB, c Config) (canonical, named *Stream, p *prompts) {
	t.Helper()
	must.Succeed(t, c.Check())
	s, p, err := generateStreams(&c)
	must.Succeed(t, err)
	if c.Events == Canonical {
		return s, s, p
	}
	return s, s.withEngineHashes(), p
}

// print is a fingerprint of all operations.
func (s *Stream) print() uint64 {
	var text []byte
	put := func(v ...uint64) {
		for _, v := range v {
			text = binary.LittleEndian.AppendUint64(text, v)
		}
	}
	for i := range s.ops {
		o := &s.ops[i]
		text = fmt.Append(text, o.kind, o.owner, o.hasParent, o.bare, o.family, o.class, o.parent)
		switch o.kind {
		case remove:
			put(s.gone[o.from:o.to]...)
		case store:
			put(s.namesOf(o)...)
			fallthrough
		case query:
			put(s.seq[o.from:o.to]...)
			put(s.local[o.from:o.to]...)
		}
	}
	put(uint64(s.owners), uint64(s.tiers), uint64(s.load))
	return xxh3.Hash(text)
}

// TestStreamIsDeterministic holds that a configuration gives the same operations again, and
// that each setting changes them.
func TestStreamIsDeterministic(t *testing.T) {
	print := func(c Config) uint64 {
		_, s, _ := streamOf(t, c)
		if len(s.ops) == 0 || s.countSizes().QueryBlocks == 0 {
			t.Fatal("the stream is empty")
		}
		return s.print()
	}
	f := func(c Config, changes ...func(*Config)) {
		t.Helper()
		want := print(c)
		if got := print(c); got != want {
			t.Errorf("%+v: prints %x and %x", c, want, got)
		}
		for _, change := range changes {
			other := c
			if change(&other); print(other) == want {
				t.Errorf("%+v and %+v: prints %x", c, other, want)
			}
		}
	}
	changes := []func(*Config){
		func(c *Config) { c.Seed = 2 },
		func(c *Config) { c.Copies = 1 },
		func(c *Config) { c.Tiers = 3 },
		func(c *Config) { c.Pools = 2 },
		func(c *Config) { c.HashSeeds = 3 },
		func(c *Config) { c.Repeat = 50 },
		func(c *Config) { c.EventBlock = 2 },
		func(c *Config) { c.Synthetic = 1000 },
	}
	for _, which := range Cases {
		changes = append(changes, func(c *Config) { c.Case = which })
	}
	c := small()
	f(c, changes...)
	c.Synthetic = 1000
	f(c, func(c *Config) { c.Holders = 2 }, func(c *Config) { c.Churn = 500 })
	c.Synthetic, c.SMG = 0, "fragmented"
	f(c, func(c *Config) { c.SMG = "pinned" })
}

// A trace file with the prompts of the built-in shape gives the same operations.
func TestTraceFile(t *testing.T) {
	c := small()
	var text strings.Builder
	for next := builtIn(c.Requests); ; {
		req, ok := next()
		if !ok {
			break
		}
		var ids []uint64
		for _, s := range req.Prompt {
			ids = append(ids, s.ID)
		}
		js, err := json.Marshal(map[string]any{"timestamp": 0, "input_length": req.PromptLen(), "output_length": 1, "hash_ids": ids})
		must.Succeed(t, err)
		fmt.Fprintf(&text, "%s\n", js)
	}
	file := c
	file.Trace = filepath.Join(t.TempDir(), "trace.jsonl")
	must.Succeed(t, os.WriteFile(file.Trace, []byte(text.String()), 0o600))
	_, a, _ := streamOf(t, c)
	_, b, _ := streamOf(t, file)
	if a.print() != b.print() {
		t.Error("the streams differ")
	}
}

// Devices stay closed whatever is evicted, no tier holds more than it can, and the
// operations say what the caches hold.
func TestCachesAreClosed(t *testing.T) {
	f := func(change func(*Config)) {
		t.Helper()
		c := small()
		change(&c)
		p, err := openPrompts(&c)
		must.Succeed(t, err)
		evicted, at := false, 0
		oracle := newOracle((c.Workers + c.Pools) * c.Tiers)
		s := serveChains(&c, p, func(f *caches) {
			for ; at < len(f.s.ops); at++ {
				o := &f.s.ops[at]
				evicted = evicted || o.kind == remove
				oracle.applyOp(f.s, o)
			}
			for _, w := range f.workers {
				for n, l := range w.tiers {
					held := oracle[l.owner]
					if len(l.at) > c.Capacity || len(l.at) != len(held) {
						t.Fatalf("tier %d holds %d blocks, its capacity is %d, announced are %d", n, len(l.at), c.Capacity, len(held))
					}
					for b := range l.at {
						if held[p.blocks[b].seq] != 1 {
							t.Fatalf("tier %d holds a block it did not announce", n)
						}
						parent := p.blocks[b].parent
						if parent >= 0 && n == 0 && !l.has(parent) {
							t.Fatal("a device holds a block without its parent")
						}
						if parent >= 0 && c.Pools == 0 && !slices.ContainsFunc(w.tiers, func(l *tier) bool { return l.has(parent) }) {
							t.Fatalf("tier %d holds a block without its parent", n)
						}
					}
				}
			}
		})
		if z := s.countSizes(); !evicted || z.StoreBlocks-z.RemoveBlocks != oracle.CountMemberships() {
			t.Errorf("evicted %t, %+v, %d held", evicted, z, oracle.CountMemberships())
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Tiers = 3 })
	f(func(c *Config) { c.Pools = 2 })
	f(func(c *Config) { c.Tiers, c.Pools = 3, 2 })
}

// A trace longer than a cache is cut at its end.
func TestCapacityBelowPrompt(t *testing.T) {
	c := small()
	c.Capacity = 5
	s, _, _ := streamOf(t, c)
	for _, o := range s.ops {
		if o.kind == store && o.to-o.from > 5 {
			t.Fatalf("%d blocks stored at once", o.to-o.from)
		}
	}
}

// The index gives the oracle's answers to every query of every kind of load.
func TestIndexAgainstOracle(t *testing.T) {
	f := func(change func(*Config)) {
		t.Helper()
		c := small()
		change(&c)
		canonical, named, _ := streamOf(t, c)
		if err := verifyAnswers(&c, canonical, named); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, events := range []string{Engine, Canonical} {
		f(func(c *Config) { c.Events = events })
		f(func(c *Config) { c.Events, c.Capacity = events, 40 })
		f(func(c *Config) { c.Events, c.Tiers, c.Capacity = events, 3, 40 })
		f(func(c *Config) { c.Events, c.Synthetic, c.Holders, c.Churn = events, 3000, 3, 1000 })
		f(func(c *Config) { c.Events, c.Tiers, c.Repeat = events, 3, 30 })
		for _, which := range Cases {
			f(func(c *Config) { c.Events, c.Case = events, which })
		}
	}
	f(func(c *Config) { c.HashSeeds, c.Tiers = 4, 3 })
	f(func(c *Config) { c.Pools = 2 })
	f(func(c *Config) { c.Pools, c.HashSeeds = 4, 2 })
	f(func(c *Config) { c.Tiers, c.HashOnly, c.Pools, c.Repeat, c.EventBlock = 3, true, 2, 20, 7 })
	f(func(c *Config) { c.SMG = "pinned" })
	f(func(c *Config) { c.SMG = "fragmented" })
	f(func(c *Config) { c.SMG = "churn" })
}

// A wrong answer and a lost block are noticed.
func TestVerifyNotices(t *testing.T) {
	f := func(spoil func(*Stream), want string) {
		t.Helper()
		c := small()
		c.Synthetic = 1000
		canonical, named, _ := streamOf(t, c)
		spoil(named)
		if err := verifyAnswers(&c, canonical, named); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f(func(s *Stream) { s.ops[0].owner++ }, "the answer is")
	f(func(s *Stream) { s.ops[0].to-- }, "the answer is")
	f(func(s *Stream) { // behind the last query
		last := s.ops[0]
		last.owner++
		s.ops = append(s.ops, last)
		s.ops[len(s.ops)-2] = last
	}, "the answer is")
}

// Each case changes the order of events as its name says.
func TestCasesChangeOrder(t *testing.T) {
	f := func(which string, want ...uint64) {
		t.Helper()
		s := &Stream{tiers: 1, owners: 1, load: 3, seq: []uint64{1, 2, 3, 4, 5}, local: []uint64{11, 12, 13, 14, 15},
			gone: []uint64{5, 4, 3, 2, 1}, ops: []op{
				{kind: store, from: 0, to: 5}, {kind: query, from: 0, to: 5}, {kind: remove, from: 0, to: 5},
			}}
		s.makeCase(which)
		var got []uint64
		for i := range s.ops {
			switch o := &s.ops[i]; {
			case o.kind != query && o.to != o.from+1:
				t.Errorf("%s: operation %d has %d blocks", which, i, o.to-o.from)
			case o.kind == store && o.hasParent != (which != "roots" && o.from > 0), o.hasParent && o.parent != s.seq[o.from-1]:
				t.Errorf("%s: store %d has the parent %d, %t", which, i, o.parent, o.hasParent)
			case o.kind == remove:
				got = append(got, s.gone[o.from])
			case o.kind == query && which == "roots" && (o.to != 1 || s.local[0] != 1):
				t.Errorf("query to %d of %v", o.to, s.local)
			}
		}
		if which == "shuf1" {
			slices.Sort(got)
		}
		if !slices.Equal(got, want) || s.load != 11 {
			t.Errorf("%s removes %v, want %v; load %d", which, got, want, s.load)
		}
	}
	f("split1", 5, 4, 3, 2, 1)
	f("zip1", 5, 2, 4, 1, 3)
	f("holes1", 5, 3, 1, 4, 2)
	f("shuf1", 1, 2, 3, 4, 5)
	f("roots", 5, 4, 3, 2, 1)
}

func TestRunReport(t *testing.T) {
	f := func(change func(*Config), keys ...string) {
		t.Helper()
		c := small()
		change(&c)
		r, err := Run(c)
		must.Succeed(t, err)
		var js, table bytes.Buffer
		must.Succeed(t, harness.Print(&js, r, true))
		r.Table(&table)
		var got map[string]any
		must.Succeed(t, json.Unmarshal(js.Bytes(), &got))
		for _, k := range append(keys, "block_ops_per_sec", "query_blocks_per_sec", "write_blocks_per_sec", "query", "write", "cpu_seconds",
			"unique_blocks", "memberships", "index_bytes", "alias_bytes", "bytes_per_block", "rss_bytes", "gc_pause_p99_ns",
			"gc_cpu_fraction",
			"machine", "events", "config", "stream") {
			if _, ok := got[k]; !ok {
				t.Errorf("no key %q in %s", k, js.String())
			}
		}
		if got["block_ops_per_sec"].(float64) <= 0 || got["memberships"].(float64) <= 0 ||
			got["query"].(map[string]any)["p99_ns"].(float64) <= 0 {
			t.Errorf("got %s", js.String())
		}
		if !strings.Contains(table.String(), c.Events) {
			t.Errorf("the table lacks %s:\n%s", c.Events, table.String())
		}
		if want := map[bool]int{true: r.Stream.Requests}[c.Verify]; r.Verified != want {
			t.Errorf("%d answers verified, want %d", r.Verified, want)
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Events = Canonical })
	f(func(c *Config) { c.Tiers, c.Verify = 3, true })
	f(func(c *Config) { c.Events, c.HashSeeds, c.Tiers = Wire, 2, 3 }, "wire")
	f(func(c *Config) { c.Synthetic, c.Holders = 5000, 3 }, "bytes_per_further_membership")
	f(func(c *Config) { c.Synthetic, c.Churn, c.EventBlock = 5000, 2000, 64 })
	f(func(c *Config) { c.SMG, c.Verify = "fragmented", true }, "classes")
	f(func(c *Config) { c.Duration, c.Together = 10*time.Millisecond, true }, "together")
	f(func(c *Config) { c.Writers, c.Readers, c.Together = 2, 0, true }, "together")
	f(func(c *Config) { c.Scale, c.Duration = oneAndTwoCores(), 10*time.Millisecond }, "scale")
}

// TestWithoutPart: a part that is longer on the wall clock than all CPU time leaves the rest of the CPU time.
func TestWithoutPart(t *testing.T) {
	for _, c := range []struct{ cpu, wall, part, want time.Duration }{
		{100, 100, 20, 80},  // nothing else ran
		{150, 100, 20, 130}, // the collector ran on other cores
		{30, 120, 80, 10},   // others had the core for 90
		{0, 0, 0, 0},
	} {
		if got := withoutPart(c.cpu, c.wall, c.part); got != c.want {
			t.Errorf("%d of CPU in %d, %d of it off: got %d, want %d", c.cpu, c.wall, c.part, got, c.want)
		}
	}
}

// oneAndTwoCores returns the numbers of cores up to two that this process may use.
func oneAndTwoCores() []int {
	if runtime.NumCPU() < 2 {
		return []int{1}
	}
	return []int{1, 2}
}

func TestConfigCheck(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		c := small()
		change(&c)
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f(func(c *Config) { c.Trace, c.Synthetic = "x", 5 }, "exclude each other")
	f(func(c *Config) { c.Requests = 0 }, "requests is 0")
	f(func(c *Config) { c.Synthetic, c.Holders = 5, 7 }, "holders is 7")
	f(func(c *Config) { c.Synthetic, c.Tiers = 5, 3 }, "need a trace")
	f(func(c *Config) { c.Synthetic, c.Events = 5, Wire }, "no tokens")
	f(func(c *Config) { c.SMG = "loose" }, `"loose"`)
	f(func(c *Config) { c.SMG, c.Target = "pinned", 0 }, "target is 0")
	f(func(c *Config) { c.SMG, c.Events = "pinned", Canonical }, "engine hashes")
	f(func(c *Config) { c.Tiers = 2 }, "tiers is 2")
	f(func(c *Config) { c.Events = "raw" }, `"raw"`)
	f(func(c *Config) { c.Events, c.Case = Wire, "zip1" }, "wire events have no")
	f(func(c *Config) { c.Case = "zip2" }, `"zip2"`)
	f(func(c *Config) { c.Workers = 0 }, "workers is 0")
	f(func(c *Config) { c.Scale = []int{0} }, "scale is 0")
	f(func(c *Config) { c.BlockSize = 100 }, "block size 100")
	f(func(c *Config) { c.Pools, c.HashSeeds = 3, 2 }, "pools is 3")
	f(func(c *Config) { c.Repeat = 101 }, "repeat is 101")
	f(func(c *Config) { c.Trace = "gone" }, "cannot open the trace")
	f(func(c *Config) { c.Ops = "gone" }, "cannot open the ops file")
}

// Payloads carry what the stream says: after all of them the index gives the oracle's
// answers.
func TestWireCarriesTheStream(t *testing.T) {
	c := small()
	c.Events, c.Tiers, c.HashSeeds, c.EventBlock = Wire, 3, 2, 3
	canonical, named, p := streamOf(t, c)
	clk := newClock()
	l := newLoad(newIndexed(named, c.Events), &clk)
	res, err := l.replayWire(&c, p)
	must.Succeed(t, err)
	oracle := canonical.holdersAtEnd()
	for i := range canonical.ops {
		o := &canonical.ops[i]
		if o.kind != query {
			continue
		}
		got := slices.SortedFunc(slices.Values(l.x.askQuery(o, &l.r)), func(a, b index.Prefix) int { return int(a.Owner) - int(b.Owner) })
		if want := oracle.Depths(canonical.seq[o.from:o.to], nil); !slices.Equal(got, want) {
			t.Fatalf("%d blocks: got %v, want %v", o.to-o.from, got, want)
		}
	}
	if z := canonical.countSizes(); res.Blocks != z.written() || l.sizes != z {
		t.Errorf("%d blocks from the wire, %+v, want %+v", res.Blocks, l.sizes, z)
	}
}
