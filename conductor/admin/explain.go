package admin

import (
	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/match"

	conductorhttp "example.com/conductor/conductor/http"
)

// explainRow is the answer of /admin/explain. Counts are blocks.
type explainRow struct {
	Tenant    string               `json:"tenant"`
	Model     string               `json:"model"`
	Lora      string               `json:"lora_name"`
	BlockSize int                  `json:"block_size"`
	Tokens    int                  `json:"tokens"`
	Blocks    int                  `json:"blocks"`
	Verdict   verdictRow           `json:"verdict"`
	Instances []explainedInstance  `json:"instances"`
	Pools     []explainedHolder    `json:"pools"`
	Elsewhere []explainedElsewhere `json:"elsewhere"`
	Searched  int                  `json:"searched_contexts"`
	Contexts  int                  `json:"other_contexts"`
	Reasons   []causeRow           `json:"reasons"`
	Warnings  []string             `json:"warnings,omitempty"`
}

// verdictRow is an explanation in one sentence.
type verdictRow struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// explainedInstance is one instance and its ranks.
type explainedInstance struct {
	Instance string            `json:"instance"`
	Serves   bool              `json:"serves"`
	Longest  int               `json:"longest_matched"`
	Ranks    []explainedHolder `json:"ranks"`
}

// explainedHolder is what a source holds as one rank. End is null if no block is missing.
type explainedHolder struct {
	Rank     int32          `json:"dp_rank"`
	Source   string         `json:"source"`
	State    string         `json:"state"`
	Reason   string         `json:"state_reason"`
	Matched  int            `json:"matched"`
	Media    []explainedRun `json:"media"`
	End      *explainedEnd  `json:"end"`
	Findings []findingText  `json:"findings"`
}

// explainedRun is what a source holds on one medium, in runs [from, to).
type explainedRun struct {
	Medium  string   `json:"medium"`
	Tier    string   `json:"tier"`
	Matched int      `json:"matched"`
	Runs    [][2]int `json:"runs"`
}

// explainedEnd is the first block that a source lacks, its tokens [from, to), and why.
type explainedEnd struct {
	Block   int        `json:"block"`
	Tokens  [2]int     `json:"tokens"`
	Reasons []causeRow `json:"reasons"`
}

type causeRow struct {
	Reason   string  `json:"reason"`
	Certain  bool    `json:"certain"`
	Sequence *uint64 `json:"sequence,omitempty"`
	Text     string  `json:"text"`
}

type findingText struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// explainedElsewhere is another context that holds a beginning of the prompt.
type explainedElsewhere struct {
	Reason    string          `json:"reason"`
	Tenant    string          `json:"tenant"`
	Model     string          `json:"model"`
	Lora      string          `json:"lora_name"`
	Salt      string          `json:"salt"`
	BlockSize int             `json:"block_size"`
	Tokens    int             `json:"tokens"`
	Instances []elsewhereHeld `json:"instances"`
}

type elsewhereHeld struct {
	Instance string `json:"instance"`
	Matched  int    `json:"matched"`
}

// explainHandler returns the handler of POST /admin/explain.
func (a *api) explainHandler() gin.HandlerFunc {
	var recent conductorhttp.RecentQueries
	if a.opts.Watch != nil {
		recent = a.opts.Watch
	}
	return conductorhttp.ExplainHandler(a.conductor, a.opts.Dialect, recent, a.explain)
}

// explain says where the prefix of a prompt ends at each source, and why: POST /admin/explain.
func (a *api) explain(v conductor.View, q *match.Query, warnings []string) (any, error) {
	x, err := v.Inspect().Explain(q)
	if err != nil {
		return nil, err
	}
	row := explainRow{
		Tenant: x.Tenant, Model: x.Model, Lora: x.Lora, BlockSize: x.BlockSize, Tokens: x.Tokens, Blocks: x.Blocks,
		Verdict:   verdictRow{string(x.Verdict.Kind), x.Verdict.Text},
		Instances: []explainedInstance{}, Pools: holderRows(x, x.Pools), Elsewhere: []explainedElsewhere{},
		Searched: x.Searched, Contexts: x.Contexts, Reasons: causeRows(x.Causes), Warnings: warnings,
	}
	row.Reasons = append(row.Reasons, a.undiscovered(v, x, q)...)
	for _, in := range x.Instances {
		row.Instances = append(row.Instances, explainedInstance{in.Name, in.Serves, in.Row.Longest, holderRows(x, in.Ranks)})
	}
	for _, w := range x.Elsewhere {
		held := make([]elsewhereHeld, len(w.Instances))
		for i, in := range w.Instances {
			held[i] = elsewhereHeld{in.Name, in.Blocks}
		}
		row.Elsewhere = append(row.Elsewhere, explainedElsewhere{
			string(w.Reason), w.Tenant, w.Model, w.Lora, w.Salt, w.BlockSize, w.Tokens, held,
		})
	}
	return row, nil
}

// maxUndiscovered bounds the engines of an explanation that have no source yet.
const maxUndiscovered = 8

// undiscovered names engines without a source that may hold the prompt.
func (a *api) undiscovered(v conductor.View, x *inspect.Explanation, q *match.Query) (rows []causeRow) {
	if a.opts.Dialect.Discovery == nil {
		return nil
	}
	for _, s := range a.opts.Dialect.Discovery.List() {
		switch {
		case s.Sources > 0 || s.Tenant != x.Tenant || len(rows) == maxUndiscovered,
			s.Model != "" && s.Model != x.Model || s.BlockSize > 0 && s.BlockSize != x.BlockSize,
			q.Instance != nil && s.Instance != *q.Instance:
			continue
		}
		text := "The engine " + s.Instance + " has not told where it publishes."
		if fault := discovery.ErrorFor(&s, v.Reader()); fault != "" {
			text += " The last look: " + fault
		}
		rows = append(rows, causeRow{Reason: string(inspect.NotDiscovered), Text: text})
	}
	return rows
}

func holderRows(x *inspect.Explanation, all []inspect.ExplainedHolder) []explainedHolder {
	rows := make([]explainedHolder, len(all))
	for i, h := range all {
		row := explainedHolder{
			Rank: h.Rank, Source: h.Source.String(), State: string(h.State), Reason: h.Reason, Matched: h.Blocks,
			Media: []explainedRun{}, Findings: []findingText{},
		}
		for _, m := range h.Media {
			row.Media = append(row.Media, explainedRun{m.Medium.Name, m.Medium.Tier.String(), m.Blocks, m.Runs})
		}
		if h.Blocks < x.Blocks {
			row.End = &explainedEnd{h.Blocks, [2]int{h.Blocks * x.BlockSize, (h.Blocks + 1) * x.BlockSize}, causeRows(h.Causes)}
		}
		for _, f := range h.Findings {
			row.Findings = append(row.Findings, findingText{f.Code, f.Message})
		}
		rows[i] = row
	}
	return rows
}

func causeRows(all []inspect.Cause) []causeRow {
	rows := make([]causeRow, len(all))
	for i, c := range all {
		rows[i] = causeRow{string(c.Reason), c.Certain, c.Seq, c.Text}
	}
	return rows
}
