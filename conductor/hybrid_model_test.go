package conductor_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor/match"
	"example.com/conductor/events/stream/streamtest"
)

var hybridSeed = flag.Uint64("hybrid.seed", 0, "seed of TestHybridModel; 0 takes the time")

// hybridGroup is an attention group of an engine. A prompt is a byte a registered block; the group holds blocks by all of the prompt
// up to their end.
type hybridGroup struct {
	kind  string
	block int // registered blocks
	need  int // blocks of a window
	held  map[string]int
}

// hybridEngine is an engine whose model has several kinds of layers.
type hybridEngine struct {
	name   string
	groups []*hybridGroup
	step   int // hits are multiples of it
}

// hybridHash is the engine's hash of a block. Blocks of all groups that end at one place of a prompt have the same.
func hybridHash(engine, prefix string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, engine, "|", prefix)
	return h.Sum64()
}

// accepts reports whether the engine could go on behind a prefix as far as the group is concerned.
func (g *hybridGroup) accepts(prefix string) bool {
	has := func(end int) bool { return g.held[prefix[:end]] > 0 }
	switch g.kind {
	case "full_attention":
		for end := g.block; end <= len(prefix); end += g.block {
			if !has(end) {
				return false
			}
		}
	case "sliding_window":
		for end := len(prefix); end > max(0, len(prefix)-g.need*g.block); end -= g.block {
			if !has(end) {
				return false
			}
		}
	case "mamba":
		return has(len(prefix))
	}
	return true
}

// hit is what the engine takes of a prompt.
func (e *hybridEngine) hit(prompt string) int {
	for n := len(prompt) - len(prompt)%e.step; n > 0; n -= e.step {
		if !slices.ContainsFunc(e.groups, func(g *hybridGroup) bool { return !g.accepts(prompt[:n]) }) {
			return n
		}
	}
	return 0
}

// compute returns the events of a step in which the engine computes a prompt behind its hit. Groups without full attention keep some
// boundaries, or all.
func (e *hybridEngine) compute(rng *rand.Rand, prompt string) (events []any) {
	from := e.hit(prompt)
	full := func(g *hybridGroup) bool { return g.kind == "full_attention" }
	// Without full attention nothing says which blocks a sparse event names.
	dense := rng.IntN(3) == 0 || !slices.ContainsFunc(e.groups, full)
	var kept []int
	for end := from + e.step; end <= len(prompt); end += e.step {
		if dense || rng.IntN(2) == 0 {
			kept = append(kept, end)
		}
	}
	for i, g := range e.groups {
		hashes := []uint64{}
		until := len(prompt) - (len(prompt)-from)%g.block
		for end := from + g.block; end <= until; end += g.block {
			if g.kind != "full_attention" && !g.keeps(end, kept) && !(dense && g.kind == "sliding_window") {
				continue
			}
			hashes = append(hashes, hybridHash(e.name, prompt[:end]))
			g.held[prompt[:end]]++
		}
		ev := map[string]any{"type": "BlockStored", "block_size": largerSize * g.block, "medium": "GPU", "parent_block_hash": nil,
			"block_hashes": hashes, "token_ids": largerPrompt(prompt[:until])[largerSize*from:], "group_idx": i,
			"kv_cache_spec_kind": g.kind}
		if g.kind == "sliding_window" {
			ev["kv_cache_spec_sliding_window"] = g.need*g.block*largerSize + 1
		}
		if from > 0 {
			ev["parent_block_hash"] = hybridHash(e.name, prompt[:from])
		}
		events = append(events, ev)
	}
	return events
}

// keeps reports whether a block that ends at a place is needed behind one of the boundaries that are kept.
func (g *hybridGroup) keeps(end int, kept []int) bool {
	return slices.ContainsFunc(kept, func(boundary int) bool {
		if g.kind == "mamba" {
			return end == boundary
		}
		return end <= boundary && end > boundary-g.need*g.block
	})
}

// evict returns the event of the removal of a random block, nil if there is none.
func (e *hybridEngine) evict(rng *rand.Rand) any {
	i := rng.IntN(len(e.groups))
	g := e.groups[i]
	if len(g.held) == 0 {
		return nil
	}
	all := slices.Sorted(maps.Keys(g.held))
	prefix := all[rng.IntN(len(all))]
	if g.held[prefix]--; g.held[prefix] == 0 {
		delete(g.held, prefix)
	}
	return map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{hybridHash(e.name, prefix)}, "medium": "GPU", "group_idx": i}
}

