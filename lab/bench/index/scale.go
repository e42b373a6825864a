package index

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"example.com/conductor/lab/harness"
)

// Scaled is the figures of the process on some cores, with half as many writers and half as many readers, at least one
// of each.
type Scaled struct {
	Together
	Rival *Together `json:"rival,omitempty"` // on the same cores
}

// scalePhase is how long writers and readers of Scale run side by side, unless Config.Duration says otherwise.
const scalePhase = 2 * time.Second

// measureScaling measures over numbers of cores, ours and the rival in turns.
func (r *Report) measureScaling(c *Config, s *Stream, clk *clock) error {
	if len(c.Scale) == 0 {
		return nil
	}
	least := scalePhase
	if c.Duration > 0 {
		least = c.Duration
	}
	var ops string
	if c.Rival != "" {
		dir, err := os.MkdirTemp("", "conductor-scale-")
		if err != nil {
			return fmt.Errorf("cannot keep operations for the rival: %w", err)
		}
		defer os.RemoveAll(dir)
		if ops = c.Ops; ops == "" {
			ops = filepath.Join(dir, "ops")
			if err := ExportOps(*c, ops); err != nil {
				return err
			}
		}
	}
	for _, n := range c.Scale {
		each := max(1, n/2)
		c.Progress.Say("%d cores: %d writers and %d readers", n, each, each)
		err := harness.OnCores(n, func() error {
			row := Scaled{Together: measureTogether(c, s, each, each, clk, least)}
			row.Cores = n
			if c.Rival != "" {
				theirs, err := rivalTogether(c.Rival, ops, each, least)
				if err != nil {
					return err
				}
				theirs.Cores, row.Rival = n, theirs
			}
			r.Scale = append(r.Scale, row)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rivalTogether runs the rival with the threads of its pool as writers, and as many readers.
func rivalTogether(program, ops string, each int, least time.Duration) (*Together, error) {
	out, err := runCommand(exec.Command(program, ops, "together", strconv.Itoa(each), strconv.FormatFloat(least.Seconds(), 'g', -1, 64)))
	if err != nil {
		return nil, err
	}
	var answer struct{ Together Together }
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("cannot read what %s prints: %w", program, err)
	}
	answer.Together.Writers, answer.Together.Readers = each, each
	return &answer.Together, nil
}

// scaleTable prints the figures over cores for people.
func (r *Report) scaleTable(w io.Writer) {
	if len(r.Scale) == 0 {
		return
	}
	fmt.Fprintln(w, "\nwriters and readers side by side, M blocks a second of wall time; times are of the first row")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "cores\twriters\treaders\twritten\tread\tblock ops\ttimes\tquery p50, µs\tp99, µs\t"+
		"CRTC's block ops\ttimes\tp50\tp99\tours to CRTC's\t")
	for i := range r.Scale {
		x := &r.Scale[i]
		written, read := x.Rates()
		fmt.Fprintf(t, "%d\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t", x.Cores, x.Writers, x.Readers, written/1e6, read/1e6,
			x.Ops()/1e6, x.Ops()/r.Scale[0].Ops(), us(x.Beside.P50), us(x.Beside.P99))
		if y := x.Rival; y != nil {
			fmt.Fprintf(t, "%.1f\t%.2f\t%.2f\t%.2f\t%.2fx\t\n", y.Ops()/1e6, y.Ops()/r.Scale[0].Rival.Ops(),
				us(y.Beside.P50), us(y.Beside.P99), x.Ops()/y.Ops())
		} else {
			fmt.Fprint(t, "\t\t\t\t\t\n")
		}
	}
	t.Flush()
}
