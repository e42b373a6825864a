package bench

import (
	"runtime"
	"time"
)

// Result is what one structure showed.
type Result struct {
	Events string `json:"events"` // what it was given

	BlockOps    float64 `json:"block_ops_per_sec"` // all blocks over all time
	QueryBlocks float64 `json:"query_blocks_per_sec"`
	WriteBlocks float64 `json:"write_blocks_per_sec"`
	Queries     float64 `json:"queries_per_sec"`
	Latencies

	UniqueBlocks int `json:"unique_blocks"` // held at the end
	Memberships  int `json:"memberships"`

	// HeapBytes is what the structure keeps alive after the load, as the collector
	// sees it. IndexBytes is what the index itself accounts for without aliases;
	// a baseline accounts for nothing, there it is HeapBytes.
	HeapBytes  int64 `json:"heap_bytes"`
	IndexBytes int64 `json:"index_bytes"`
	AliasBytes int64 `json:"alias_bytes"`

	BytesPerBlock      float64 `json:"bytes_per_block"`      // IndexBytes over UniqueBlocks
	BytesPerMembership float64 `json:"bytes_per_membership"` // IndexBytes over Memberships
	AliasPerBlock      float64 `json:"alias_bytes_per_block"`
	// BytesPerFurther is what a membership beyond the first of its block takes, of
	// synthetic loads with more than one holder.
	BytesPerFurther float64 `json:"bytes_per_further_membership,omitempty"`

	AllocsPerBlock float64 `json:"allocs_per_block"`
	Collector

	Wire     *WireResult `json:"wire,omitempty"`
	Together *Together   `json:"together,omitempty"`
	Scale    []Together  `json:"scale,omitempty"`

	answers uint64
}

// measure runs the whole stream into a fresh structure, more than once if there is
// time for it, and looks at what it left behind the last time.
func measure(c *Config, name string, canonical, named *Stream, p *prompts, clk *clock) (Result, error) {
	r := Result{Events: Canonical}
	s := canonical
	if name == Index {
		r.Events, s = c.Events, named
	}
	wired := r.Events == Wire
	total := newLoad(nil, s, clk)
	started := clk.now()
	for again := true; again; {
		base := heap()
		l := &load{st: build(c, name, false), s: s, clk: clk, rows: total.rows, samples: total.samples[:0]}
		before := readRuntime()
		first := firstHolder(c, canonical)
		var afterFirst int64
		if wired {
			w, err := l.replayWire(c, p)
			if err != nil {
				return r, err
			}
			r.Wire = w
		} else {
			l.replay(s.ops[:first])
			if first > 0 {
				afterFirst = r.weigh(l.st, base)
			}
			l.replay(s.ops[first:])
		}
		after := readRuntime()
		total.rows, total.samples = l.rows, l.samples
		total.query += l.query
		total.write += l.write
		total.sizes.add(l.sizes)

		again = clk.now()-started < c.Duration
		if again {
			continue
		}
		r.AllocsPerBlock = float64(after.objects-before.objects) / float64(l.sizes.all())
		r.collect(before, c.Idle)
		bytes := r.weigh(l.st, base)
		r.UniqueBlocks, r.Memberships = canonical.held(c)
		if further := r.Memberships - r.UniqueBlocks; first > 0 && further > 0 {
			r.BytesPerFurther = float64(bytes-afterFirst) / float64(further)
		}
		r.answers = answers(l.st, canonical)
		runtime.KeepAlive(l.st)
	}
	r.BlockOps = perSecond(total.sizes.all(), total.query+total.write)
	r.QueryBlocks = perSecond(total.sizes.QueryBlocks, total.query)
	r.WriteBlocks = perSecond(total.sizes.StoreBlocks+total.sizes.RemoveBlocks, total.write)
	r.Queries = perSecond(total.sizes.Requests, total.query)
	r.Latencies = latencies(total.samples)
	if r.UniqueBlocks > 0 {
		r.BytesPerBlock = float64(r.IndexBytes) / float64(r.UniqueBlocks)
		r.AliasPerBlock = float64(r.AliasBytes) / float64(r.UniqueBlocks)
		r.BytesPerMembership = float64(r.IndexBytes) / float64(r.Memberships)
	}
	return r, nil
}

// firstHolder returns how many operations bring the first holder of each block of
// a synthetic load, 0 where there is no further one.
func firstHolder(c *Config, s *Stream) int {
	if c.Synthetic == 0 || c.Holders == 1 {
		return 0
	}
	return s.load / c.Holders
}

// weigh notes how much memory a structure takes and returns IndexBytes.
func (r *Result) weigh(st Structure, base int64) int64 {
	r.HeapBytes = heap() - base
	r.IndexBytes, r.AliasBytes = r.HeapBytes, 0
	if x, ok := st.(*indexed); ok {
		stats := x.x.Stats()
		r.AliasBytes = int64(stats.AliasBytes)
		r.IndexBytes = int64(stats.Bytes - stats.AliasBytes)
	}
	runtime.KeepAlive(st)
	return r.IndexBytes
}

// collect reads what the collector did since before and what it does while the
// process idles. The runtime forces a cycle every two minutes when nothing
// happens; here one is forced in the time watched, which is less.
func (r *Result) collect(before reading, idle time.Duration) {
	runtime.GC()
	loaded := readRuntime()
	r.FractionLoad = loaded.fraction(before)
	time.Sleep(idle)
	runtime.GC()
	end := readRuntime()
	r.Fraction = end.fraction(loaded)
	r.PauseP99, r.PauseMax, r.Pauses = end.pausesSince(before)
	r.Cycles = int(end.cycles - before.cycles)
}

func (z *Sizes) add(o Sizes) {
	z.Requests += o.Requests
	z.QueryBlocks += o.QueryBlocks
	z.StoreBlocks += o.StoreBlocks
	z.RemoveBlocks += o.RemoveBlocks
}

func (z *Sizes) all() int { return z.QueryBlocks + z.StoreBlocks + z.RemoveBlocks }

// held counts the distinct blocks and the memberships that are left at the end, by
// the stream's own account.
func (s *Stream) held(c *Config) (unique, memberships int) {
	if c.Synthetic > 0 {
		return s.Size.UniqueBlocks, s.Size.StoreBlocks
	}
	holders := make(map[uint64]int32, s.Size.UniqueBlocks)
	for i := range s.ops {
		switch o := &s.ops[i]; o.kind {
		case store:
			for _, k := range s.seq[o.from:o.to] {
				holders[k]++
			}
		case remove:
			for _, k := range s.gone[o.from:o.to] {
				if holders[k]--; holders[k] == 0 {
					delete(holders, k)
				}
			}
		}
	}
	return len(holders), s.Size.StoreBlocks - s.Size.RemoveBlocks
}
