package tiers_test

import (
	"encoding/json"
	"fmt"
)

// reach is one rank of rank_matches, in tokens of the prompt.
type reach struct{ GPU, CPU, Disk int }

// check returns the rule that a reach breaks, nil if there is none. A router that meets an
// error leaves the cache out of the whole decision.
func (r reach) check(tokens, blockSize int) error {
	switch {
	case r.GPU < 0 || r.CPU < r.GPU || r.Disk < r.CPU || r.Disk > tokens:
		return fmt.Errorf("%+v of %d tokens is not in order", r, tokens)
	case r.GPU%blockSize != 0 || r.CPU%blockSize != 0 || r.Disk%blockSize != 0:
		return fmt.Errorf("%+v is no multiple of the block size %d", r, blockSize)
	}
	return nil
}

// cost returns the cost of a rank in blocks, with scale 1. prefill is the number of tokens
// of other prompts that the rank has to compute, inUse the blocks in use with this prompt.
func (r reach) cost(tokens, blockSize, prefill, inUse int) float64 {
	b := float64(blockSize)
	cached := float64(r.GPU) + 0.75*float64(r.CPU-r.GPU) + 0.25*float64(r.Disk-r.CPU)
	return float64(prefill)/b + max((float64(tokens)-cached)/b, 0) + float64(inUse)
}

// Two instances have cached blocks of a prompt of 1024 tokens. A holds more of them, B has
// less load, and B is cheaper. docs/routers.md has the same numbers.
func Example_cost() {
	const blockSize, tokens = 16, 1024
	var answer map[string]struct {
		Ranks map[string]reach `json:"rank_matches"`
	}
	body := `{"A": {"rank_matches": {"0": {"gpu": 512, "cpu": 640, "disk": 768}}},
	          "B": {"rank_matches": {"0": {"gpu": 256, "cpu": 512, "disk": 512}}}}`
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		panic(err)
	}
	a, b := answer["A"].Ranks["0"], answer["B"].Ranks["0"]
	fmt.Println(a.check(tokens, blockSize), b.check(tokens, blockSize))
	fmt.Println(a.cost(tokens, blockSize, 288, 80), b.cost(tokens, blockSize, 64, 60))
	fmt.Println(reach{GPU: 32, CPU: 16}.check(tokens, blockSize))
	fmt.Println(reach{Disk: 8}.check(tokens, blockSize))
	// Output:
	// <nil> <nil>
	// 122 100
	// {GPU:32 CPU:16 Disk:0} of 1024 tokens is not in order
	// {GPU:0 CPU:0 Disk:8} is no multiple of the block size 16
}
