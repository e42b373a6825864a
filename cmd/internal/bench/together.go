package bench

import (
	"sync"
	"sync/atomic"
	"time"
)

// Together compares writers and readers on goroutines of their own, first each
// kind alone, then both at once.
type Together struct {
	Writers int `json:"writers"`
	Readers int `json:"readers"`
	// Blocks per second, summed over the goroutines.
	WriteAlone    float64 `json:"write_alone_blocks_per_sec"`
	ReadAlone     float64 `json:"read_alone_blocks_per_sec"`
	WriteTogether float64 `json:"write_together_blocks_per_sec"`
	ReadTogether  float64 `json:"read_together_blocks_per_sec"`
	WriteKept     float64 `json:"write_kept"` // together over alone
	ReadKept      float64 `json:"read_kept"`
	Alone         struct {
		Latencies
	} `json:"alone"`
	Beside struct {
		Latencies
	} `json:"beside"`
}

// readPhase is how long readers run where no writers say when to stop.
const readPhase = time.Second

// together fills a structure with the first half of the stream and measures on the
// second. On fewer cores than goroutines they share these, which is no fault of the
// structure. Readers ask the queries of the second half over and over, in the state
// before the writers and in the one after; their rate alone is the mean, for
// together they see everything in between.
func together(c *Config, name string, s *Stream, writers, readers int, clk *clock) Together {
	t := Together{Writers: writers, Readers: readers}
	half := len(s.ops) / 2
	if c.Synthetic > 0 {
		half = s.load / 2
	}
	var asks []op
	for _, o := range s.ops[half:] {
		if o.kind == query {
			asks = append(asks, o)
		}
	}
	shares := split(s.ops[half:], s.tiers, writers)
	phase := readPhase
	if c.Duration > 0 {
		phase = c.Duration
	}

	filled := func() Structure {
		l := load{st: build(c, name, true), s: s}
		for i := range s.ops[:half] {
			l.change(&s.ops[i])
		}
		return l.st
	}
	st := filled()
	before := startReaders(st, s, asks, readers, clk)
	time.Sleep(phase)
	readBefore := before.stop()
	t.WriteAlone = write(st, s, shares, clk, nil)
	after := startReaders(st, s, asks, readers, clk)
	time.Sleep(phase)
	readAfter := after.stop()
	t.ReadAlone = (readBefore + readAfter) / 2
	t.Alone.Latencies = latencies(append(before.samples(), after.samples()...))

	st = filled()
	beside := startReaders(st, s, asks, readers, clk)
	t.WriteTogether = write(st, s, shares, clk, func() { t.ReadTogether = beside.stop() })
	t.Beside.Latencies = latencies(beside.samples())
	if t.WriteAlone > 0 {
		t.WriteKept = t.WriteTogether / t.WriteAlone
	}
	if t.ReadAlone > 0 {
		t.ReadKept = t.ReadTogether / t.ReadAlone
	}
	return t
}

// split deals the stores and removals to writers, all of one worker to the same.
func split(ops []op, tiers, writers int) [][]op {
	shares := make([][]op, writers)
	for _, o := range ops {
		if o.kind != query {
			w := int(o.owner) / tiers % writers
			shares[w] = append(shares[w], o)
		}
	}
	return shares
}

// write runs all shares side by side and returns the sum of their rates. first is
// called when the first of them is done.
func write(st Structure, s *Stream, shares [][]op, clk *clock, first func()) float64 {
	rates := make([]float64, len(shares))
	var wg sync.WaitGroup
	var once sync.Once
	for i, ops := range shares {
		wg.Go(func() {
			l := load{st: st, s: s}
			from := clk.now()
			for j := range ops {
				l.change(&ops[j])
			}
			rates[i] = perSecond(l.sizes.all(), clk.now()-from)
			if first != nil {
				once.Do(first)
			}
		})
	}
	wg.Wait()
	return sum(rates)
}

// crew are readers at work.
type crew struct {
	halt  atomic.Bool
	wg    sync.WaitGroup
	loads []*load
	took  []time.Duration // of each, without what the clock cost
}

// startReaders lets n readers ask, each beginning elsewhere.
func startReaders(st Structure, s *Stream, asks []op, n int, clk *clock) *crew {
	const most = 1 << 20 // samples of one reader
	c := &crew{took: make([]time.Duration, n)}
	for i := range n {
		l := &load{st: st, s: s, clk: clk, rows: make([]Depth, 0, s.owners), samples: make([]uint32, 0, most)}
		c.loads = append(c.loads, l)
		c.wg.Go(func() {
			from := clk.now()
			for at := i * len(asks) / n; len(asks) > 0; at++ {
				at %= len(asks)
				l.replay(asks[at : at+1])
				if c.halt.Load() { // after the first query at the earliest
					break
				}
			}
			// A query costs two readings around it and two around its replay.
			c.took[i] = max(1, clk.now()-from-4*clk.cost*time.Duration(l.sizes.Requests))
		})
	}
	return c
}

// stop ends the readers and returns the sum of their rates.
func (c *crew) stop() float64 {
	c.halt.Store(true)
	c.wg.Wait()
	rates := make([]float64, len(c.loads))
	for i, l := range c.loads {
		rates[i] = perSecond(l.sizes.QueryBlocks, c.took[i])
	}
	return sum(rates)
}

func (c *crew) samples() (all []uint32) {
	for _, l := range c.loads {
		all = append(all, l.samples...)
	}
	return all
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}
