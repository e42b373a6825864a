package conductor_test

import (
	"testing"
	"testing/synctest"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/feedback"
	"example.com/conductor/internal/must"
)

// TestDropsOfLargerBlocks holds that the last block of a hit is one of full attention, although a window has smaller ones, and that
// an engine whose answers are right gets no finding.
func TestDropsOfLargerBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"A", "B"} {
			b.run("register " + name + " block_size=2")
			b.run("event " + name + ` json={"type":"BlockStored","block_hashes":[40,80],"parent_block_hash":null,` +
				`"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"block_size":8,"medium":"GPU","group_idx":0,` +
				`"kv_cache_spec_kind":"full_attention"}`)
			b.run("event " + name + ` json={"type":"BlockStored","block_hashes":[10,20],"parent_block_hash":null,` +
				`"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU","group_idx":1,"kv_cache_spec_kind":"sliding_window",` +
				`"kv_cache_spec_sliding_window":5}`)
		}
		report := func(instance string, cached int, want bool) {
			t.Helper()
			for range 20 {
				_, err := b.conductor.For(operator).Feedback(feedback.Report{Instance: instance, Matched: 64, Cached: cached})
				must.Succeed(t, err)
			}
			synctest.Wait()
			found := false
			for _, s := range b.conductor.Services() {
				for _, f := range s.Findings {
					found = found || s.Instance == instance && f.Code == doctor.FindingDrops
				}
			}
			if found != want {
				t.Errorf("%s with %d of 64 tokens has the finding: %v, want %v", instance, cached, found, want)
			}
		}
		report("A", 64-2, false)
		report("A", 64, false)
		report("A", 64-8, true)
		report("B", 64, false)
	})
}
