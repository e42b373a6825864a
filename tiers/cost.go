package tiers

import "fmt"

// Reach is what rank_matches says of one rank: how many tokens of the prompt its
// device blocks reach, then host blocks from there, then disk blocks. Each counts
// the ones before it.
type Reach struct {
	Device int `json:"gpu"`
	Host   int `json:"cpu"`
	Disk   int `json:"disk"`
}

// Check returns the broken rule of a reach into a prompt of that many tokens, nil if
// there is none: 0 <= gpu <= cpu <= disk <= tokens, each a multiple of the block size,
// which is positive. A router that meets an error leaves the cache out of the whole
// decision, with the zero Reach for every rank, because costs with and without it
// do not compare.
func (r Reach) Check(tokens, blockSize int) error {
	switch {
	case r.Device < 0 || r.Host < r.Device || r.Disk < r.Host || r.Disk > tokens:
		return fmt.Errorf("gpu %d, cpu %d, disk %d of %d tokens are not in order", r.Device, r.Host, r.Disk, tokens)
	case r.Device%blockSize != 0 || r.Host%blockSize != 0 || r.Disk%blockSize != 0:
		return fmt.Errorf("gpu %d, cpu %d, disk %d are not all multiples of the block size %d", r.Device, r.Host, r.Disk, blockSize)
	}
	return nil
}

// Weights say what a router takes a cached block for: 1 is a block that is not
// computed at all, 0 one that is. What lies below the device has to be loaded, which
// takes time too.
type Weights struct {
	Device, Host, Disk float64
	// Prefill is the weight of a block to compute over a block in use (the guide's
	// prefill_load_scale).
	Prefill float64
}

// DefaultWeights are those of Mooncake's guide for router authors; its scale is left
// to the operator, 1 weighs both kinds of load alike.
func DefaultWeights() Weights { return Weights{Device: 1, Host: 0.75, Disk: 0.25, Prefill: 1} }

// Placement is one (instance, rank) a router may choose for a prompt.
type Placement struct {
	Reach
	PrefillTokens int // of other prompts that the rank has still to compute
	InputBlocks   int // of this prompt
	KVBlocks      int // in use on the rank once it has this prompt
}

// Cost is what a placement costs, in blocks; a router takes the lowest:
//
//	Prefill * (PrefillTokens/b + max(InputBlocks - cached, 0)) + KVBlocks
//
// where cached is the weighted sum, in blocks, of what each tier adds to the reach.
// The block size b is positive and the reach passes Check.
func (w Weights) Cost(p Placement, blockSize int) float64 {
	b := float64(blockSize)
	cached := (w.Device*float64(p.Device) + w.Host*float64(p.Host-p.Device) + w.Disk*float64(p.Disk-p.Host)) / b
	prefill := float64(p.PrefillTokens)/b + max(float64(p.InputBlocks)-cached, 0)
	return w.Prefill*prefill + float64(p.KVBlocks)
}
