package http

import (
	"slices"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
)

// candidateFields are what a router that is about to choose an instance may say: the body of a query, by tokens or by hashes.
var candidateFields = append(slices.Clone(ofHashes), queryFields...)

// candidateRows are {instance: candidate}.
var candidateRows = server.NewDistinctRows(true, writeCandidate)

// candidates answers POST /candidates.
func (a *api) candidates(f *fields, r *body.Request) error {
	q := f.limitedQuery(r, a.readEither(f))
	if f.err != nil {
		return f.err
	}
	q.Keep = !f.forwarded // else the report comes to the replica that was asked first, which does not have the answer
	return conductor.Candidates(f.view, &q, func(ans *match.Answer, resolved registration.Meaning) {
		writeCandidates(&r.Encoder, ans, resolved, f.warnings)
	})
}

// limitedQuery reads a query of a router that is about to choose: query without what Candidates sets.
func (f *fields) limitedQuery(r *body.Request, prompt promptReader) match.Query {
	q := f.promptWithin(r, prompt, func() int { return f.atLeast("block_size", 1) })
	q.MinMatched = f.atLeast("min_matched", 0)
	q.Top = f.atLeast("top", 1)
	return q
}

// writeCandidates writes {"id", "tenant_id", "model", "lora_name", "block_size", "candidates": {instance: candidate}}. All counts are
// tokens. id is left out if the answer is not kept.
func writeCandidates(e *body.Encoder, ans *match.Answer, resolved registration.Meaning, warnings []string) {
	pairs := 5 + min(len(warnings), 1)
	if ans.ID != 0 {
		pairs++
	}
	if ans.Truncated {
		pairs++
	}
	e.Map(pairs)
	if ans.ID != 0 {
		e.TextField("id", match.FormatAnswerID(ans.ID))
	}
	e.TextField("tenant_id", ans.Tenant)
	e.TextField("model", resolved.Model)
	e.TextField("lora_name", resolved.Lora)
	e.IntField("block_size", ans.BlockSize)
	if ans.Truncated {
		e.Name("truncated")
		e.True()
	}
	e.Name("candidates")
	candidateRows.Write(e, ans, ans.Rows)
	writeWarnings(e, warnings)
	e.EndMap()
}

// writeCandidate writes what stands behind the name of an instance.
func writeCandidate(e *body.Encoder, row *match.Row, ans *match.Answer) {
	size, pairs := ans.BlockSize, 5
	if row.Approximate {
		pairs++
	}
	if row.UpperBound {
		pairs++
	}
	e.Map(pairs)
	e.TextField("address", ans.AddressOf(row))
	e.TextField("state", string(row.State))
	e.IntField("longest_matched", row.Longest*size)
	e.IntField("expected", row.Expected*size)
	if row.Approximate {
		e.Name("approximate")
		e.True()
	}
	if row.UpperBound {
		e.Name("upper_bound")
		e.True()
	}
	writeRankMatches(e, row, size, true)
	e.EndMap()
}
