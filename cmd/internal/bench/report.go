package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is a run. The result of the index, or of the first structure of a run
// without it, stands at the top as well.
type Report struct {
	Structure string `json:"structure"` // whose result is at the top
	Result
	Config     Config            `json:"config"`
	Machine    Machine           `json:"machine"`
	Stream     Sizes             `json:"stream"`
	ClockNs    int64             `json:"clock_ns"` // cost of a reading, taken off each query
	Structures map[string]Result `json:"structures"`
	// Ratios compare the result at the top with each other structure; above 1 is
	// better.
	Ratios map[string]Ratio `json:"ratios,omitempty"`
	order  []string
}

// Ratio is how many times better one structure is than another.
type Ratio struct {
	BlockOps float64 `json:"block_ops"`
	Query    float64 `json:"query_blocks"`
	Write    float64 `json:"write_blocks"`
	P50      float64 `json:"query_p50"`
	P99      float64 `json:"query_p99"`
	Heap     float64 `json:"heap_bytes"`
}

// Machine is where a run took place.
type Machine struct {
	CPU   string    `json:"cpu"`
	Cores int       `json:"cores"`
	Go    string    `json:"go"`
	OS    string    `json:"os"`
	Load  []float64 `json:"load_average,omitempty"` // over 1, 5 and 15 minutes, before the run
}

// Run measures what the configuration says.
func Run(c Config) (*Report, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	rep := &Report{Config: c, Machine: machine(), Structures: map[string]Result{}, Ratios: map[string]Ratio{}}
	c.say("making the stream")
	canonical, p, err := generate(&c)
	if err != nil {
		return nil, err
	}
	named := canonical
	if c.Events != Canonical && slices.Contains(c.Structures, Index) {
		named = canonical.named(c.HashSeeds)
	}
	if c.Events != Wire {
		p, named.ids, canonical.ids = nil, nil, nil
	}
	clk := newClock()
	rep.Stream, rep.ClockNs = canonical.Size, int64(clk.cost)
	for _, name := range Structures {
		if !slices.Contains(c.Structures, name) {
			continue
		}
		c.say("%s: replaying %d operations", name, len(canonical.ops))
		r, err := measure(&c, name, canonical, named, p, &clk)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s := canonical
		if name == Index {
			s = named
		}
		if c.Together {
			c.say("%s: %d writers and %d readers", name, c.Writers, c.Readers)
			t := together(&c, name, s, c.Writers, c.Readers, &clk)
			r.Together = &t
		}
		for _, n := range c.Scale {
			c.say("%s: %d writers and readers", name, n)
			r.Scale = append(r.Scale, together(&c, name, s, n, n, &clk))
		}
		rep.Structures[name] = r
		rep.order = append(rep.order, name)
	}
	return rep, rep.compare()
}

// generate makes the stream and what its payloads are encoded from.
func generate(c *Config) (*Stream, *prompts, error) {
	if c.Synthetic > 0 {
		if c.Events == Wire {
			return nil, nil, fmt.Errorf("events is %q, synthetic blocks have no tokens", c.Events)
		}
		return synthesize(c), nil, nil
	}
	return simulate(c)
}

// compare puts the first result at the top and fails if answers differ.
func (r *Report) compare() error {
	r.Structure = r.order[0]
	r.Result = r.Structures[r.Structure]
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	for _, name := range r.order[1:] {
		o := r.Structures[name]
		if o.answers != r.answers {
			return fmt.Errorf("%s and %s answer differently", name, r.Structure)
		}
		r.Ratios[name] = Ratio{
			ratio(r.BlockOps, o.BlockOps), ratio(r.QueryBlocks, o.QueryBlocks), ratio(r.WriteBlocks, o.WriteBlocks),
			ratio(float64(o.P50), float64(r.P50)), ratio(float64(o.P99), float64(r.P99)),
			ratio(float64(o.HeapBytes), float64(r.HeapBytes)),
		}
	}
	return nil
}

// machine describes this one, as far as it can be read.
func machine() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.GOMAXPROCS(0), Go: runtime.Version(), OS: runtime.GOOS}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		var l [3]float64
		if n, _ := fmt.Sscan(string(text), &l[0], &l[1], &l[2]); n == len(l) {
			m.Load = l[:]
		}
	}
	return m
}

// JSON prints one object.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Table prints one row per structure.
func (r *Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d cores, %s, load %v\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Go, r.Machine.Load)
	fmt.Fprintf(w, "%d requests: %d blocks asked, %d stored, %d removed; %d held by %d owners' memberships\n\n",
		r.Stream.Requests, r.Stream.QueryBlocks, r.Stream.StoreBlocks, r.Stream.RemoveBlocks, r.UniqueBlocks, r.Memberships)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tM block ops/s\tquery M/s\twrite M/s\tp50 µs\tp99 µs\tp99.9 µs\theap MB\tB/block\tB/membership\talias B/block\tgc pause p99 µs\t")
	for _, name := range r.order {
		s := r.Structures[name]
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.0f\t%.1f\t%.2f\t%.1f\t%.0f\t\n", name,
			s.BlockOps/1e6, s.QueryBlocks/1e6, s.WriteBlocks/1e6, us(s.P50), us(s.P99), us(s.P999),
			float64(s.HeapBytes)/1e6, s.BytesPerBlock, s.BytesPerMembership, s.AliasPerBlock, us(s.PauseP99))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, name := range r.order {
		s := r.Structures[name]
		if s.BytesPerFurther != 0 {
			fmt.Fprintf(w, "\n%s: %.2f bytes a further membership\n", name, s.BytesPerFurther)
		}
		if x := s.Wire; x != nil {
			fmt.Fprintf(w, "\n%s: %.2f M blocks/s from the wire, %.3f allocations a block; decode %.0f ns, hash %.0f ns, index %.0f ns a block\n",
				name, x.BlocksPerSec/1e6, x.AllocsPerBlock, x.DecodeNs, x.HashNs, x.IndexNs)
		}
		rows := s.Scale
		if s.Together != nil {
			rows = append([]Together{*s.Together}, rows...)
		}
		for _, x := range rows {
			fmt.Fprintf(w, "\n%s, %d writers and %d readers: writes %.1f M/s alone, %.1f together (%.0f %%); reads %.1f alone, %.1f together (%.0f %%), p99 %.2f -> %.2f µs\n",
				name, x.Writers, x.Readers, x.WriteAlone/1e6, x.WriteTogether/1e6, 100*x.WriteKept,
				x.ReadAlone/1e6, x.ReadTogether/1e6, 100*x.ReadKept, us(x.Alone.P99), us(x.Beside.P99))
		}
	}
	return nil
}

func us(ns int64) float64 { return float64(ns) / 1e3 }
