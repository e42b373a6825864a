package index

import (
	"time"

	"example.com/conductor/lab/harness"
)

// load is a replay of operations by one goroutine, with its measurement.
type load struct {
	x   *indexed
	clk *clock
	r   reader

	queries []uint32 // nanoseconds of each query, in order
	writes  []uint32 // nanoseconds of each store and removal, in order
	asked   time.Duration
	written time.Duration
	cpu     time.Duration // of the process, the collector's included
	wall    time.Duration
	sizes   Sizes
}

// newLoad returns a load with room for the samples of all operations.
func newLoad(x *indexed, clk *clock) *load {
	z := 0
	for i := range x.s.ops {
		if x.s.ops[i].kind == query {
			z++
		}
	}
	return &load{x: x, clk: clk, queries: make([]uint32, 0, z), writes: make([]uint32, 0, len(x.s.ops)-z)}
}

// replayOps applies operations. The clock is read once behind each operation, and before a query; the cost of a
// reading is taken off each figure.
func (l *load) replayOps(ops []op) {
	cpu, start := harness.CPU(), l.clk.now()
	last, read := start, time.Duration(0) // read: the time of reading prompts
	for i := range ops {
		o := &ops[i]
		if o.kind == query {
			l.x.readHashes(o, &l.r)
			from := l.clk.now()
			read += from - last
			last = from
			l.x.askQuery(o, &l.r)
		} else {
			l.x.applyOp(o)
		}
		now := l.clk.now()
		took := max(0, now-last-l.clk.cost)
		last = now
		if o.kind == query {
			l.asked += took
			l.queries = append(l.queries, sample32(took))
		} else {
			l.written += took
			l.writes = append(l.writes, sample32(took))
		}
		l.sizes.countOp(o)
	}
	off := read + l.clk.cost*time.Duration(len(ops))
	l.wall += max(0, last-start-off)
	l.cpu += withoutPart(harness.CPU()-cpu, last-start, off)
}

// withoutPart takes off the CPU time of something that took part of the wall time. While the process waited for
// a core it took no CPU time, and where in the wall time that was cannot be told, so the part shrinks alike.
func withoutPart(cpu, wall, part time.Duration) time.Duration {
	if wall <= 0 {
		return cpu
	}
	return cpu - time.Duration(float64(part)*min(1, float64(cpu)/float64(wall)))
}

// splitTime returns the CPU time of queries and of writes. Waiting for a core stretches both
// alike, so each has the part of the CPU time that it has of the wall time.
func (l *load) splitTime() (queries, writes time.Duration) {
	both := l.asked + l.written
	if both == 0 {
		return 0, 0
	}
	queries = time.Duration(float64(l.cpu) * float64(l.asked) / float64(both))
	return queries, l.cpu - queries
}

// byClass returns the samples of each class of queries.
func (l *load) byClass(ops []op) map[class][]uint32 {
	out := map[class][]uint32{}
	n := 0
	for i := range ops {
		if o := &ops[i]; o.kind == query {
			out[o.class] = append(out[o.class], l.queries[n])
			n++
		}
	}
	return out
}

func sample32(d time.Duration) uint32 { return uint32(min(d, 1<<32-1)) }

// perSecond returns a rate, 0 for no time.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
