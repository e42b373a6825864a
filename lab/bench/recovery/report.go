package recovery

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"example.com/conductor/lab/harness"
)

// Figure is one figure of some rounds.
type Figure struct {
	Rounds []float64 `json:"rounds"`
	Median float64   `json:"median"`
	Worst  float64   `json:"worst"`
	Target float64   `json:"target,omitempty"` // 0 for none
	Met    bool      `json:"met,omitempty"`    // by the median; of a pause by the worst
	least  bool      // more is better
	strict bool
}

func (f *Figure) addValue(v float64) {
	f.Rounds = append(f.Rounds, v)
	sorted := slices.Sorted(slices.Values(f.Rounds))
	f.Median, f.Worst = sorted[len(sorted)/2], sorted[len(sorted)-1]
	judged := f.Median
	if f.least {
		f.Worst = sorted[0]
	}
	if f.strict {
		judged = f.Worst
	}
	f.Met = f.Target > 0 && (judged == f.Target || judged > f.Target == f.least)
}

// Report is the result. The targets are those of 10 M blocks of 128 instances.
type Report struct {
	Machine        harness.Machine `json:"machine"`
	Blocks         int             `json:"blocks"`
	Instances      int             `json:"instances"`
	Holders        int             `json:"holders"`
	EventBlocks    int             `json:"event_blocks"`
	Rate           float64         `json:"batches_per_sec"`
	SnapshotBlocks int             `json:"snapshot_blocks"` // of the last one of the idle fleet

	Write            Figure `json:"write_blocks_per_sec"`
	Load             Figure `json:"load_blocks_per_sec"`
	Bytes            Figure `json:"bytes_per_block"`
	BytesWithoutSets Figure `json:"bytes_per_block_without_sets"`
	Restart          Figure `json:"restart_seconds"`
	RestartCPU       Figure `json:"restart_cpu_seconds"` // of the server, until it is ready
	Peer             Figure `json:"bootstrap_seconds"`
	Pause            Figure `json:"pause_ms"`
	// Watched is of a large fleet; with it there is nothing above but Restart and Load.
	Watched *Watched `json:"watched,omitempty"`
	// Equal is how many instances have the same digest in both servers, and all their blocks.
	Equal int `json:"equal_instances"`
}

func newReport(c *Config) *Report {
	return &Report{
		Machine: harness.ThisMachine(), Blocks: c.Blocks, Instances: c.Instances, Holders: c.Holders, EventBlocks: c.EventBlocks,
		Rate:  c.Rate,
		Write: Figure{Target: 8e6, least: true}, Load: Figure{Target: 6e6, least: true}, BytesWithoutSets: Figure{Target: 18},
		Restart: Figure{Target: 5}, Peer: Figure{Target: 8}, Pause: Figure{Target: 10, strict: true},
	}
}

// Table writes it for people.
func (r *Report) Table(w io.Writer) {
	fmt.Fprintf(w, "%d blocks, each of %d of %d instances, %d in a chain; engines publish %.0f batches/s meanwhile\n", r.Blocks, r.Holders,
		r.Instances, r.EventBlocks, r.Rate)
	if x := r.Watched; x != nil {
		fmt.Fprintf(w, `server: %.3f cores while nothing is published, %.3f while %d engines publish %.0f batches/s
%.0f MB resident (%.0f MB of stacks, %.0f MB of heap), %.0f goroutines, %.0f open files
/metrics: %.0f kB in %.1f ms; killed: start to ready %.2f s (worst %.2f), %.2f s of CPU time
`, x.IdleCores, x.BusyCores, x.Busy, r.Rate, float64(x.RSSBytes)/1e6, x.StackBytes/1e6, x.HeapBytes/1e6, x.Goroutines, x.Files,
			float64(x.MetricsBytes)/1e3, x.Metrics.Median, r.Restart.Median, r.Restart.Worst, r.RestartCPU.Median)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tmedian\tworst\trounds\ttarget\t")
	row := func(what, format string, f Figure, unit float64, bound string) {
		target := "-"
		if f.Target > 0 {
			verdict := "missed"
			if f.Met {
				verdict = "met"
			}
			target = fmt.Sprintf(bound+" "+format+", %s", f.Target/unit, verdict)
		}
		fmt.Fprintf(t, "%s\t"+format+"\t"+format+"\t%d\t%s\t\n", what, f.Median/unit, f.Worst/unit, len(f.Rounds), target)
	}
	row("snapshot write, M blocks/s, fsync included", "%.1f", r.Write, 1e6, ">=")
	row("snapshot load, M blocks/s", "%.1f", r.Load, 1e6, ">=")
	row("bytes a block", "%.2f", r.Bytes, 1, "<=")
	row("bytes a block, owner sets aside", "%.2f", r.BytesWithoutSets, 1, "<=")
	row("killed: start to ready, s", "%.2f", r.Restart, 1, "<=")
	row("bootstrap from a peer: start to ready, s", "%.2f", r.Peer, 1, "<=")
	row("events wait for a snapshot's moment, ms", "%.2f", r.Pause, 1, "<=")
	t.Flush()
	fmt.Fprintf(w, "%d of %d instances have equal digests in both servers, and all their blocks\n", r.Equal, r.Instances)
}
