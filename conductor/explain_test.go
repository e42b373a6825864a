package conductor_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/must"
)

// explainedHolder is what an explanation says of one rank.
type explainedHolder struct {
	Rank    int `json:"dp_rank"`
	Source  string
	Matched int
	Media   []struct {
		Tier    string
		Matched int
	}
	End *struct {
		Block   int
		Reasons []struct{ Reason string }
	}
}

// TestExplainCountsAsQueries asks for an explanation wherever a script queries, and holds its
// counts against the rows of the query.
func TestExplainCountsAsQueries(t *testing.T) {
	compared, reasons := 0, make(map[string]int)
	eachScript(t, func(t *testing.T, file string) {
		steps, comments := scripttest.Parse(t, file)
		b := newBench()
		defer b.conductor.Close()
		line := 0
		b.answered = func(path string, body, answer []byte) {
			if path, _, _ = strings.Cut(path, "?"); path == "/query" {
				compared += compareExplanation(t, b, line, body, answer, reasons)
			}
		}
		r := scripttest.Runner{T: t}
		r.Execute = func(st *scripttest.Step, want []string) (string, error) {
			line = st.Line
			return b.run(st.Raw[0]), nil
		}
		r.Run(file, steps, comments)
	})
	if compared < 300 || len(reasons) < 12 {
		t.Errorf("%d rows compared, reasons %v", compared, reasons)
	}
	t.Logf("%d rows compared, reasons %v", compared, reasons)
}

// compareExplanation returns how many rows of a query it compared with the explanation.
func compareExplanation(t *testing.T, b *bench, line int, body, answer []byte, reasons map[string]int) (n int) {
	t.Helper()
	var rows map[string]map[string]struct {
		Longest int                          `json:"longest_matched"`
		Ranks   map[string]struct{ GPU int } `json:"rank_matches"`
	}
	if json.Unmarshal(answer, &rows) != nil {
		return 0 // warnings
	}
	var e struct {
		Blocks    int
		BlockSize int `json:"block_size"`
		Instances []struct {
			Instance string
			Longest  int `json:"longest_matched"`
			Ranks    []explainedHolder
		}
		Pools []explainedHolder
	}
	rec := b.request("POST", "/admin/explain", body)
	must.Succeed(t, json.Unmarshal(rec.Body.Bytes(), &e))
	if rec.Code != 200 {
		t.Errorf("line %d: %s", line, rec.Body)
	}
	for _, in := range e.Instances {
		for _, h := range append(in.Ranks, e.Pools...) {
			if (h.End == nil) != (h.Matched >= e.Blocks) || h.End != nil && (h.End.Block != h.Matched || len(h.End.Reasons) == 0) {
				t.Errorf("line %d, %s: %d of %d blocks, the end is %+v", line, h.Source, h.Matched, e.Blocks, h.End)
			}
			if h.End != nil {
				for _, r := range h.End.Reasons {
					reasons[r.Reason]++
				}
			}
		}
		for _, of := range rows {
			row, ok := of[in.Instance]
			if !ok {
				continue
			}
			n++
			if row.Longest != in.Longest*e.BlockSize || len(e.Pools) == 0 && len(in.Ranks) == 1 && in.Ranks[0].Matched != in.Longest {
				t.Errorf("line %d, %s: explained %+v, queried %d tokens: %s", line, in.Instance, in, row.Longest, rec.Body)
			}
			for _, h := range in.Ranks {
				device := 0
				for _, m := range h.Media {
					if m.Tier == "device" {
						device = max(device, m.Matched)
					}
				}
				if got := row.Ranks[strconv.Itoa(h.Rank)].GPU; len(e.Pools) == 0 && got != device*e.BlockSize {
					t.Errorf("line %d, %s rank %d: explained %d blocks on the device, queried %d tokens", line, h.Source, h.Rank, device,
						got)
				}
			}
		}
	}
	return n
}
