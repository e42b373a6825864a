package client

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
)

// Candidates is the answer of a server to a router that is about to choose an instance.
type Candidates struct {
	// ID goes into Routed.AnswerID, for some seconds; "" if the server does not keep the answer.
	ID string
	// Model and Adapter are what the name in the query means. BlockSize, in tokens, is that of the model if the query has none.
	Model, Adapter string
	BlockSize      int
	// Rows are sorted by instance. Expected of rows and ranks is always set; Media is nil.
	Rows []Candidate
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

// candidatesAnswer is the answer as either codec has it.
type candidatesAnswer struct {
	ID         string                     `json:"id"`
	Model      string                     `json:"model"`
	Adapter    string                     `json:"lora_name"`
	BlockSize  int                        `json:"block_size"`
	Truncated  bool                       `json:"truncated"`
	Candidates map[string]packedCandidate `json:"candidates"`
}

type packedCandidate struct {
	packedRow
	Address string `json:"address"`
	State   string `json:"state"`
}

// rows returns the candidates, sorted by instance.
func (a *candidatesAnswer) rows() (Candidates, error) {
	out := Candidates{ID: a.ID, Model: a.Model, Adapter: a.Adapter, BlockSize: a.BlockSize}
	for instance, of := range a.Candidates {
		row := Candidate{Address: of.Address, State: of.State, Row: Row{Instance: instance, Longest: of.Longest, Expected: of.Expected,
			Approximate: of.Approximate, UpperBound: of.UpperBound, Truncated: a.Truncated}}
		if err := row.setRanks(of.Ranks); err != nil {
			return Candidates{}, fmt.Errorf("%w: %w", errAnswer, err)
		}
		out.Rows = append(out.Rows, row)
	}
	slices.SortFunc(out.Rows, func(a, b Candidate) int { return cmp.Compare(a.Instance, b.Instance) })
	return out, nil
}

// Candidates asks where a prompt may go. It is Query with Expected and with what a router needs besides to choose an instance and to
// report it. Detail has no effect. BlockSize 0 is the one that the model is registered with.
//
// If no engine serves the model, it returns an *Error with status 404 and the reason unknown_model. If no engine of the model has the
// block size, or if it is 0 and there are several to choose from, it returns one with status 400 and the reason unknown_block_size.
// Known then lists the models or the block sizes that there are.
func (c *Client) Candidates(ctx context.Context, q Query) (Candidates, error) {
	q.Detail, q.Expected = false, false // the server always adds expected here
	as := jsonCodec
	if c.msgpack {
		as = msgpackCodec
	}
	_, body := q.body(c.msgpack)
	if q.BlockSize == 0 {
		delete(body, "block_size")
	}
	answer := candidatesAnswer{Candidates: make(map[string]packedCandidate)} // else msgpack makes one of the size that the answer claims
	if err := c.doIn(ctx, as, http.MethodPost, "/conductor/v1/candidates", body, &answer); err != nil {
		return Candidates{}, err
	}
	return answer.rows()
}
