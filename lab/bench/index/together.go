package index

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/lab/harness"
)

// Together compares writers and readers on goroutines of their own, first each
// kind alone, then both at once.
type Together struct {
	Cores   int `json:"cores,omitempty"` // the process was kept on; 0 for all
	Writers int `json:"writers"`
	Readers int `json:"readers"`
	// Blocks per second of wall time, summed over the goroutines.
	WriteAlone    float64 `json:"write_alone_blocks_per_sec"`
	ReadAlone     float64 `json:"read_alone_blocks_per_sec"`
	WriteTogether float64 `json:"write_together_blocks_per_sec"`
	ReadTogether  float64 `json:"read_together_blocks_per_sec"`
	WriteKept     float64 `json:"write_kept"` // together over alone
	ReadKept      float64 `json:"read_kept"`
	// Blocks per second of the threads' CPU time, which waiting is no part of.
	WriteAloneCPU    float64 `json:"write_alone_per_cpu_sec"`
	ReadAloneCPU     float64 `json:"read_alone_per_cpu_sec"`
	WriteTogetherCPU float64 `json:"write_together_per_cpu_sec"`
	ReadTogetherCPU  float64 `json:"read_together_per_cpu_sec"`
	// Of queries, without writers and with them.
	Alone  Latencies `json:"alone"`
	Beside Latencies `json:"beside"`
}

// Rates returns blocks written and read per second of wall time, side by side. Goroutines that share cores do in a second of
// wall time their part of what they do in one of CPU time.
func (t *Together) Rates() (written, read float64) {
	if n := t.Writers + t.Readers; 0 < t.Cores && t.Cores < n {
		part := float64(t.Cores) / float64(n)
		return part * t.WriteTogetherCPU, part * t.ReadTogetherCPU
	}
	return t.WriteTogether, t.ReadTogether
}

// Ops is the sum of Rates.
func (t *Together) Ops() float64 {
	written, read := t.Rates()
	return written + read
}

// speed is blocks per second of wall time and of CPU time.
type speed struct{ wall, cpu float64 }

func (s *speed) addBlocks(blocks int, wall, cpu time.Duration) {
	s.wall += perSecond(blocks, wall)
	s.cpu += perSecond(blocks, cpu)
}

// readPhase is how long readers run where no writers say when to stop.
const readPhase = time.Second

// measureTogether fills an index with the first half of the stream and measures on the
// second. It measures side by side in fresh indexes until the writers have written for the
// given time, and at least once. On fewer cores than goroutines they share these, which is
// no fault of the structure. Readers ask the queries of the second half over and over, in the state
// before the writers and in the one after; their rate alone is the mean, for
// together they see everything in between.
func measureTogether(c *Config, s *Stream, writers, readers int, clk *clock, least time.Duration) Together {
	t := Together{Writers: writers, Readers: readers}
	half := len(s.ops) / 2
	if c.Synthetic > 0 {
		half = s.load / 2
	}
	if readers == 0 {
		half = 0
	}
	var asks []op
	for _, o := range s.ops[half:] {
		if o.kind == query {
			asks = append(asks, o)
		}
	}
	shares := splitOps(s.ops[half:], s.tiers, writers)
	phase := readPhase
	if c.Duration > 0 {
		phase = c.Duration
	}
	if readers == 0 {
		phase = 0
	}

	filled := func() *indexed {
		x := newIndexed(s, c.Events)
		for i := range s.ops[:half] {
			if o := &s.ops[i]; o.kind != query {
				x.applyOp(o)
			}
		}
		return x
	}
	x := filled()
	before := startReaders(x, asks, readers, clk)
	time.Sleep(phase)
	readBefore := before.stopReaders()
	alone := runWriters(x, shares, clk, nil)
	after := startReaders(x, asks, readers, clk)
	time.Sleep(phase)
	readAfter := after.stopReaders()
	t.WriteAlone, t.WriteAloneCPU = alone.wall, alone.cpu
	t.ReadAlone, t.ReadAloneCPU = (readBefore.wall+readAfter.wall)/2, (readBefore.cpu+readAfter.cpu)/2
	t.Alone = percentilesOf(append(before.samplesOfAll(), after.samplesOfAll()...))

	var samples []uint32
	rounds := 0.0
	for written := time.Duration(0); rounds == 0 || written < least; rounds++ {
		x = filled()
		beside := startReaders(x, asks, readers, clk)
		var reads speed
		from := clk.now()
		both := runWriters(x, shares, clk, func() { reads = beside.stopReaders() })
		written += clk.now() - from
		t.WriteTogether, t.WriteTogetherCPU = t.WriteTogether+both.wall, t.WriteTogetherCPU+both.cpu
		t.ReadTogether, t.ReadTogetherCPU = t.ReadTogether+reads.wall, t.ReadTogetherCPU+reads.cpu
		samples = append(samples, beside.samplesOfAll()...)
	}
	for _, sum := range []*float64{&t.WriteTogether, &t.WriteTogetherCPU, &t.ReadTogether, &t.ReadTogetherCPU} {
		*sum /= rounds
	}
	t.Beside = percentilesOf(samples)
	if t.WriteAlone > 0 {
		t.WriteKept = t.WriteTogether / t.WriteAlone
	}
	if t.ReadAlone > 0 {
		t.ReadKept = t.ReadTogether / t.ReadAlone
	}
	return t
}

