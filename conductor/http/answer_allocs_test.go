//go:build !race

package http

import (
	"fmt"
	"testing"

	"kvconductor/conductor"
)

// TestAnswersDoNotAllocate: with the race detector pools forget at random.
func TestAnswersDoNotAllocate(t *testing.T) {
	f := newFleet(t)
	prompt := promptOf(7, 64)
	for i := range 128 {
		f.store(f.source(fmt.Sprintf("i%d", i), 0, conductor.TypeVLLM), "gpu", prompt, max(0, i-120)*4)
	}
	try := func(name string, q conductor.Query) {
		q.Model, q.BlockSize = "m", testBlock
		var dst []byte
		ask := func() { f.c.Answer(&q, func(ans *conductor.Answer) { dst = appendAnswer(dst[:0], ans) }) }
		ask()
		// A collection in between empties the pool of buffers.
		if n := testing.AllocsPerRun(200, ask); n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	one := "i127"
	try("tokens", conductor.Query{Tokens: prompt})
	try("top", conductor.Query{Tokens: prompt, Top: 4})
	try("min_matched", conductor.Query{Tokens: prompt, MinMatched: 64})
	try("instance_id", conductor.Query{Tokens: prompt, Instance: &one})
	f.routed("i3", 0, prompt)
	try("expected", conductor.Query{Tokens: prompt, Expected: true})
	try("hashes", conductor.Query{ByHash: true, Hashes: []uint64{1, 2, 3}})
}
