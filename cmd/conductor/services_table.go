package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
)

// sourceTable prints sources, one a line of the screen. Its columns keep their widths from call to call, unless a cell needs more,
// and those that the first call had no room for stay away, so that lines of later calls have the columns of the header.
type sourceTable struct {
	*sourceLayout
	on     screen
	widths []int
	left   map[string]bool // the columns that stay away; nil before the first call
}

// sourceLayout says which columns a table of sources has.
type sourceLayout struct {
	columns     []string // the last one ends the line, so that a screen may cut it
	dispensable []string // the columns that leave a narrow screen, the first one first
	least       int      // how wide the last column has to be so that it says something
}

// print prints rows of cells, one for each column.
func (t *sourceTable) print(out io.Writer, rows ...[]string) {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = t.cell(i, cli.Printable(cell))
			for len(t.widths) <= i {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if t.left == nil {
		t.left = t.leaving()
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if !t.left[t.columns[i]] {
				fmt.Fprintf(&line, "%-*s  ", t.widths[i], cell)
			}
		}
		fmt.Fprintln(out, t.on.cut(line.String()))
	}
}

// widestCell is how much of a cell a screen has, so that one long name does not take the place of all other columns.
const widestCell = 28

// cell returns the text of a cell, cut to the widest that a cell may be. The last column is not cut, nor is a table without a width.
func (t *sourceTable) cell(column int, text string) string {
	if t.on.width == 0 || column == len(t.columns)-1 {
		return text
	}
	return screen{width: widestCell}.cut(text)
}

// leaving returns the columns that the screen has no room for.
func (t *sourceTable) leaving() map[string]bool {
	left := make(map[string]bool)
	if t.on.width == 0 || len(t.widths) == 0 {
		return left
	}
	needed := min(t.widths[len(t.widths)-1], t.least)
	for _, width := range t.widths[:len(t.widths)-1] {
		needed += width + 2
	}
	for _, head := range t.dispensable {
		if needed <= t.on.width {
			break
		}
		left[head] = true
		needed -= t.widths[slices.Index(t.columns, head)] + 2
	}
	return left
}

// sourcesOfServer is the layout of the sources of one server, whose cells sourceCells returns.
var sourcesOfServer = &sourceLayout{
	columns: []string{"INSTANCE", "TENANT", "RANK", "TYPE", "MODEL", "BLOCK", "STATE", "EPOCH", "LAST SEQ", "BLOCKS", "GAPS",
		"REPLAYED", "DROPPED", "WHY"},
	dispensable: []string{"EPOCH", "LAST SEQ", "REPLAYED", "BLOCK", "GAPS", "TYPE", "DROPPED", "TENANT", "RANK", "MODEL", "BLOCKS"},
	least:       leastWhy,
}

// sourceCells returns the cells of a source.
func sourceCells(s *client.Service) []string {
	seq := "-"
	if s.LastSeq != nil {
		seq = fmt.Sprint(*s.LastSeq)
	}
	return []string{s.InstanceID, s.TenantID, fmt.Sprint(s.DPRank), s.Type, modelText(s), fmt.Sprint(s.BlockSize), s.State,
		fmt.Sprint(s.Epoch), seq, fmt.Sprint(s.Blocks), fmt.Sprint(s.Gaps), fmt.Sprint(s.Replayed), counts(s.DroppedBy), whyText(s)}
}

// modelText returns the model of a source with its adapter.
func modelText(s *client.Service) string {
	if s.LoraName == "" {
		return s.ModelName
	}
	return s.ModelName + "+" + s.LoraName
}

// whyText returns why a source is in its state, and which findings it has, but for those that are for information alone.
func whyText(s *client.Service) string {
	var codes []string
	for _, f := range s.Findings {
		if f.Severity != string(doctor.Info) {
			codes = append(codes, f.Code)
		}
	}
	return joinWhy(s.State, s.Reason, s.LastError, codes)
}

// joinWhy joins the reason of a state with the codes of findings, but for the one that the state says already.
func joinWhy(state, reason, lastError string, codes []string) string {
	why := cmp.Or(reason, lastError)
	if stream.State(state) == stream.Synced {
		why = "" // the last error stays after it is over
	}
	found := strings.Join(slices.DeleteFunc(codes, func(code string) bool { return code == state }), ",")
	if why != "" && found != "" {
		return why + "; " + found
	}
	return why + found
}

// counts prints reason=n pairs, or - for none.
func counts(m map[string]uint64) string {
	if len(m) == 0 {
		return "-"
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s=%d", reason, m[reason]))
	}
	return strings.Join(parts, ",")
}

// remark is what the table has no room for.
type remark struct{ about, code, text string }

// remarks returns the findings of sources, engines that have not told where they publish, and events that no source claims.
func (a *servicesAnswer) remarks() (all []remark) {
	for _, s := range a.Services {
		for _, f := range s.Findings {
			if f.Code != s.State { // else the table has it
				all = append(all, remark{fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank), f.Code, f.Message})
			}
		}
	}
	for _, d := range a.Discovery {
		if d.LastError != "" {
			all = append(all, remark{d.InstanceID + "|" + d.TenantID, "discover", d.LastError})
		}
	}
	for _, r := range a.LMCache {
		for _, text := range r.unclaimed() {
			all = append(all, remark{r.InstanceID, "unclaimed", text})
		}
	}
	for _, t := range a.Unclaimed {
		all = append(all, remark{"unclaimed", "topic", t.text()})
	}
	return all
}

// fewRemarks is how many remarks are printed without being asked for. More are counted by code.
const fewRemarks = 10

// printServices prints the sources of an answer, one line each, and then remarks: all if there are few of them or if detailed is
// set, else how many of each kind.
func printServices(out io.Writer, answer *servicesAnswer, table *sourceTable, detailed bool) {
	rows := [][]string{slices.Clone(sourcesOfServer.columns)}
	for i := range answer.Services {
		rows = append(rows, sourceCells(&answer.Services[i]))
	}
	table.print(out, rows...)
	all := answer.remarks()
	if detailed || len(all) <= fewRemarks {
		for _, r := range all {
			cli.Fprintf(out, "\n%s %s: %s\n", r.about, r.code, r.text)
		}
		return
	}
	var codes []string
	first, times := make(map[string]remark), make(map[string]int)
	for _, r := range all {
		if times[r.code]++; times[r.code] == 1 {
			codes, first[r.code] = append(codes, r.code), r
		}
	}
	fmt.Fprintf(out, "\n%s about these sources (--details prints each):\n", spelling.Count(len(all), "remark"))
	for _, code := range codes {
		cli.Fprintf(out, "%s, %s, such as %s: %s\n", code, spelling.Count(times[code], "time"), first[code].about, first[code].text)
	}
}
