package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Routed is a router's report that the prompt of a query goes to an instance, which is then expected
// to have its blocks soon: queries with Expected show it until the engine announces them. Of the query the
// model, block size, tenant, adapter, salt and prompt count.
type Routed struct {
	Query
	// AnswerID is the ID of the Candidates for the prompt, in place of the query: the report is then small. An answer that the server has
	// forgotten, after some seconds or a restart, is an *Error with status 404 and the reason unknown_answer; then report the query.
	AnswerID string
	Target   string // the instance, as it is registered
	Rank     int    // its data-parallel rank, AnyRank if the engine chooses it
	// TTL is how long the blocks are expected, from 1 ms to 10 minutes, unless they are announced
	// before. 0 leaves it to the server, which learns how long an engine's events take.
	TTL time.Duration
	// RequestID names the request within its tenant, in at most 128 bytes, for TakeBack. The same report
	// again then changes nothing. "" is no name.
	RequestID string
}

// AnyRank is the rank of a report whose router leaves the rank to the engine.
const AnyRank = -1

func (r *Routed) body(packed bool) map[string]any {
	var body map[string]any
	if r.AnswerID == "" {
		body = r.prompt(packed)
	} else if body = map[string]any{"answer_id": r.AnswerID}; r.Tenant != "" {
		body["tenant_id"] = r.Tenant
	}
	body["instance_id"] = r.Target
	if r.Rank != AnyRank {
		body["dp_rank"] = r.Rank
	}
	if r.TTL != 0 {
		body["ttl"] = r.TTL.String()
	}
	if r.RequestID != "" {
		body["request_id"] = r.RequestID
	}
	return body
}

// RoutedAnswer is what became of several reports.
type RoutedAnswer struct {
	// Errors has nil for each report that was kept, and an *Error for each other one, in order. It is
	// nil if all were kept.
	Errors []error
	// Warnings name targets whose events may not tell what they have: their reports are kept.
	Warnings []string
}

// Routed reports that a prompt goes to an instance. A model, an instance or a rank that is not registered
// is an *Error with status 404, whose Field says which, and Known what there is in its place. A target whose
// events may not tell what it has is no error; RoutedBatch returns warnings about it.
func (c *Client) Routed(ctx context.Context, r Routed) error {
	return c.report(ctx, r.body(c.msgpack), new(any))
}

func (c *Client) report(ctx context.Context, body, out any) error {
	as := jsonCodec
	if c.msgpack {
		as = msgpackCodec
	}
	return c.doIn(ctx, as, http.MethodPost, "/conductor/v1/routed", body, out)
}

// RoutedBatch makes up to 256 reports at once.
func (c *Client) RoutedBatch(ctx context.Context, all []Routed) (RoutedAnswer, error) {
	items := make([]map[string]any, len(all))
	for i := range all {
		items[i] = all[i].body(c.msgpack)
	}
	var answer struct {
		Errors []struct {
			Prompt int `json:"prompt"`
			Error
		} `json:"errors"`
		Warnings []string `json:"warnings"`
	}
	if err := c.report(ctx, map[string]any{"prompts": items}, &answer); err != nil {
		return RoutedAnswer{}, err
	}
	out := RoutedAnswer{Warnings: answer.Warnings}
	for i := range answer.Errors {
		e := &answer.Errors[i]
		if e.Prompt < 0 || e.Prompt >= len(all) {
			continue
		}
		if out.Errors == nil {
			out.Errors = make([]error, len(all))
		}
		e.Status = StatusOf(e.Reason)
		out.Errors[e.Prompt] = &e.Error
	}
	return out, nil
}

// TakeBack takes the report of a request back, because the engine refused it or its client left. A
// report whose time is over is an *Error with status 404.
func (c *Client) TakeBack(ctx context.Context, tenant, requestID string) error {
	path := "/conductor/v1/routed/" + url.PathEscape(requestID)
	if tenant != "" {
		path += "?tenant_id=" + url.QueryEscape(tenant)
	}
	return c.do(ctx, http.MethodDelete, path, nil, new(any))
}
