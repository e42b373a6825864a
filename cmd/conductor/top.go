package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/spelling"
)

// topRow is one source in the table, as /admin/stats has it.
type topRow struct {
	Source   string  `json:"source"`
	Instance string  `json:"instance_id"`
	Tenant   string  `json:"tenant_id"`
	Rank     int     `json:"dp_rank"`
	Model    string  `json:"model_name"`
	State    string  `json:"state"`
	Reason   string  `json:"reason"`
	Severity string  `json:"severity"` // of the state and the findings, the worst
	Error    string  `json:"last_error"`
	Blocks   int     `json:"blocks"`
	Rate     float64 `json:"events_per_s"`
	Lag      int     `json:"lag_ms"`
	Gaps     uint64  `json:"gaps"`
	Findings []struct {
		Code     string `json:"code"`
		Severity string `json:"severity"`
		Text     string `json:"text"`
	} `json:"findings"`
	history []float64 // rates, the newest last
}

// topColumns are the columns that rows can be sorted by.
var topColumns = []string{"instance", "state", "blocks", "rate", "lag", "gaps", "findings"}

// compareRows orders two rows by a column, so that the rows that ask for attention come first.
func compareRows(column string, a, b *topRow) int {
	byName := cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Rank, b.Rank))
	switch column {
	case "state":
		return cmp.Or(cmp.Compare(stateRank(b.State), stateRank(a.State)), byName)
	case "blocks":
		return cmp.Or(cmp.Compare(b.Blocks, a.Blocks), byName)
	case "rate":
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), byName)
	case "lag":
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), byName)
	case "gaps":
		return cmp.Or(cmp.Compare(b.Gaps, a.Gaps), byName)
	case "findings":
		return cmp.Or(cmp.Compare(len(b.faults()), len(a.faults())), byName)
	}
	return byName
}

// stateRank is higher for states that ask for attention.
func stateRank(state string) int {
	return slices.Index(sourceStates, state)
}

// sourceStates are the states of sources, those last that ask for attention most.
var sourceStates = []string{"synced", "approximate", "paused", "replaying", "partial", "connecting", "stale", "failed"}

// top is the table over time.
type top struct {
	server *cli.Client
	stats  topStats
	rows   map[string]*topRow // of stats, by source
	column int
}

// topStats is what the table needs of /admin/stats.
type topStats struct {
	Time   time.Time
	Totals struct {
		Sources int
		Blocks  int     // unique
		Held    int     `json:"memberships"`
		Events  float64 `json:"events_per_s"`
		Queries float64 `json:"queries_per_s"`
		Asked   uint64  `json:"asked_tokens"`
		Cached  uint64  `json:"cached_tokens"`
	}
	Summary   string // in words
	Severity  string `json:"summary_severity"`
	States    map[string]int
	Discovery struct{ Targets, Waiting, Learning int }
	LMCache   struct{ Instances, Unclaimed int }
	Sources   []*topRow
}

// feedText returns how many engines and instances of LMCache lack something, as text; "" if none does.
func (s *topStats) feedText() string {
	var parts []string
	if d := s.Discovery; d.Waiting+d.Learning > 0 {
		parts = append(parts, fmt.Sprintf("discovery: %d of %s %s, %d %s", d.Waiting, spelling.Count(d.Targets, "target"),
			spelling.Agree(d.Waiting, "waits", "wait"), d.Learning, spelling.Agree(d.Learning, "learns", "learn")))
	}
	if l := s.LMCache; l.Unclaimed > 0 {
		parts = append(parts, fmt.Sprintf("LMCache: %d of %s %s what no source takes", l.Unclaimed, spelling.Count(l.Instances, "instance"),
			spelling.Agree(l.Unclaimed, "reports", "report")))
	}
	return strings.Join(parts, "; ")
}

// maxHistory is how many rates a sparkline has.
const maxHistory = 20

// readStats asks the server for its stats, and adds the rates to the histories of the rows.
func (t *top) readStats(ctx context.Context) error {
	var next topStats
	if err := t.server.Get(ctx, "/admin/stats", &next); err != nil {
		return err
	}
	next.Sources = slices.DeleteFunc(next.Sources, func(r *topRow) bool { return r == nil })
	rows := make(map[string]*topRow, len(next.Sources))
	for _, r := range next.Sources {
		if old := t.rows[r.Source]; old != nil {
			r.history = old.history
		}
		if r.history = append(r.history, r.Rate); len(r.history) > maxHistory {
			r.history = r.history[1:]
		}
		rows[r.Source] = r
	}
	t.stats, t.rows = next, rows
	return nil
}