// newHybridEngine returns an engine with random groups. Those with full attention have the largest blocks or the smallest.
func newHybridEngine(rng *rand.Rand, name string) *hybridEngine {
	e := &hybridEngine{name: name, step: 1}
	full := []int{1, 2, 4}[rng.IntN(3)]
	for range rng.IntN(3) {
		e.groups = append(e.groups, &hybridGroup{kind: "full_attention", block: full})
	}
	for range 1 + rng.IntN(2) {
		g := &hybridGroup{kind: "sliding_window", block: 1, need: 1 + rng.IntN(4)}
		switch {
		case len(e.groups) == 0: // windows alone have blocks of one size here
		case rng.IntN(3) == 0:
			g.kind, g.block = "mamba", []int{1, full}[rng.IntN(2)]
		case full > 1:
			g.block = []int{1, 2}[rng.IntN(2)]
		}
		e.groups = append(e.groups, g)
	}
	rng.Shuffle(len(e.groups), func(i, j int) { e.groups[i], e.groups[j] = e.groups[j], e.groups[i] })
	for _, g := range e.groups {
		g.held = make(map[string]int)
		e.step = max(e.step, g.block) // they are powers of two
	}
	return e
}

// TestHybridModel compares answers about engines with several kinds of layers with what the engines take, by the rule of each group.
// Their events come as vLLM's do: group by group, with the hashes of those blocks alone that a group keeps. From its half on, a
// second server that begins with the first one's snapshot must answer the same.
func TestHybridModel(t *testing.T) {
	seed := *hybridSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-hybrid.seed %d", seed)
	for world := range uint64(40) {
		synctest.Test(t, func(t *testing.T) { playHybrid(t, seed, world) })
	}
}

func playHybrid(t *testing.T, seed, world uint64) {
	rng := rand.New(rand.NewPCG(seed, world))
	network := new(streamtest.Network)
	servers := []*bench{openReplica(t, network)}
	engines := make(map[string]*hybridEngine)
	names := []string{"e0", "e1", "e2"}
	for _, name := range names {
		engines[name] = newHybridEngine(rng, name)
		servers[0].run(fmt.Sprintf("register %s block_size=%d", name, largerSize))
	}
	prompt := func() string {
		path := make([]byte, 1+rng.IntN(16))
		for i := range path {
			path[i] = "ab"[rng.IntN(10)/9] // long beginnings in common
		}
		return string(path)
	}
	for step := range 150 {
		if step == 75 {
			b, open := newReplica(t, network)
			for _, name := range names {
				b.run(fmt.Sprintf("register %s block_size=%d", name, largerSize))
			}
			recoverImage(t, servers[0].conductor, b.conductor, 1)
			open()
			servers = append(servers, b)
			time.Sleep(5 * time.Second) // of the bubble: the sources connect
		}
		name := names[rng.IntN(len(names))]
		e, at := engines[name], network.PublisherAt("ipc://"+name+"/0")
		switch n := rng.IntN(30); {
		case n == 0:
			at.Restart()
			engines[name] = newHybridEngine(rng, name)
			publish(at, 0, []any{map[string]any{"type": "AllBlocksCleared"}}, true, true)
			time.Sleep(5 * time.Second)
		case n < 14:
			var all []any
			for range 1 + rng.IntN(3) {
				if ev := e.evict(rng); ev != nil {
					all = append(all, ev)
				}
			}
			publish(at, 0, all, true, true)
		default:
			publish(at, 0, e.compute(rng, prompt()), true, true)
		}
		synctest.Wait()
		for range 4 {
			p := prompt()
			for i, b := range servers {
				for _, row := range b.conductor.Query(match.Query{Model: "m", BlockSize: largerSize, Tokens: largerPrompt(p)}).Rows {
					if want := engines[row.Instance].hit(p); row.Longest != want || row.Ranks[0].Device != want {
						t.Fatalf("-hybrid.seed %d, world %d, step %d, server %d: %s takes %d blocks of %s, answered %d and %d\n%s", seed,
							world, step, i, row.Instance, want, p, row.Longest, row.Ranks[0].Device, engines[row.Instance])
					}
				}
			}
		}
	}
}

// String shows the groups with what they hold.
func (e *hybridEngine) String() (text string) {
	for i, g := range e.groups {
		text += fmt.Sprintf("%d: %s, blocks of %d, %d of them in a window: %v\n", i, g.kind, g.block, g.need,
			slices.Sorted(maps.Keys(g.held)))
	}
	return text
}