// splitOps deals the stores and removals to writers, all of one worker to the same.
func splitOps(ops []op, tiers, writers int) [][]op {
	shares := make([][]op, writers)
	for _, o := range ops {
		if o.kind != query {
			w := int(o.owner) / tiers % writers
			shares[w] = append(shares[w], o)
		}
	}
	return shares
}

// runWriters runs all shares side by side and returns the sum of their speeds. first is
// called when the first of them is done.
func runWriters(x *indexed, shares [][]op, clk *clock, first func()) (all speed) {
	speeds := make([]speed, len(shares))
	var wg sync.WaitGroup
	var once sync.Once
	for i, ops := range shares {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var z Sizes
			from, cpu := clk.now(), harness.ThreadCPU()
			for j := range ops {
				x.applyOp(&ops[j])
				z.countOp(&ops[j])
			}
			speeds[i].addBlocks(z.written(), clk.now()-from, harness.ThreadCPU()-cpu)
			if first != nil {
				once.Do(first)
			}
		})
	}
	wg.Wait()
	for _, s := range speeds {
		all.wall += s.wall
		all.cpu += s.cpu
	}
	return all
}

// crew are readers at work.
type crew struct {
	halt  atomic.Bool
	wg    sync.WaitGroup
	loads []*load
}

// startReaders lets n readers ask, each beginning elsewhere.
func startReaders(x *indexed, asks []op, n int, clk *clock) *crew {
	const most = 1 << 20 // samples of one reader
	c := &crew{}
	for i := range n {
		l := &load{x: x, clk: clk, queries: make([]uint32, 0, most)}
		c.loads = append(c.loads, l)
		c.wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cpu := harness.ThreadCPU()
			for at := i * len(asks) / n; len(asks) > 0; at++ {
				l.repeatQuery(&asks[at%len(asks)])
				if c.halt.Load() { // after the first query at the earliest
					break
				}
			}
			l.cpu = max(0, harness.ThreadCPU()-cpu-2*clk.cost*time.Duration(l.sizes.Requests))
		})
	}
	return c
}

// repeatQuery asks a query. It keeps samples as long as there is room.
func (l *load) repeatQuery(o *op) {
	from := l.clk.now()
	l.x.askQuery(o, &l.r)
	took := max(0, l.clk.now()-from-l.clk.cost)
	l.asked += took
	l.sizes.countOp(o)
	if len(l.queries) < cap(l.queries) {
		l.queries = append(l.queries, sample32(took))
	}
}

// stopReaders ends the readers and returns the sum of their speeds.
func (c *crew) stopReaders() (all speed) {
	c.halt.Store(true)
	c.wg.Wait()
	for _, l := range c.loads {
		all.addBlocks(l.sizes.QueryBlocks, l.asked, l.cpu)
	}
	return all
}

func (c *crew) samplesOfAll() (all []uint32) {
	for _, l := range c.loads {
		all = append(all, l.queries...)
	}
	return all
}
