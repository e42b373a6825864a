// Package stage measures how long a request spends in each stage of a query. Traces and the
// log of slow queries read the same Clock.
//
//	read -> admit -> parse -> match <-> hash -> encode -> send
//
// A Clock is in one stage at a time. Enter ends the stage before. A stage that a request enters
// several times, as those of a batch, has the sum. Hashing is lazy: it happens in pieces between
// pieces of the look-up.
//
// Concurrency: a Clock belongs to one request. A nil Clock measures nothing and costs a
// comparison.
package stage

import (
	"context"
	"strings"
	"time"
)

// A Stage is a part of the work on a query.
type Stage uint8

// The stages, in the order in which a query enters them.
const (
	Read   Stage = iota // the body arrives
	Admit               // the query waits for a place
	Parse               // fields and numbers are read
	Hash                // the prompt is hashed
	Match               // the index is read, rows are made
	Encode              // the answer is written into a buffer
	Send                // the answer is given to the connection
	Count               // how many there are
)

var names = [Count]string{"read", "admit", "parse", "hash", "match", "encode", "send"}

// String returns the name of the stage.
func (s Stage) String() string { return names[s] }

// Part is the time that a request spent in a stage. From is when the request entered it first,
// since the start.
type Part struct {
	From, Spent time.Duration
	Entered     bool
}

// TraceLabel is the label of exemplars that has Clock.Trace.
const TraceLabel = "trace_id"

// maxName bounds the names of a query in bytes; clients choose them.
const maxName = 256

// Clock measures one request.
type Clock struct {
	// Trace is the id of the trace in hexadecimal digits, "" if there is none.
	Trace string
	// Tenant and Model are those of the first query that was answered, Tokens counts those of
	// all Queries.
	Tenant, Model   string
	Queries, Tokens int

	since   func() time.Duration
	current Stage
	at      time.Duration // when it entered the current stage, since the start
	parts   [Count]Part
}

// Start returns a clock in the stage Read. since returns the time since the start.
func Start(since func() time.Duration) *Clock {
	c := &Clock{since: since}
	c.parts[Read].Entered = true
	return c
}

type clockKey struct{}

// With returns a context with a clock.
func With(ctx context.Context, c *Clock) context.Context {
	return context.WithValue(ctx, clockKey{}, c)
}

// Of returns the clock of a context, nil if it has none.
func Of(ctx context.Context) *Clock {
	c, _ := ctx.Value(clockKey{}).(*Clock)
	return c
}

// Enter ends the current stage and begins another.
func (c *Clock) Enter(s Stage) {
	if c != nil {
		c.enter(s)
	}
}

func (c *Clock) enter(s Stage) {
	now := c.since()
	c.parts[c.current].Spent += now - c.at
	c.current, c.at = s, now
	if p := &c.parts[s]; !p.Entered {
		p.From, p.Entered = now, true
	}
}

// Answered notes a query that was answered. It keeps copies of the names.
func (c *Clock) Answered(tenant, model string, tokens int) {
	if c == nil {
		return
	}
	if c.Queries == 0 {
		c.Tenant, c.Model = name(tenant), name(model)
	}
	c.Queries++
	c.Tokens += tokens
}

func name(s string) string { return strings.Clone(strings.ToValidUTF8(s[:min(len(s), maxName)], "")) }

// End ends the current stage and returns the time of each and of all.
func (c *Clock) End() (parts [Count]Part, took time.Duration) {
	c.enter(c.current)
	return c.parts, c.at
}
