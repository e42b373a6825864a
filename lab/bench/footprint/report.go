package footprint

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Table writes it for people, in MB.
func (r *Report) Table(w io.Writer) {
	fmt.Fprintf(w, "%d blocks x %d holders, %d sources: loaded in %.1f s, %d blocks in the end, %d gaps\n", r.Blocks, r.Holders, r.Sources,
		r.Loaded, r.Indexed, r.Lost)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := make([]Sample, 0, 2*len(r.End))
	fmt.Fprint(t, "MB\t")
	for i := range r.End {
		columns = append(columns, r.Worst[i], r.End[i])
		fmt.Fprintf(t, "%s, worst\tat its end\t", r.End[i].Phase)
	}
	fmt.Fprintln(t)
	row := func(what, format string, f func(*Sample) float64) {
		fmt.Fprintf(t, "%s\t", what)
		for i := range columns {
			fmt.Fprintf(t, format+"\t", f(&columns[i]))
		}
		fmt.Fprintln(t)
	}
	for _, part := range r.partNames() {
		row(part, "%.1f", func(s *Sample) float64 { return float64(s.Parts[part]) / 1e6 })
	}
	row("account", "%.1f", func(s *Sample) float64 { return float64(s.Account()) / 1e6 })
	row("all parts", "%.1f", func(s *Sample) float64 { return float64(s.Explained()) / 1e6 })
	row("RSS", "%.1f", func(s *Sample) float64 { return float64(s.RSS) / 1e6 })
	row("1.4 x account + 40 MB - RSS", "%.1f", func(s *Sample) float64 { return float64(s.Spare()) / 1e6 })
	row("RSS / account", "%.2f", func(s *Sample) float64 { return float64(s.RSS) / float64(s.Account()) })
	row("all parts / RSS", "%.2f", func(s *Sample) float64 { return float64(s.Explained()) / float64(s.RSS) })
	t.Flush()
}

// partNames returns the names of parts that take at least 50 kB at some moment, the largest in
// the end first, those without an account last.
func (r *Report) partNames() (names []string) {
	last := r.End[len(r.End)-1].Parts
	for part := range last {
		large := func(s Sample) bool { return s.Parts[part] >= 50e3 }
		if slices.ContainsFunc(r.Worst, large) || slices.ContainsFunc(r.End, large) {
			names = append(names, part)
		}
	}
	rank := func(part string) int {
		if overhead[part] {
			return 1
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(last[b], last[a]), cmp.Compare(a, b))
	})
	return names
}
