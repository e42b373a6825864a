//go:build !race

package http

import (
	"fmt"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/alloctest"
)

// TestAnswersDoNotAllocate: with the race detector pools forget at random.
func TestAnswersDoNotAllocate(t *testing.T) {
	f := newFleet(t)
	prompt := promptOf(7, 64)
	for i := range 128 {
		f.store(f.source(fmt.Sprintf("i%d", i), 0, registration.TypeVLLM), "gpu", prompt, max(0, i-120)*4)
	}
	try := func(name string, q match.Query) {
		q.Model, q.BlockSize = "m", testBlock
		var dst []byte
		ask := func() { f.c.Answer(&q, func(ans *match.Answer) { dst = appendAnswer(dst[:0], ans) }) }
		ask()
		// A collection in between empties the pool of buffers.
		if n := alloctest.PerRun(200, ask); n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	one := "i127"
	try("tokens", match.Query{Tokens: prompt})
	try("top", match.Query{Tokens: prompt, Top: 4})
	try("min_matched", match.Query{Tokens: prompt, MinMatched: 64})
	try("instance_id", match.Query{Tokens: prompt, Instance: &one})
	f.routed("i3", 0, prompt)
	try("expected", match.Query{Tokens: prompt, Expected: true})
	try("hashes", match.Query{ByHash: true, Hashes: []uint64{1, 2, 3}})
}

// TestReportsDoNotAllocatePerToken: a report of a long prompt allocates as often as one of a short prompt, in
// either codec.
func TestReportsDoNotAllocatePerToken(t *testing.T) {
	f := newFleet(t)
	f.source("a", 0, registration.TypeVLLM)
	a := &api{conductor: f.c, opts: Options{MaxTokens: 1 << 16, MaxBody: 1 << 20}}
	count := func(in body.Codec, blocks int) float64 {
		e := body.Encoder{Codec: in}
		e.Map(5)
		e.TextField("model", "m")
		e.IntField("block_size", testBlock)
		e.TextField("instance_id", "a")
		e.TextField("request_id", "r") // the same report changes nothing
		e.Name("token_ids")
		prompt := promptOf(7, blocks)
		e.List(len(prompt))
		for _, token := range prompt {
			e.Uint(uint64(token))
		}
		e.EndList()
		e.EndMap()
		r := new(body.Request)
		report := func() {
			r.Reset()
			r.Src = append(r.Src[:0], e.Out...)
			fields, err := scanBody(r, in, routedFields, a.opts.MaxTokens)
			if err == nil {
				fields.view = f.c.For(conductor.Reader{})
				err = a.routed(&fields, r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		report()
		return alloctest.PerRun(100, report)
	}
	for _, in := range []body.Codec{body.JSON, body.Msgpack} {
		if short, long := count(in, 4), count(in, 2048); long > short+1 {
			t.Errorf("codec %d: %v allocations for 64 tokens, %v for 32,768", in, short, long)
		} else {
			t.Logf("codec %d: %v allocations", in, long)
		}
	}
}
