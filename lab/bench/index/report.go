package index

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"example.com/conductor/lab/harness"
)

// Report is a run.
type Report struct {
	Events string `json:"events"` // the kind that the index was given
	Result
	Config   Config          `json:"config"`
	Machine  harness.Machine `json:"machine"`
	Stream   Sizes           `json:"stream"`
	ClockNs  int64           `json:"clock_ns"` // cost of a reading, taken off each figure
	Verified int             `json:"verified"` // answers equal to the oracle's
}

// Run measures a configuration.
func Run(c Config) (*Report, error) {
	if err := c.Check(); err != nil {
		return nil, harness.Mistakef("%w", err)
	}
	rep := &Report{Events: c.Events, Config: c, Machine: harness.ThisMachine()}
	c.Progress.Say("making the stream")
	canonical, p, err := generateStreams(&c)
	if err != nil {
		return nil, err
	}
	rep.Stream = canonical.countSizes()
	s := canonical
	if c.Events != Canonical {
		s = canonical.withEngineHashes()
	}
	if c.Verify {
		c.Progress.Say("comparing %d answers with the oracle's", rep.Stream.Requests)
		if err := verifyAnswers(&c, canonical, s); err != nil {
			return nil, err
		}
		rep.Verified = rep.Stream.Requests
	}
	canonical = nil
	clk := newClock()
	rep.ClockNs = int64(clk.cost)
	c.Progress.Say("replaying %d operations, %s events", len(s.ops), c.Events)
	if rep.Result, err = measureStructure(&c, s, p, &clk); err != nil {
		return nil, err
	}
	if c.Together {
		c.Progress.Say("%d writers and %d readers", c.Writers, c.Readers)
		t := measureTogether(&c, s, c.Writers, c.Readers, &clk, 0)
		rep.Together = &t
	}
	return rep, rep.measureScaling(&c, s, &clk)
}

// Table prints the figures for people.
func (r *Report) Table(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %s, load %v\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Go, r.Machine.Load)
	fmt.Fprintf(w, "%d requests: %d blocks asked, %d stored, %d removed; %d held by %d owners' memberships\n",
		r.Stream.Requests, r.Stream.QueryBlocks, r.Stream.StoreBlocks, r.Stream.RemoveBlocks, r.UniqueBlocks, r.Memberships)
	if r.Verified > 0 {
		fmt.Fprintf(w, "%d answers equal to the oracle's\n", r.Verified)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "events\tM block ops/CPU s\tquery M/s\twrite M/s\tCPU s\tB/block\taccount MB\tRSS MB\tpeak MB\tRSS B/membership\t")
	fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", r.Events, r.BlockOps/1e6, r.QueryBlocks/1e6,
		r.WriteBlocks/1e6, r.CPU,
		r.BytesPerBlock, float64(r.IndexBytes)/1e6, float64(r.RSSBytes)/1e6, float64(r.RSSPeakBytes)/1e6, r.RSSPerMembership)
	t.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(t, "latency, µs\tp50\tp99\tp99.9\tmax\t")
	row := func(what string, l Latencies) {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%.1f\t\n", what, us(l.P50), us(l.P99), us(l.P999), us(l.Max))
	}
	row("query", r.Query)
	for _, k := range slices.Sorted(maps.Keys(r.Classes)) {
		row("query, "+k, r.Classes[k])
	}
	row("write", r.Write)
	t.Flush()
	if r.BytesPerFurther != 0 {
		fmt.Fprintf(w, "\n%.2f bytes a further membership\n", r.BytesPerFurther)
	}
	if x := r.Wire; x != nil {
		fmt.Fprintf(w, "\n%.2f M blocks/s from the wire, %.3f allocations a block; decode %.0f ns, hash %.0f ns, index %.0f ns a block\n",
			x.BlocksPerSec/1e6, x.AllocsPerBlock, x.DecodeNs, x.HashNs, x.IndexNs)
	}
	if x := r.Together; x != nil {
		fmt.Fprintf(w, "\n%d writers and %d readers, wall time: writes %.1f M/s alone, %.1f together (%.0f %%); reads %.1f alone, %.1f "+
			"together (%.0f %%), p99 %.2f -> %.2f µs\n",
			x.Writers, x.Readers, x.WriteAlone/1e6, x.WriteTogether/1e6, 100*x.WriteKept,
			x.ReadAlone/1e6, x.ReadTogether/1e6, 100*x.ReadKept, us(x.Alone.P99), us(x.Beside.P99))
	}
	r.scaleTable(w)
}

func us(ns int64) float64 { return float64(ns) / 1e3 }
