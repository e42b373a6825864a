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
)

// topRow is one source in the table.
type topRow struct {
	Instance string  `json:"instance_id"`
	Tenant   string  `json:"tenant_id"`
	Rank     int     `json:"dp_rank"`
	Model    string  `json:"model_name"`
	State    string  `json:"state"`
	Reason   string  `json:"reason,omitempty"`
	Blocks   int     `json:"blocks"`
	Rate     float64 `json:"batches_per_second"`
	Gaps     uint64  `json:"gaps"`
	Findings int     `json:"findings"`
	seq      *uint64
	epoch    uint64
	history  []float64 // rates, the newest last
}

// topColumns are the columns that rows can be sorted by.
var topColumns = []string{"instance", "state", "blocks", "rate", "gaps", "findings"}

// less compares two rows by a column, the rows that ask for attention first.
func less(column string, a, b *topRow) int {
	byName := cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Rank, b.Rank))
	switch column {
	case "state":
		return cmp.Or(cmp.Compare(stateRank(b.State), stateRank(a.State)), byName)
	case "blocks":
		return cmp.Or(cmp.Compare(b.Blocks, a.Blocks), byName)
	case "rate":
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), byName)
	case "gaps":
		return cmp.Or(cmp.Compare(b.Gaps, a.Gaps), byName)
	case "findings":
		return cmp.Or(cmp.Compare(b.Findings, a.Findings), byName)
	}
	return byName
}

// stateRank is higher for states that ask for attention.
func stateRank(state string) int {
	return slices.Index([]string{"synced", "paused", "replaying", "partial", "connecting", "stale", "failed"}, state)
}

// top is the table over time.
type top struct {
	server *client
	rows   map[string]*topRow
	at     time.Time
	column int
}

// maxHistory is how many rates a sparkline has.
const maxHistory = 20

// refresh asks the server again.
func (t *top) refresh(ctx context.Context, now time.Time) error {
	var answer struct{ Services []serviceRow }
	if err := t.server.get(ctx, "/conductor/v1/services", &answer); err != nil {
		return err
	}
	next := make(map[string]*topRow, len(answer.Services))
	for _, s := range answer.Services {
		key := fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank)
		r := &topRow{
			Instance: s.InstanceID, Tenant: s.TenantID, Rank: s.DPRank, Model: s.ModelName, State: s.State, Reason: cmp.Or(s.Reason, s.LastError),
			Blocks: s.Blocks, Gaps: s.Gaps, Findings: len(s.Findings), seq: s.LastSeq, epoch: s.Epoch,
		}
		if old := t.rows[key]; old != nil {
			r.history = old.history
			if passed := now.Sub(t.at).Seconds(); passed > 0 && old.seq != nil && s.LastSeq != nil && old.epoch == s.Epoch && *s.LastSeq >= *old.seq {
				r.Rate = float64(*s.LastSeq-*old.seq) / passed
			}
			if r.history = append(r.history, r.Rate); len(r.history) > maxHistory {
				r.history = r.history[1:]
			}
		}
		next[key] = r
	}
	t.rows, t.at = next, now
	return nil
}

// sorted returns the rows in order.
func (t *top) sorted() []*topRow {
	all := make([]*topRow, 0, len(t.rows))
	for _, r := range t.rows {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *topRow) int { return less(topColumns[t.column], a, b) })
	return all
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
			i = int(r / most * 7)
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[i])
	}
	return b.String()
}

// draw prints the table in at most height lines, 0 for no bound.
func (t *top) draw(out io.Writer, height int, colour bool) {
	rows := t.sorted()
	blocks, rate, states := 0, 0.0, make(map[string]int)
	for _, r := range rows {
		blocks += r.Blocks
		rate += r.Rate
		states[r.State]++
	}
	fmt.Fprintf(out, "%d sources, %d synced, %d blocks, %.0f batches/s   %s   by %s\n", len(rows), states["synced"], blocks, rate, t.at.Format(time.TimeOnly), topColumns[t.column])
	fmt.Fprintf(out, "%-28s %-12s %4s %-11s %10s %8s %-*s %5s %8s  %s\n", "INSTANCE", "TENANT", "RANK", "STATE", "BLOCKS", "BATCH/S", maxHistory, "", "GAPS", "FINDINGS", "WHY")
	for i, r := range rows {
		if height > 0 && i >= height-3 && len(rows) > height-2 {
			fmt.Fprintf(out, "… %d more\n", len(rows)-i)
			break
		}
		line := fmt.Sprintf("%-28.28s %-12.12s %4d %-11s %10d %8.1f %-*s %5d %8d  %.60s", r.Instance, r.Tenant, r.Rank, r.State, r.Blocks, r.Rate, maxHistory, sparkline(r.history), r.Gaps, r.Findings, r.Reason)
		if colour && r.State != "synced" {
			line = "\x1b[33m" + line + "\x1b[0m"
		}
		if colour && (r.State == "failed" || r.State == "stale") {
			line = strings.Replace(line, "\x1b[33m", "\x1b[31m", 1)
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
}

func topCommand() *cobra.Command {
	var (
		asks     clientFlags
		interval time.Duration
		column   string
		once     bool
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the sources of a running server as a live table",
		Long: `Shows the sources of a server, with batches a second as numbers and as a line over the
last readings. In a terminal, s sorts by the next column and q ends. Elsewhere, or with
--once, it reads twice and prints the table once. NO_COLOR turns colours off.`,
		Args: cobra.NoArgs,
	}
	asks.add(cmd, true)
	f := cmd.Flags()
	f.DurationVar(&interval, "interval", time.Second, "time between readings")
	f.StringVar(&column, "sort", "instance", "`column` to sort by: "+strings.Join(topColumns, ", "))
	f.BoolVar(&once, "once", false, "print one table and end")
	f.BoolVar(&asJSON, "json", false, "print one JSON array and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t := &top{column: slices.Index(topColumns, column)}
		if t.column < 0 {
			return usagef("--sort: %q is none of %s", column, strings.Join(topColumns, ", "))
		}
		if interval < 100*time.Millisecond {
			return usagef("--interval: %s is less than 100ms", interval)
		}
		var err error
		if t.server, err = asks.client(); err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd)
		defer stop()
		out, isFile := cmd.OutOrStdout().(*os.File)
		if live := isFile && term.IsTerminal(int(out.Fd())) && !once && !asJSON; live {
			return t.live(ctx, out, interval)
		}
		return t.print(ctx, cmd.OutOrStdout(), interval, asJSON)
	}
	return cmd
}

// print reads twice, for the rates, and prints once.
func (t *top) print(ctx context.Context, out io.Writer, interval time.Duration, asJSON bool) error {
	if err := t.refresh(ctx, time.Now()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(interval):
	}
	if err := t.refresh(ctx, time.Now()); err != nil {
		return err
	}
	if !asJSON {
		t.draw(out, 0, false)
		return nil
	}
	return printJSON(out, t.sorted())
}

// live draws until ctx or the operator ends it. A server that does not answer is shown as such.
func (t *top) live(ctx context.Context, out *os.File, interval time.Duration) error {
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
	err := t.refresh(ctx, time.Now())
	for {
		_, height, sizeErr := term.GetSize(int(out.Fd()))
		if sizeErr != nil {
			height = 24
		}
		var b strings.Builder
		if t.draw(&b, height, coloured(out)); err != nil {
			fmt.Fprintln(&b, err)
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
			err = t.refresh(ctx, time.Now())
		}
	}
}
