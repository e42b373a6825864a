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

var largerSeed = flag.Uint64("larger.seed", 0, "seed of TestLargerBlocksModel; 0 takes the time")

// largerBlock is a block as an engine has it: all tokens up to its end, and how many registered blocks it is.
type largerBlock struct {
	prefix string // of the prompt, a byte a registered block
	size   int
}

// from is how many registered blocks are before it.
func (b largerBlock) from() int { return len(b.prefix) - b.size }

// largerCache is one medium of an engine. Its blocks have one size, and where prompts end some engines have shorter ones.
type largerCache struct {
	owner, medium string
	size          int
	tails         bool
	set           bool                // a second store is no copy
	held          map[largerBlock]int // copies
}

func (c *largerCache) hash(b largerBlock) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, c.owner, c.medium, b)
	return h.Sum64()
}

// blocks returns the whole blocks of a prompt.
func (c *largerCache) blocks(prompt string) (all []largerBlock) {
	at := c.size
	for ; at <= len(prompt); at += c.size {
		all = append(all, largerBlock{prompt[:at], c.size})
	}
	if tail := len(prompt) - (at - c.size); c.tails && tail > 0 {
		all = append(all, largerBlock{prompt, tail})
	}
	return all
}

// covers returns which registered blocks of a prompt the cache has in blocks that the prompt has whole.
func (c *largerCache) covers(prompt string) []bool {
	has := make([]bool, len(prompt))
	for b := range c.held {
		if len(b.prefix) <= len(prompt) && prompt[:len(b.prefix)] == b.prefix {
			for i := b.from(); i < len(b.prefix); i++ {
				has[i] = true
			}
		}
	}
	return has
}

// store returns the events of some blocks of a prompt that follow each other.
func (c *largerCache) store(blocks []largerBlock) (events []any) {
	for len(blocks) > 0 {
		n := 1
		for n < len(blocks) && blocks[n].size == blocks[0].size {
			n++
		}
		e := map[string]any{"type": "BlockStored", "block_size": largerSize * blocks[0].size, "medium": c.medium, "parent_block_hash": nil}
		var hashes []uint64
		for _, b := range blocks[:n] {
			hashes = append(hashes, c.hash(b))
			if c.held[b]++; c.set {
				c.held[b] = 1
			}
		}
		if first := blocks[0]; first.from() > 0 {
			e["parent_block_hash"] = c.hash(largerBlock{first.prefix[:first.from()], c.size})
		}
		e["block_hashes"] = hashes
		e["token_ids"] = largerPrompt(blocks[n-1].prefix)[largerSize*blocks[0].from():]
		events = append(events, e)
		blocks = blocks[n:]
	}
	return events
}

// remove returns the event of the removal of a block.
func (c *largerCache) remove(b largerBlock) any {
	if c.held[b]--; c.held[b] == 0 {
		delete(c.held, b)
	}
	return map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{c.hash(b)}, "medium": c.medium}
}

// largerSize is the registered block size, in tokens.
const largerSize = 2

func largerPrompt(path string) (tokens []uint32) {
	for i := range len(path) {
		tokens = append(tokens, uint32(path[i]), 1)
	}
	return tokens
}

// largerEngine has a device and a host.
type largerEngine struct {
	name         string
	device, host *largerCache
}

// truth is what an answer has of the engine for a prompt.
func (e *largerEngine) truth(prompt string) string {
	device, host := e.device.covers(prompt), e.host.covers(prompt)
	longest, onDevice, onHost, gpu := 0, 0, 0, 0
	for longest < len(prompt) && (device[longest] || host[longest]) {
		longest++
	}
	for i := range longest {
		if device[i] {
			onDevice++
		}
		if host[i] {
			onHost++
		}
	}
	for gpu < len(prompt) && device[gpu] {
		gpu++
	}
	cpu := gpu
	for cpu < len(prompt) && host[cpu] {
		cpu++
	}
	return fmt.Sprintf("%d blocks, GPU %d, CPU %d, gpu %d, cpu %d", longest, onDevice, onHost, gpu, cpu)
}

// largerAnswers returns the same of the answers of a server, by engine.
func largerAnswers(b *bench, prompt string) map[string]string {
	all := make(map[string]string)
	for _, row := range b.conductor.Query(match.Query{Model: "m", BlockSize: largerSize, Tokens: largerPrompt(prompt)}).Rows {
		rank := row.Ranks[0]
		all[row.Instance] = fmt.Sprintf("%d blocks, GPU %d, CPU %d, gpu %d, cpu %d", row.Longest, row.Media[0].Blocks, row.Media[1].Blocks,
			rank.Device, rank.Host)
	}
	return all
}

