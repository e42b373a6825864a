package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/spelling"
)

// screen is where a table is drawn.
type screen struct {
	width, height int // 0 is no bound
	coloured      bool
}

// screenOf returns a screen as wide as the terminal that out is, without a bound if it is none.
func screenOf(out io.Writer) (on screen) {
	if file, ok := out.(*os.File); ok {
		on.width, _, _ = term.GetSize(int(file.Fd()))
	}
	return on
}

// wrap breaks a text at its spaces into lines that fit.
func (on screen) wrap(text string) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && on.width > 0 && utf8.RuneCountInString(line+" "+word) > on.width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	lines = append(lines, line)
	for i := range lines {
		lines[i] = on.cut(lines[i])
	}
	return lines
}

// cut returns the beginning of a line that fits.
func (on screen) cut(line string) string {
	line = strings.TrimRight(line, " ")
	if on.width == 0 || utf8.RuneCountInString(line) <= on.width {
		return line
	}
	return string([]rune(line)[:max(on.width-1, 0)]) + "…"
}

// topCell is a column of the table.
type topCell struct {
	head  string
	width int // the most that it takes; names are on the left, numbers on the right
	text  func(*topRow) string
	left  bool
}

// topCells are the columns before WHY, which takes what is left of the line.
var topCells = []topCell{
	{"INSTANCE", 28, func(r *topRow) string { return r.Instance }, true},
	{"TENANT", 12, func(r *topRow) string { return r.Tenant }, true},
	{"RANK", 4, func(r *topRow) string { return fmt.Sprint(r.Rank) }, false},
	{"STATE", 11, func(r *topRow) string { return r.State }, true},
	{"BLOCKS", 10, func(r *topRow) string { return fmt.Sprint(r.Blocks) }, false},
	{"EVENTS/S", 8, func(r *topRow) string { return fmt.Sprintf("%.1f", r.Rate) }, false},
	{"", maxHistory, func(r *topRow) string { return sparkline(r.history) }, true},
	{"LAG MS", 7, func(r *topRow) string { return fmt.Sprint(r.Lag) }, false},
	{"GAPS", 5, func(r *topRow) string { return fmt.Sprint(r.Gaps) }, false},
	{"FINDINGS", 8, func(r *topRow) string { return fmt.Sprint(len(r.faults())) }, false},
}

// dispensable are the columns that leave a narrow screen, the first one first.
var dispensable = []string{"", "GAPS", "TENANT", "LAG MS", "EVENTS/S", "BLOCKS", "FINDINGS", "RANK"}

// whyWidth is what WHY takes without a bound, and leastWhy what it needs so that it says something.
const whyWidth, leastWhy = 60, 16

// cellsFor returns the columns that a screen has room for, and the width of WHY.
func (on screen) cellsFor(rows []*topRow) (cells []topCell, why int) {
	if on.width == 0 {
		return topCells, whyWidth
	}
	needed := 0
	for _, r := range rows {
		needed = min(max(needed, utf8.RuneCountInString(r.why())), leastWhy)
	}
	cells = slices.Clone(topCells)
	cells[0].width = len(cells[0].head)
	for _, r := range rows {
		cells[0].width = min(max(cells[0].width, utf8.RuneCountInString(r.Instance)), topCells[0].width)
	}
	left := func() int {
		room := on.width - 1 // WHY is two spaces to the right
		for _, c := range cells {
			room -= c.width + 1
		}
		return room
	}
	for _, head := range dispensable {
		if left() >= needed {
			break
		}
		cells = slices.DeleteFunc(cells, func(c topCell) bool { return c.head == head })
	}
	return cells, max(left(), 0)
}

// faults returns the codes of the findings that are not for information alone.
func (r *topRow) faults() (codes []string) {
	for _, f := range r.Findings {
		if f.Severity != string(doctor.Info) {
			codes = append(codes, f.Code)
		}
	}
	return codes
}

// why is the reason of a source's state, or its last error, and the codes of its findings.
func (r *topRow) why() string { return cli.Printable(joinWhy(r.State, r.Reason, r.Error, r.faults())) }

// line returns the cells of a row in their columns.
func line(cells []topCell, why string, text func(topCell) string) string {
	var b strings.Builder
	for _, c := range cells {
		if c.left {
			fmt.Fprintf(&b, "%-*.*s ", c.width, c.width, text(c))
		} else {
			fmt.Fprintf(&b, "%*s ", c.width, text(c))
		}
	}
	return b.String() + " " + why
}

// drawTable prints the table so that it fits the screen.
func (t *top) drawTable(out io.Writer, on screen) {
	rows, all := t.sortRows(), &t.stats.Totals
	cached := ""
	if all.Asked > 0 {
		cached = fmt.Sprintf(", %.0f %% of tokens cached since the start", 100*float64(all.Cached)/float64(all.Asked))
	}
	head := on.wrap(cli.Sprintf("%s, %d synced, %s held %s, %.0f events/s, %.0f queries/s%s; %s, by %s",
		spelling.Count(all.Sources, "source"), t.stats.States["synced"]+t.stats.States["approximate"], spelling.Count(all.Blocks, "block"),
		spelling.Count(all.Held, "time"), all.Events, all.Queries, cached,
		t.stats.Time.Local().Format(time.TimeOnly), topColumns[t.column]))
	if text := t.stats.feedText(); text != "" {
		head = append(head, on.wrap(text)...)
	}
	if all.Sources == 0 || t.stats.Severity != string(doctor.OK) {
		head = append(head, on.wrap(cli.Printable(t.stats.Summary))...)
	}
	cells, why := on.cellsFor(rows)
	head = append(head, on.cut(line(cells, "WHY", func(c topCell) string { return c.head })))
	lines, room := head, len(rows)
	if on.height > 0 {
		room = on.height - len(head) - 1 // the cursor has the last line
	}
	for i, r := range rows {
		if i >= room-1 && room < len(rows) {
			lines = append(lines, on.cut(fmt.Sprintf("… %d more", len(rows)-i)))
			break
		}
		text := on.cut(line(cells, fmt.Sprintf("%.*s", why, r.why()), func(c topCell) string { return cli.Printable(c.text(r)) }))
		if on.coloured {
			text = coloured(r.Severity, text)
		}
		lines = append(lines, text)
	}
	if on.height > 0 && len(lines) > on.height {
		lines = lines[:on.height]
	}
	for _, text := range lines {
		fmt.Fprintln(out, text)
	}
}

// coloured returns the line of a source in the colour of its severity: red for an error, yellow for a warning.
func coloured(severity, line string) string {
	switch doctor.Severity(severity) {
	case doctor.Error:
		return "\x1b[31m" + line + "\x1b[0m"
	case doctor.Warning:
		return "\x1b[33m" + line + "\x1b[0m"
	}
	return line
}