// sortRows sorts the rows by the column, and returns them.
func (t *top) sortRows() []*topRow {
	slices.SortFunc(t.stats.Sources, func(a, b *topRow) int { return compareRows(topColumns[t.column], a, b) })
	return t.stats.Sources
}

// sparkline draws rates, the highest as a full block.
func sparkline(rates []float64) string {
	if len(rates) == 0 {
		return ""
	}
	most := slices.Max(rates)
	var b strings.Builder
	for _, r := range rates {
		i := 0
		if most > 0 {
			i = int(max(r, 0) / most * 7)
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[i])
	}
	return b.String()
}

func topCommand() *cobra.Command {
	var (
		asks     cli.ClientFlags
		interval time.Duration
		column   string
		once     bool
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the sources of a running server as a live table",
		Long: `Shows GET /admin/stats of a server, role admin: totals, and the sources with events a
second as numbers and as a line over the last readings. In a terminal, s sorts by the next
column and q ends. Elsewhere, or with --once, it prints the table once. NO_COLOR turns
colours off.`,
		Example: "  conductor top\n" +
			"  conductor top --sort rate --interval 2s\n" +
			"  conductor top --once --server conductor.example:13333",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	f := cmd.Flags()
	f.DurationVar(&interval, "interval", time.Second, "time between readings")
	f.StringVar(&column, "sort", "instance", "`column` to sort by: "+strings.Join(topColumns, ", "))
	f.BoolVar(&once, "once", false, "print one table and end")
	f.BoolVar(&asJSON, "json", false, "print one JSON array and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t := &top{column: slices.Index(topColumns, column)}
		if t.column < 0 {
			return cli.Usagef("--sort: %q is none of %s", column, strings.Join(topColumns, ", "))
		}
		if interval < 100*time.Millisecond {
			return cli.Usagef("--interval: %s is less than 100ms", interval)
		}
		var err error
		if t.server, err = asks.Client(); err != nil {
			return err
		}
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		out, isFile := cmd.OutOrStdout().(*os.File)
		if live := isFile && term.IsTerminal(int(out.Fd())) && !once && !asJSON; live {
			return t.drawLive(ctx, out, interval)
		}
		return t.printOnce(ctx, cmd.OutOrStdout(), asJSON)
	}
	return cmd
}

// printOnce reads the stats and prints them once, as a table or as JSON.
func (t *top) printOnce(ctx context.Context, out io.Writer, asJSON bool) error {
	if err := t.readStats(ctx); err != nil {
		return err
	}
	if !asJSON {
		t.drawTable(out, screenOf(out))
		return nil
	}
	return cli.PrintJSON(out, t.sortRows())
}

// drawLive draws the table at each interval until ctx ends or the operator quits. If the server does not answer, it shows the
// error below the last table.
func (t *top) drawLive(ctx context.Context, out *os.File, interval time.Duration) error {
	err := t.readStats(ctx) // which may wait for the server, so before the terminal is taken over
	keys := make(chan byte)
	if old, err := term.MakeRaw(int(os.Stdin.Fd())); err == nil {
		defer term.Restore(int(os.Stdin.Fd()), old)
		go func() {
			for b := []byte{0}; ; {
				if n, err := os.Stdin.Read(b); err != nil || n == 0 {
					return
				}
				select {
				case keys <- b[0]:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		on := screen{width: 80, height: 24, coloured: cli.Coloured(out)}
		if width, height, err := term.GetSize(int(out.Fd())); err == nil && width > 0 && height > 0 {
			on.width, on.height = width, height
		}
		var b strings.Builder
		var last []string
		if err != nil {
			last = on.wrap(cli.Printable(err.Error()))
			on.height = max(on.height-len(last), 1)
		}
		t.drawTable(&b, on)
		for _, line := range last {
			fmt.Fprintln(&b, line)
		}
		fmt.Fprint(out, "\x1b[H\x1b[J"+strings.ReplaceAll(b.String(), "\n", "\r\n"))
		select {
		case <-ctx.Done():
			return nil
		case key := <-keys:
			switch key {
			case 'q', 3, 27: // 3 is Ctrl-C
				return nil
			case 's':
				t.column = (t.column + 1) % len(topColumns)
			}
		case <-tick.C:
			err = t.readStats(ctx)
		}
	}
}
