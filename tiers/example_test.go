package tiers_test

import (
	"encoding/json"
	"fmt"

	"kvconductor/tiers"
)

// Two instances for a prompt of 1024 tokens in blocks of 16. A holds more of it, B has
// less to do, and B is cheaper.
func ExampleWeights_Cost() {
	const blockSize, tokens = 16, 1024
	var answer map[string]struct {
		Ranks map[string]tiers.Reach `json:"rank_matches"`
	}
	body := `{"A": {"rank_matches": {"0": {"gpu": 512, "cpu": 640, "disk": 768}}},
	          "B": {"rank_matches": {"0": {"gpu": 256, "cpu": 512, "disk": 512}}}}`
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		panic(err)
	}
	load := map[string]tiers.Placement{
		"A": {PrefillTokens: 288, KVBlocks: 80},
		"B": {PrefillTokens: 64, KVBlocks: 60},
	}
	best, lowest := "", 0.0
	for _, name := range []string{"A", "B"} {
		p := load[name]
		p.Reach, p.InputBlocks = answer[name].Ranks["0"], tokens/blockSize
		if err := p.Check(tokens, blockSize); err != nil {
			panic(err) // a router decides by load alone
		}
		cost := tiers.DefaultWeights().Cost(p, blockSize)
		fmt.Println(name, cost)
		if best == "" || cost < lowest {
			best, lowest = name, cost
		}
	}
	fmt.Println("to", best)
	// Output:
	// A 122
	// B 100
	// to B
}