// TestLargerBlocksModel compares answers about engines whose blocks are several registered blocks with what each engine can
// use: whole blocks alone. The prompts share beginnings that end anywhere in blocks. Some engines have shorter blocks where
// prompts end, some have other blocks on the host, and a restart may change the size. From its half on, a second server that
// begins with the first one's snapshot must answer the same.
func TestLargerBlocksModel(t *testing.T) {
	seed := *largerSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-larger.seed %d", seed)
	for world := range uint64(24) {
		synctest.Test(t, func(t *testing.T) { playLargerBlocks(t, seed, world) })
	}
}

func playLargerBlocks(t *testing.T, seed, world uint64) {
	rng := rand.New(rand.NewPCG(seed, world))
	network := new(streamtest.Network)
	servers := []*bench{openReplica(t, network)}
	var engines []*largerEngine
	registered := func(e *largerEngine) string {
		line := fmt.Sprintf("register %s block_size=%d", e.name, largerSize)
		if e.device.set {
			line += " copies=set"
		}
		return line
	}
	cache := func(owner, medium string, set bool) *largerCache {
		return &largerCache{owner: owner, medium: medium, size: 1 + rng.IntN(4), tails: rng.IntN(2) == 0, set: set,
			held: make(map[largerBlock]int)}
	}
	for i := range 3 {
		name, set := fmt.Sprint("e", i), i == 2
		e := &largerEngine{name: name, device: cache(name, "GPU", set), host: cache(name, "CPU", set)}
		engines = append(engines, e)
		servers[0].run(registered(e))
	}
	prompt := func() string {
		path := make([]byte, 1+rng.IntN(12))
		for i := range path {
			path[i] = "ab"[rng.IntN(8)/7] // long beginnings in common
		}
		return string(path)
	}
	for step := range 120 {
		if step == 60 {
			b, open := newReplica(t, network)
			for _, e := range engines {
				b.run(registered(e))
			}
			recoverImage(t, servers[0].conductor, b.conductor, 1)
			open()
			servers = append(servers, b)
			time.Sleep(5 * time.Second) // of the bubble: the sources connect
		}
		e := engines[rng.IntN(len(engines))]
		at := network.PublisherAt("ipc://" + e.name + "/0")
		c := e.device
		if rng.IntN(3) == 0 {
			c = e.host
		}
		switch n := rng.IntN(24); {
		case n == 0:
			at.Restart()
			clear(e.device.held)
			clear(e.host.held)
			e.device.size, e.device.tails = 1+rng.IntN(4), rng.IntN(2) == 0
			publish(at, 0, []any{map[string]any{"type": "AllBlocksCleared"}}, true, true)
			time.Sleep(5 * time.Second)
		case n < 10:
			all := slices.SortedFunc(maps.Keys(c.held), func(a, b largerBlock) int { return int(c.hash(a)>>1) - int(c.hash(b)>>1) })
			for _, i := range rng.Perm(len(all))[:min(len(all), 1+rng.IntN(3))] {
				publish(at, 0, []any{c.remove(all[i])}, true, true)
			}
		default:
			blocks := c.blocks(prompt())
			if rng.IntN(4) > 0 { // else what is there gets a copy, or is touched
				blocks = slices.DeleteFunc(blocks, func(b largerBlock) bool { return c.held[b] > 0 })
			}
			for len(blocks) > 0 { // what is not there is stored in stretches
				n := 1
				for n < len(blocks) && blocks[n].from() == len(blocks[n-1].prefix) {
					n++
				}
				publish(at, 0, c.store(blocks[:n]), true, true)
				blocks = blocks[n:]
			}
		}
		synctest.Wait()
		for range 4 {
			tokens := prompt()
			for i, b := range servers {
				got := largerAnswers(b, tokens)
				for _, e := range engines {
					if want := e.truth(tokens); got[e.name] != want {
						t.Fatalf("world %d, step %d, server %d, %s with blocks of %d and %d, prompt %s: %s, want %s", world, step, i,
							e.name, e.device.size, e.host.size, tokens, got[e.name], want)
					}
				}
			}
		}
	}
	for _, b := range servers {
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	}
}
