package bench

import (
	"runtime"
	"slices"
	"time"
)

// load is what a structure gets of a run: the operations as it wants them, and
// what was measured while it got them.
type load struct {
	st  Structure
	s   *Stream
	clk *clock

	rows    []Depth  // of the last query
	samples []uint32 // nanoseconds of each query, room for all of them
	query   time.Duration
	write   time.Duration
	sizes   Sizes
}

func newLoad(st Structure, s *Stream, clk *clock) *load {
	return &load{st: st, s: s, clk: clk, rows: make([]Depth, 0, s.owners), samples: make([]uint32, 0, s.Size.Requests)}
}

// replay runs operations on one goroutine. Each query is timed by two readings of
// the clock. A reading costs as much as it says in clock.cost; between the two
// lies one of them, outside the other, and both are taken off.
func (l *load) replay(ops []op) {
	start := l.clk.now()
	asked, queries := time.Duration(0), 0
	for i := range ops {
		o := &ops[i]
		switch o.kind {
		case query:
			from := l.clk.now()
			l.rows = l.st.Depths(l.s.seq[o.from:o.to], l.s.local[o.from:o.to], l.rows[:0])
			took := max(0, l.clk.now()-from-l.clk.cost)
			asked += took
			queries++
			l.sizes.QueryBlocks += int(o.to - o.from)
			if len(l.samples) < cap(l.samples) {
				l.samples = append(l.samples, uint32(min(took, 1<<32-1)))
			}
		default:
			l.change(o)
		}
	}
	all := l.clk.now() - start - l.clk.cost
	l.query += asked
	l.write += max(0, all-asked-2*l.clk.cost*time.Duration(queries))
	l.sizes.Requests += queries
}

// change applies a store or a removal.
func (l *load) change(o *op) {
	n := o.to - o.from
	switch o.kind {
	case store:
		l.st.Store(o.owner, o.parent, o.hasParent, l.s.names[o.name:o.name+n], l.s.local[o.from:o.to])
		l.sizes.StoreBlocks += int(n)
	case remove:
		l.st.Remove(o.owner, l.s.gone[o.from:o.to])
		l.sizes.RemoveBlocks += int(n)
	}
}

// perSecond returns a rate, 0 for no time.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// answers is a fingerprint of what a structure says to some of the queries.
func answers(st Structure, s *Stream) uint64 {
	const asked = 500
	step := max(1, s.Size.Requests/asked)
	sum, n := uint64(14695981039346656037), 0
	put := func(v uint64) { sum = (sum ^ v) * 1099511628211 }
	var rows []Depth
	for i := range s.ops {
		o := &s.ops[i]
		if o.kind != query {
			continue
		}
		if n++; n%step != 0 {
			continue
		}
		rows = st.Depths(s.seq[o.from:o.to], s.local[o.from:o.to], rows[:0])
		slices.SortFunc(rows, func(a, b Depth) int { return int(a.Owner) - int(b.Owner) })
		put(uint64(len(rows)))
		for _, r := range rows {
			put(uint64(r.Owner)<<32 | uint64(r.Blocks))
		}
	}
	return sum
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
