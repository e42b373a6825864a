//go:build race

package http

import (
	"testing"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/tiers"
)

// TestReleasedAnswersAreSpoiled requires that parts of an answer that are kept show under the
// race detector.
func TestReleasedAnswersAreSpoiled(t *testing.T) {
	f := newFleet(t)
	prompt := promptOf(3, 2)
	f.store(f.source("a", 0, registration.TypeVLLM), "gpu", prompt, 2)
	var kept *match.Answer
	var rows []match.Row
	var ranks []tiers.Rank
	q := match.Query{Model: "m", BlockSize: testBlock, Tokens: prompt}
	f.c.Answer(&q, func(ans *match.Answer) {
		if kept, rows = ans, ans.Rows; len(rows) != 1 || rows[0].Longest != 2 {
			t.Fatalf("%+v", rows)
		}
		ranks = rows[0].Ranks
	})
	if len(kept.Rows) != 0 || rows[0].Longest != -1 || ranks[0].Blocks != -1 {
		t.Errorf("an answer that is released reads %+v, its rows %+v, its ranks %+v", kept, rows, ranks)
	}
}
