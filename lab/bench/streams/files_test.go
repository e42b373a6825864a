//go:build !race

// Nothing here runs side by side, and the race detector makes it ten times slower.

package streams

import (
	"fmt"
	"testing"
)

// shape is what a recording has.
type shape struct {
	prompts, promptBlocks, batches int
	events                         map[string]int // by kind and medium
	blocks                         map[string]int
	engines                        int
	first, last                    string // event: engine, kind, blocks, medium
}

// shapeOf reads a recording of this folder, and requires of all of them that an engine removes
// only what it holds.
func shapeOf(t *testing.T, file string) shape {
	t.Helper()
	s := shape{events: map[string]int{}, blocks: map[string]int{}}
	type block struct {
		engine, group int
		medium        string
		hash          uint64
	}
	held := map[block]int{}
	for r, err := range ReadRecords(file) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Engine < 0 {
			s.prompts++
			s.promptBlocks += len(r.Prompt)
			continue
		}
		s.batches++
		s.engines = max(s.engines, r.Engine+1)
		for i := range r.Events {
			e := &r.Events[i]
			kind := "S"
			if e.Removed {
				kind = "R"
			}
			kind += e.Medium
			if e.Group > 0 {
				kind += fmt.Sprint(" of group ", e.Group)
			}
			s.events[kind]++
			s.blocks[kind] += len(e.Hashes)
			s.last = fmt.Sprintf("%d %s %d", r.Engine, kind, len(e.Hashes))
			if s.first == "" {
				s.first = s.last
			}
			for _, h := range e.Hashes {
				b := block{r.Engine, e.Group, e.Medium, h}
				if !e.Removed {
					held[b]++
				} else if held[b]--; held[b] < 0 {
					t.Fatalf("%s: engine %d removes block %x, which it does not hold there", file, r.Engine, h)
				}
			}
		}
	}
	return s
}

// TestFiles requires that each recording of this folder reads whole, with the shape that the
// script printed when it made the file.
func TestFiles(t *testing.T) {
	f := func(file, want string) {
		t.Helper()
		s := shapeOf(t, file)
		if got := fmt.Sprintf("%d engines, %d prompts of %d blocks, %d batches, events %v, blocks %v, from %q to %q",
			s.engines, s.prompts, s.promptBlocks, s.batches, s.events, s.blocks, s.first, s.last); got != want {
			t.Errorf("%s:\n got %s\nwant %s", file, got, want)
		}
	}
	f("vllm.msgpack.zst", `8 engines, 1000 prompts of 857850 blocks, 18877 batches, `+
		`events map[R:472723 S:16398], blocks map[R:472723 S:734850], from "0 S 128" to "3 R 1"`)
	f("sglang.msgpack.zst", `8 engines, 1000 prompts of 857850 blocks, 6757 batches, `+
		`events map[R:3472 S:7272], blocks map[R:468705 S:730333], from "0 S 128" to "2 S 12"`)
	f("vllm-offload.msgpack.zst", `8 engines, 1000 prompts of 857850 blocks, 19407 batches, `+
		`events map[R:472723 RCPU:1387 S:16117 SCPU:682742], blocks map[R:472723 RCPU:158454 S:734850 SCPU:682742], from "0 S 128" `+
		`to "1 R 1"`)
	f("vllm-window.msgpack.zst", `8 engines, 900 prompts of 758100 blocks, 13824 batches, `+
		`events map[R:477957 R of group 1:36280 S:15337 S of group 1:15337], `+
		`blocks map[R:477957 R of group 1:36280 S:719333 S of group 1:56503], from "0 S 128" to "0 S of group 1 0"`)
}
