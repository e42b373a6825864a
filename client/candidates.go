package client

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
)

// Candidates is the answer of a server to a router that is about to choose an instance.
type Candidates struct {
	// ID goes into Routed.AnswerID, for some seconds; "" if the server does not keep the answer.
	ID string `json:"id"`
	// Model and Adapter are what the name in the query means. BlockSize, in tokens, is that of the model if the query has none.
	Model     string `json:"model"`
	Adapter   string `json:"lora_name"`
	BlockSize int    `json:"block_size"`
	// Rows are sorted by instance. Expected of rows and ranks is always set; Media is nil.
	Rows []Candidate `json:"-"`
}

// Candidate is an instance that a prompt may go to.
type Candidate struct {
	Row
	// Address is the base URL at which the engine takes requests, "" if that is not known.
	Address string
	// State is that of the source of the instance that is furthest from synced: synced, approximate, partial, replaying, connecting,
	// stale, paused or failed. Where it is not synced, the engine may have more of the prompt than the row says, or less.
	State string
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Candidates) UnmarshalJSON(text []byte) error {
	type plain Candidates // without this method
	answer := struct {
		*plain
		Truncated  bool                       `json:"truncated"`
		Candidates map[string]json.RawMessage `json:"candidates"`
	}{plain: (*plain)(c)}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	c.Rows = make([]Candidate, 0, len(answer.Candidates))
	for instance, raw := range answer.Candidates {
		var of struct {
			packedRow
			Address string `json:"address"`
			State   string `json:"state"`
		}
		if err := json.Unmarshal(raw, &of); err != nil {
			return err
		}
		row := Candidate{Address: of.Address, State: of.State, Row: Row{Instance: instance, Longest: of.Longest, Expected: of.Expected,
			Approximate: of.Approximate, UpperBound: of.UpperBound, Truncated: answer.Truncated}}
		if err := row.setRanks(of.Ranks); err != nil {
			return err
		}
		c.Rows = append(c.Rows, row)
	}
	slices.SortFunc(c.Rows, func(a, b Candidate) int { return cmp.Compare(a.Instance, b.Instance) })
	return nil
}

// Candidates asks where a prompt may go. It is Query with Expected and with what a router needs besides to choose an instance and to
// report it. Detail has no effect. BlockSize 0 is the one that the model is registered with.
//
// A model that nobody serves is an *Error with status 404 and the reason unknown_model; a block size that the model does not have, or 0
// where it has several, one with status 400 and the reason unknown_block_size. Both have Known.
func (c *Client) Candidates(ctx context.Context, q Query) (Candidates, error) {
	q.Detail, q.Expected = false, false // the answer always has what is expected
	_, body := q.body(false)
	if q.BlockSize == 0 {
		delete(body, "block_size")
	}
	var answer Candidates
	err := c.do(ctx, http.MethodPost, "/conductor/v1/candidates", body, &answer)
	return answer, err
}
