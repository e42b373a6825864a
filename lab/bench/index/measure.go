package index

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"example.com/conductor/index"
	"example.com/conductor/lab/harness"
)

// Result is the figures of one replay. Rates are blocks per second of CPU time.
type Result struct {
	BlockOps    float64 `json:"block_ops_per_sec"`
	TokenOps    float64 `json:"token_block_ops_per_sec"` // those with tokens alone, over the CPU time of all
	QueryBlocks float64 `json:"query_blocks_per_sec"`
	WriteBlocks float64 `json:"write_blocks_per_sec"`
	Queries     float64 `json:"queries_per_sec"`
	CPU         float64 `json:"cpu_seconds"`
	Wall        float64 `json:"wall_seconds"`

	Query   Latencies            `json:"query"`
	Write   Latencies            `json:"write"`             // of one event, after the load where the stream has one
	Classes map[string]Latencies `json:"classes,omitempty"` // of smg's queries

	UniqueBlocks int `json:"unique_blocks"` // held at the end
	Memberships  int `json:"memberships"`

	// By the account of the index, names of blocks included.
	IndexBytes    int64   `json:"index_bytes"`
	AliasBytes    int64   `json:"alias_bytes"` // of them for names outside the pieces
	BytesPerBlock float64 `json:"bytes_per_block"`
	// BytesPerFurther is the bytes of a membership beyond the first of its block, of
	// synthetic loads with more than one holder.
	BytesPerFurther float64 `json:"bytes_per_further_membership,omitempty"`

	// Growth of the resident memory of the process, without the stream; 0 where the
	// system does not say it.
	RSSBytes         int64   `json:"rss_bytes"`
	RSSPeakBytes     int64   `json:"rss_peak_bytes"`
	RSSPerMembership float64 `json:"rss_per_membership"`

	AllocsPerBlock float64 `json:"allocs_per_block"`
	Collector

	Wire     *WireResult `json:"wire,omitempty"`
	Together *Together   `json:"together,omitempty"`
	Scale    []Scaled    `json:"scale,omitempty"`
}

// measureStructure replays a stream, its names in place, into a fresh index.
func measureStructure(c *Config, s *Stream, p *prompts, clk *clock) (Result, error) {
	var r Result
	l := newLoad(newIndexed(s, c.Events), clk)
	debug.FreeOSMemory()
	harness.ResetPeak()
	base, _ := harness.Resident()
	before := readRuntime()
	if c.Events == Wire {
		w, err := l.replayWire(c, p)
		if err != nil {
			return r, err
		}
		r.Wire = w
	} else if first := firstHolder(c, s); first > 0 {
		l.replayOps(s.ops[:first])
		one := l.x.x.Stats().Bytes
		l.replayOps(s.ops[first:])
		st := l.x.x.Stats()
		r.BytesPerFurther = float64(st.Bytes-one) / float64(st.Memberships-st.Blocks)
	} else {
		l.replayOps(s.ops)
	}
	after := readRuntime()
	now, peak := harness.Resident()
	r.RSSBytes, r.RSSPeakBytes = max(0, now-base), max(0, peak-base)
	allocs := float64(after.objects - before.objects)
	if r.Wire != nil {
		allocs = r.Wire.AllocsPerBlock * float64(r.Wire.Blocks) // without those of encoding
	}
	r.AllocsPerBlock = allocs / float64(l.sizes.QueryBlocks+l.sizes.written())
	r.measureCollector(before, c.Idle)

	st := l.x.x.Stats()
	runtime.KeepAlive(l.x)
	r.UniqueBlocks, r.Memberships = st.Blocks, st.Memberships
	r.IndexBytes, r.AliasBytes = int64(st.Bytes), int64(st.AliasBytes)
	r.BytesPerBlock = float64(st.Bytes) / float64(max(1, st.Blocks))
	r.RSSPerMembership = float64(r.RSSBytes) / float64(max(1, st.Memberships))

	asked, written := l.splitTime()
	r.BlockOps = perSecond(l.sizes.QueryBlocks+l.sizes.written(), l.cpu)
	r.TokenOps = perSecond(l.sizes.QueryBlocks+l.sizes.written()-l.sizes.HashOnly, l.cpu)
	r.QueryBlocks = perSecond(l.sizes.QueryBlocks, asked)
	r.WriteBlocks = perSecond(l.sizes.written(), written)
	r.Queries = perSecond(l.sizes.Requests, asked)
	r.CPU, r.Wall = l.cpu.Seconds(), l.wall.Seconds()
	if c.Events != Wire {
		r.Write = percentilesOf(l.writes[writesBefore(s):])
		for k, v := range l.byClass(s.ops) {
			if k != ordinary {
				if r.Classes == nil {
					r.Classes = map[string]Latencies{}
				}
				r.Classes[classNames[k]] = percentilesOf(v)
			}
		}
	}
	r.Query = percentilesOf(l.queries)
	return r, nil
}

