package bench

// Plots runs the sweeps of the drawings: throughput and latency against the
// number of workers on a trace, bytes against synthetic blocks, and rates against
// goroutines where the report has a curve of them.
func Plots(c Config, r *Report, workers, sizes []int) ([]Plot, error) {
	var plots []Plot
	c.Idle, c.Duration, c.Together, c.Scale = 0, 0, false, nil
	c.Verify, c.Answers = false, ""
	if c.traced() {
		ops := Plot{Name: "throughput-workers", Title: "Throughput, one thread", X: "workers", Y: "block operations per second"}
		p99 := Plot{Name: "latency-workers", Title: "Query latency, 99th percentile", X: "workers", Y: "nanoseconds"}
		err := sweep(workers, c, func(c *Config, n int) { c.Workers = n }, func(at float64, r *Report) {
			ops.add(r.Events, at, r.BlockOps)
			p99.add(r.Events, at, float64(max(1, r.Query.P99)))
		})
		if err != nil {
			return nil, err
		}
		plots = append(plots, ops, p99)
	}
	size := Plot{Name: "bytes-blocks", Title: "Memory, one holder a block", X: "unique blocks", Y: "bytes of the index"}
	made := c
	made.Trace, made.Ops, made.SMG, made.Tiers, made.Pools, made.HashOnly, made.Holders, made.Events = "", "", "", 1, 0, false, 1, Engine
	err := sweep(sizes, made, func(c *Config, n int) { c.Synthetic = n }, func(at float64, r *Report) {
		size.add(r.Events, at, float64(max(1, r.IndexBytes)))
	})
	if err != nil {
		return nil, err
	}
	plots = append(plots, size)
	if len(r.Scale) > 0 {
		plots = append(plots, scaling(r))
	}
	return plots, nil
}

// sweep runs a configuration once for each number.
func sweep(numbers []int, c Config, set func(*Config, int), show func(at float64, r *Report)) error {
	for _, n := range numbers {
		set(&c, n)
		c.say("plot: %d", n)
		r, err := Run(c)
		if err != nil {
			return err
		}
		show(float64(n), r)
	}
	return nil
}

// scaling draws the curve of the structure at the top.
func scaling(r *Report) Plot {
	p := Plot{Name: "scaling", Title: "Scaling of the index", X: "goroutines of each kind", Y: "blocks per second"}
	for _, t := range r.Scale {
		at := float64(t.Readers)
		p.add("reads alone", at, t.ReadAlone)
		p.add("reads together", at, t.ReadTogether)
		p.add("writes alone", at, t.WriteAlone)
		p.add("writes together", at, t.WriteTogether)
	}
	return p
}

// add appends a point to a line, which it begins if need be.
func (p *Plot) add(name string, x, y float64) {
	for i := range p.Series {
		if p.Series[i].Name == name {
			p.Series[i].Points = append(p.Series[i].Points, Point{x, y})
			return
		}
	}
	p.Series = append(p.Series, Series{name, []Point{{x, y}}})
}
