package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestBursts holds that each prompt comes 16 times within 50 ms and never again, that bursts share no
// more than a system prompt, and that a seed repeats all of it.
func TestBursts(t *testing.T) {
	const n = 100*BurstSize - 3
	all := draw(t, NewBursts(n, 1), n)
	first, times, systems := map[uint64]time.Duration{}, map[uint64]int{}, map[uint64]int{}
	for i, r := range all {
		if i > 0 && r.At < all[i-1].At {
			t.Fatalf("request %d comes at %s, after one at %s", i, r.At, all[i-1].At)
		}
		own := r.Prompt[len(r.Prompt)-1].ID
		if _, known := first[own]; !known {
			first[own] = r.At
			systems[r.Prompt[0].ID]++
		}
		times[own]++
		if late := r.At - first[own]; late > burstSpan {
			t.Errorf("request %d comes %s after the first of its burst", i, late)
		}
		if length := r.PromptLen(); length < 4000 || length > 12000 || r.Output.Len < 1 {
			t.Errorf("request %d has %d tokens, and %d of its answer", i, length, r.Output.Len)
		}
	}
	if len(times) != 100 {
		t.Errorf("%d bursts of %d requests", len(times), n)
	}
	whole := 0
	for _, n := range times {
		if n == BurstSize {
			whole++
		}
	}
	shared := 0
	for _, n := range systems {
		if n > 1 {
			shared += n
		}
	}
	if whole != 99 || shared < 30 || shared > 70 {
		t.Errorf("%d bursts of 100 have %d requests, %d share a system prompt", whole, BurstSize, shared)
	}
	same := func(x, y Request) bool {
		return slices.Equal(x.Prompt, y.Prompt) && x.Output == y.Output && x.At == y.At
	}
	if !slices.EqualFunc(all, draw(t, NewBursts(n, 1), n), same) || slices.EqualFunc(all, draw(t, NewBursts(n, 2), n), same) {
		t.Error("the seed is not what makes requests")
	}
	if b := NewBursts(5, 1); b.Len() != 5 || fmt.Sprint(b) != "bursts of 16 equal prompts" {
		t.Errorf("%d of %v", b.Len(), b)
	}
}
