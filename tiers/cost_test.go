package tiers

import (
	"math/rand/v2"
	"testing"
)

func TestCost(t *testing.T) {
	f := func(w Weights, p Placement, want float64) {
		t.Helper()
		if got := w.Cost(p, 16); got != want {
			t.Errorf("%+v with %+v costs %g, want %g", p, w, got, want)
		}
	}
	guide := DefaultWeights()
	f(guide, Placement{}, 0)
	f(guide, Placement{InputBlocks: 10}, 10)
	f(guide, Placement{InputBlocks: 10, PrefillTokens: 40, KVBlocks: 3}, 15.5)
	f(guide, Placement{Reach: Reach{Device: 64, Host: 64, Disk: 64}, InputBlocks: 10}, 6)
	f(guide, Placement{Reach: Reach{Host: 64, Disk: 64}, InputBlocks: 10}, 7)
	f(guide, Placement{Reach: Reach{Disk: 64}, InputBlocks: 10}, 9)
	f(guide, Placement{Reach: Reach{Device: 32, Host: 64, Disk: 128}, InputBlocks: 10, PrefillTokens: 16}, 11-2-1.5-1)
	f(guide, Placement{Reach: Reach{Device: 320, Host: 320, Disk: 320}, InputBlocks: 10, KVBlocks: 2}, 2) // never below nothing
	twice := Weights{Device: 1, Host: 1, Disk: 1, Prefill: 2}
	f(twice, Placement{Reach: Reach{Disk: 64}, InputBlocks: 10, PrefillTokens: 16, KVBlocks: 5}, 2*(1+6)+5)
}

func TestReachCheck(t *testing.T) {
	f := func(device, host, disk int, want string) {
		t.Helper()
		got := ""
		if err := (Reach{Device: device, Host: host, Disk: disk}).Check(70, 16); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d %d %d: %q, want %q", device, host, disk, got, want)
		}
	}
	f(0, 0, 0, "")
	f(16, 32, 64, "")
	f(64, 64, 64, "")
	f(-16, 0, 0, "gpu -16, cpu 0, disk 0 of 70 tokens are not in order")
	f(32, 16, 64, "gpu 32, cpu 16, disk 64 of 70 tokens are not in order")
	f(0, 32, 16, "gpu 0, cpu 32, disk 16 of 70 tokens are not in order")
	f(0, 0, 80, "gpu 0, cpu 0, disk 80 of 70 tokens are not in order")
	f(8, 16, 16, "gpu 8, cpu 16, disk 16 are not all multiples of the block size 16")
	f(0, 0, 70, "gpu 0, cpu 0, disk 70 are not all multiples of the block size 16")
}

// TestFoldPassesCheck holds that what a Folder answers is what the documents promise
// to routers, and that a rank that reaches anything costs less than one that does not.
func TestFoldPassesCheck(t *testing.T) {
	const blockSize = 16
	w := DefaultWeights()
	reached := 0
	for seed := range uint64(500) {
		owners, held, instances, blocks := randomScene(rand.New(rand.NewPCG(seed, 0)))
		var folder Folder
		prefixes, later := spansOf(held, blocks)
		for _, row := range folder.Fold(prefixes, later, owners, instances) {
			for _, r := range row.Ranks {
				reach := Reach{Device: r.Device * blockSize, Host: r.Host * blockSize, Disk: r.Disk * blockSize}
				if err := reach.Check(blocks*blockSize+3, blockSize); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				cold := w.Cost(Placement{InputBlocks: blocks}, blockSize)
				warm := w.Cost(Placement{Reach: reach, InputBlocks: blocks}, blockSize)
				if warm < 0 || warm > cold || warm == cold && reach.Disk > 0 {
					t.Fatalf("seed %d: %+v costs %g, nothing cached %g", seed, reach, warm, cold)
				}
				reached += reach.Disk
			}
		}
	}
	if reached == 0 {
		t.Error("nothing was ever reached")
	}
}
