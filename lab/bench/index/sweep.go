package index

import (
	"bytes"
	"encoding/csv"
	"strconv"
)

// Plot is the points of one or more lines, to draw with logarithmic axes.
type Plot struct {
	Name string // of its file, without the ending
	rows [][]string
}

func newPlot(name, x, y string) Plot { return Plot{name, [][]string{{"line", x, y}}} }

// addPoint appends a point to a line.
func (p *Plot) addPoint(line string, x, y float64) {
	p.rows = append(p.rows, []string{line, strconv.FormatFloat(x, 'f', -1, 64), strconv.FormatFloat(y, 'g', 6, 64)})
}

// CSV returns a heading with the units, then a record for each point: line, x, y.
func (p *Plot) CSV() []byte {
	var text bytes.Buffer
	csv.NewWriter(&text).WriteAll(p.rows)
	return text.Bytes()
}

// Plots runs the sweeps of the plots: throughput and latency against the number of
// workers on a trace, bytes against synthetic blocks, and rates against cores where
// the report has a curve of them.
func Plots(c Config, r *Report, workers, sizes []int) ([]Plot, error) {
	var plots []Plot
	c.Idle, c.Duration, c.Together, c.Scale = 0, 0, false, nil
	c.Verify, c.Answers = false, ""
	if c.traced() {
		ops := newPlot("throughput-workers", "workers", "block operations per second")
		p99 := newPlot("latency-workers", "workers", "nanoseconds")
		err := runSweep(workers, c, func(c *Config, n int) { c.Workers = n }, func(at float64, r *Report) {
			ops.addPoint(r.Events, at, r.BlockOps)
			p99.addPoint(r.Events, at, float64(max(1, r.Query.P99)))
		})
		if err != nil {
			return nil, err
		}
		plots = append(plots, ops, p99)
	}
	size := newPlot("bytes-blocks", "unique blocks", "bytes of the index")
	made := c
	made.Trace, made.Ops, made.SMG, made.Tiers, made.Pools, made.HashOnly, made.Holders, made.Events = "", "", "", 1, 0, false, 1, Engine
	err := runSweep(sizes, made, func(c *Config, n int) { c.Synthetic = n }, func(at float64, r *Report) {
		size.addPoint(r.Events, at, float64(max(1, r.IndexBytes)))
	})
	if err != nil {
		return nil, err
	}
	plots = append(plots, size)
	if len(r.Scale) > 0 {
		plots = append(plots, scalingPlot(r))
	}
	return plots, nil
}

// runSweep runs a configuration once for each number.
func runSweep(numbers []int, c Config, set func(*Config, int), show func(at float64, r *Report)) error {
	for _, n := range numbers {
		set(&c, n)
		c.Progress.Say("plot: %d", n)
		r, err := Run(c)
		if err != nil {
			return err
		}
		show(float64(n), r)
	}
	return nil
}

// scalingPlot returns the curve of the structure at the top.
func scalingPlot(r *Report) Plot {
	p := newPlot("scaling", "cores", "blocks per second")
	for i := range r.Scale {
		t := &r.Scale[i].Together
		at := float64(t.Cores)
		p.addPoint("reads alone", at, t.ReadAlone)
		written, read := t.Rates()
		p.addPoint("reads together", at, read)
		p.addPoint("writes alone", at, t.WriteAlone)
		p.addPoint("writes together", at, written)
	}
	return p
}
