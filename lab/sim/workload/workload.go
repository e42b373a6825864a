// Package workload makes prompts: from a recorded trace, or from generators
// that behave like the applications in front of an engine.
//
//	Source --Next--> Request{Prompt: [segment][segment]..., Output: segment}
//	                            |
//	                         Tokens: deterministic in the segment's identity
//
// A segment is a run of tokens named by a number; two prompts share a prefix
// when they begin with the same segments. Nothing is stored per token, so a
// trace of 145 million tokens costs the memory of its identities.
//
// Invariants
//  1. The same segment always has the same tokens; a shorter segment of the
//     same identity is its prefix.
//  2. The same source and seed give the same requests.
//
// Concurrency: a Source belongs to one goroutine; Tokens may be called from any.
//
// Cost: a few nanoseconds per token.
package workload

import "time"

// vocabulary is how many different tokens there are. Prompts of real models
// have five-digit tokens mostly, and so do these.
const vocabulary = 100_000

// Segment is a run of tokens.
type Segment struct {
	ID  uint64
	Len int
}

// Request is one prompt and the answer an engine gives to it.
type Request struct {
	Prompt []Segment
	Output Segment
	// At is when a recorded request came, since the first of the record; 0 of generated ones.
	At time.Duration
}

// Source gives requests, false when there are no more.
type Source interface {
	Next() (Request, bool)
	// Len is the number of requests, -1 when there is no end.
	Len() int
	// String names the source for people.
	String() string
}

// AppendTokens appends the tokens of a segment.
func AppendTokens(tokens []uint32, s Segment) []uint32 {
	state := s.ID*0x9e3779b97f4a7c15 + 0xd1b54a32d192ed03
	for range s.Len {
		state += 0x9e3779b97f4a7c15
		z := (state ^ state>>30) * 0xbf58476d1ce4e5b9
		z ^= z >> 27
		tokens = append(tokens, uint32((z>>32)*vocabulary>>32))
	}
	return tokens
}

// PromptLen returns the length of the prompt in tokens.
func (r Request) PromptLen() int {
	n := 0
	for _, s := range r.Prompt {
		n += s.Len
	}
	return n
}

// AppendTokens appends the tokens of the prompt, then those of the output.
func (r Request) AppendTokens(tokens []uint32) []uint32 {
	for _, s := range r.Prompt {
		tokens = AppendTokens(tokens, s)
	}
	return AppendTokens(tokens, r.Output)
}

// Generated is how many requests a generator makes when neither a number nor a time is given;
// enough to fill every tier of the default fleet of simulate.
const Generated = 2000

// Open opens a trace, or a generator of a kind where trace is "".
func Open(trace, kind string, seed uint64) (Source, error) {
	if trace != "" {
		return OpenTrace(trace)
	}
	return NewGenerator(kind, seed)
}