// writesBefore returns how many writes belong to the load, 0 if nothing is written after it.
func writesBefore(s *Stream) (n int) {
	all := 0
	for i := range s.ops {
		if s.ops[i].kind != query {
			if all++; i < s.load {
				n++
			}
		}
	}
	if n == all {
		return 0
	}
	return n
}

// firstHolder returns how many operations bring the first holder of each block of
// a synthetic load, 0 where there is no further one.
func firstHolder(c *Config, s *Stream) int {
	if c.Synthetic == 0 || c.Holders == 1 || c.Churn > 0 || c.Case != "" || c.Repeat > 0 {
		return 0
	}
	return s.load / c.Holders
}

// measureCollector reads the work of the collector since before, and while the process idles. The
// runtime forces a cycle every two minutes of idling. The time watched is shorter, so
// collect forces one in it.
func (r *Result) measureCollector(before reading, idle time.Duration) {
	runtime.GC()
	loaded := readRuntime()
	r.FractionLoad = loaded.fraction(before)
	time.Sleep(idle)
	runtime.GC()
	end := readRuntime()
	r.Fraction = end.fraction(loaded)
	pauses := end.pausesSince(before)
	r.PauseP99, r.PauseMax, r.Pauses = int64(pauses.At(99)), int64(pauses.At(100)), pauses.Count()
	r.Cycles = int(end.cycles - before.cycles)
}

// verifyAnswers replays the canonical stream into an oracle and the named one into an index, and
// returns an error if an answer differs. It writes the hash of each answer to a file if
// one is named.
func verifyAnswers(c *Config, canonical, named *Stream) (err error) {
	x, oracle := newIndexed(named, c.Events), newOracle(canonical.owners)
	var out *bufio.Writer
	if c.Answers != "" {
		f, err := os.Create(c.Answers)
		if err != nil {
			return fmt.Errorf("cannot write the answers: %w", err)
		}
		out = bufio.NewWriter(f)
		defer func() { err = errors.Join(err, out.Flush(), f.Close()) }()
	}
	var r reader
	var want []index.Prefix
	for i := range canonical.ops {
		o := &canonical.ops[i]
		if o.kind != query {
			oracle.applyOp(canonical, o)
			x.applyOp(&named.ops[i])
			continue
		}
		got := x.askQuery(&named.ops[i], &r)
		h := hashOf(got)
		want = oracle.Depths(canonical.seq[o.from:o.to], want[:0])
		if !slices.Equal(got, want) {
			return fmt.Errorf("operation %d, a query of %d blocks: the answer is %v, the oracle's %v", i, o.to-o.from, got, want)
		}
		if out != nil {
			out.Write(binary.LittleEndian.AppendUint64(nil, h))
		}
	}
	if st := x.x.Stats(); st.Memberships != oracle.CountMemberships() || st.Blocks != oracle.CountBlocks() {
		return fmt.Errorf("the index holds %d blocks and %d memberships, the oracle %d and %d", st.Blocks, st.Memberships,
			oracle.CountBlocks(),
			oracle.CountMemberships())
	}
	return x.x.Check()
}
