package conductor

import (
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/tiers"
)

// TestVerdicts judges explanations: each instance is its name and the blocks that it holds.
func TestVerdicts(t *testing.T) {
	f := func(blocks int, instances string, want string, change ...func(*inspect.Explanation)) {
		t.Helper()
		x := &inspect.Explanation{Blocks: blocks, BlockSize: 16, Tokens: 16*blocks + 5}
		for _, field := range strings.Fields(instances) {
			in := inspect.ExplainedInstance{Serves: true, Row: tiers.Row{}}
			name, n, _ := strings.Cut(field, ":")
			in.Name = name
			fmt.Sscan(n, &in.Row.Longest)
			x.Instances = append(x.Instances, in)
		}
		for _, c := range change {
			c(x)
		}
		if v := x.Judge(); string(v.Kind)+": "+v.Text != want {
			t.Errorf("%d blocks, %s: %s: %s\nwant %s", blocks, instances, v.Kind, v.Text, want)
		}
		for i := range len(x.Instances) - 1 {
			if x.Instances[i].Row.Longest < x.Instances[i+1].Row.Longest {
				t.Errorf("%s: the longest is not first: %+v", instances, x.Instances)
			}
		}
	}
	f(72, "inst-1:53 inst-3:71 inst-9:0", "part: inst-3 holds 71 of 72 blocks; the next best, inst-1, holds 53.")
	f(72, "a:72 b:72 c:1 d:1", "whole: a and b hold all 72 blocks; the next best, c and d, hold 1.")
	f(2, "a:1 b:1 c:1", "part: a, b and c hold 1 of 2 blocks.")
	f(2, "a:2 b:2 c:2 d:2 e:0", "whole: a, b and 2 others hold all 2 blocks; the other instance holds none.")
	f(1, "a:1 b:0 c:0", "whole: a holds the one block of the prompt; the other instances hold none.")
	f(4, "a:0 b:0", "none: No instance holds the first block of the prompt.")
	f(0, "a:0 b:0", "too_short: The prompt is shorter than one block: it has 5 tokens, and a block has 16.")
	f(0, "", "too_short: The prompt is shorter than one block: it has 1 token, and a block has 16.",
		func(x *inspect.Explanation) { x.Tokens = 1 })
	f(4, "", "no_instance: Model \"m\" is not registered.", func(x *inspect.Explanation) {
		x.Causes = []inspect.Cause{{Reason: inspect.UnsaltedHidden},
			{Reason: inspect.NotRegistered, Text: "Model \"m\" is not registered."}}
	})
	f(4, "a:3 b:2", "part: b holds 2 of 4 blocks.", func(x *inspect.Explanation) { x.Instances[0].Serves = false })
	f(4, "a:3", "no_instance: No instance is registered for the adapter \"x\".", func(x *inspect.Explanation) {
		x.Instances[0].Serves, x.Lora = false, "x"
	})
	f(4, "a:3", "no_instance: Each instance is registered for an adapter, and the query names none.", func(x *inspect.Explanation) {
		x.Instances[0].Serves = false
	})
	f(4, "a:3 b:1", "part: a can use 3 of 4 blocks, those of pools included; the next best, b, can use 1.", func(x *inspect.Explanation) {
		x.Pools = []inspect.ExplainedHolder{{}, {Media: make([]inspect.HeldRuns, 1)}}
	})
	f(4, "a:3", "part: a holds 3 of 4 blocks.", func(x *inspect.Explanation) { x.Pools = make([]inspect.ExplainedHolder, 1) })
	inPart := func(blocks int) []inspect.ExplainedHolder {
		return []inspect.ExplainedHolder{{Blocks: blocks, Causes: []inspect.Cause{{Reason: inspect.Removed, Text: "Gone."},
			{Reason: inspect.ChunkInPart, Text: "GPU has a part."}}, Source: registration.Key{Instance: "p"}}}
	}
	f(4, "a:3 b:2", "part: a holds 3 of 4 blocks; the next best, b, holds 2. On a: GPU has a part.", func(x *inspect.Explanation) {
		x.Instances[0].Ranks = inPart(3)
	})
	f(4, "a:3", "part: a holds 3 of 4 blocks.", func(x *inspect.Explanation) { x.Instances[0].Ranks = inPart(1) })
	f(4, "a:3 b:2", "part: a holds 3 of 4 blocks; the next best, b, holds 2.", func(x *inspect.Explanation) {
		x.Instances[1].Ranks = inPart(2)
	})
	f(4, "a:0 b:0", "none: No instance can use the first block of the prompt. On b: GPU has a part.", func(x *inspect.Explanation) {
		x.Instances[1].Ranks = inPart(0)
	})
	f(4, "a:0 b:0", "none: No instance can use the first block of the prompt. On p: GPU has a part.", func(x *inspect.Explanation) {
		x.Pools = inPart(0)
	})
	f(4, "a:4", "whole: a holds all 4 blocks.", func(x *inspect.Explanation) { x.Pools = inPart(3) })
	f(4, "a:0", "none: No instance can use the first block of the prompt. On a: The window has gone.", func(x *inspect.Explanation) {
		x.Instances[0].Ranks = []inspect.ExplainedHolder{{Causes: []inspect.Cause{
			{Reason: inspect.AttentionGroup, Text: "The window has gone."}, {Reason: inspect.Removed, Text: "Gone."}}}}
	})
}
