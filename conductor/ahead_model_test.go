package conductor_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor/match"
)

// aheadEngine keeps the truth of one engine: it names a block by all tokens up to the end
// of its look-ahead, and holds a set of names.
type aheadEngine struct {
	name  string
	ahead int
	held  map[string]bool
}

const aheadSize = 2

// block returns what the engine calls block i of a prompt, false if the prompt ends in its
// look-ahead.
func (e *aheadEngine) block(tokens []uint32, i int) (name string, hash uint64, ok bool) {
	end := (i+1)*aheadSize + e.ahead
	if end > len(tokens) {
		return "", 0, false
	}
	name = fmt.Sprint(e.ahead, i, tokens[:end])
	h := fnv.New64a()
	fmt.Fprint(h, e.name, name)
	return name, h.Sum64(), true
}

// hit returns how many leading blocks of a prompt the engine holds.
func (e *aheadEngine) hit(tokens []uint32) (n int) {
	for {
		name, _, ok := e.block(tokens, n)
		if !ok || !e.held[name] {
			return n
		}
		n++
	}
}

// store returns the event of blocks from to end of a prompt.
func (e *aheadEngine) store(tokens []uint32, from, end int) map[string]any {
	event := map[string]any{"type": "BlockStored", "block_size": aheadSize, "token_ids": tokens[from*aheadSize : end*aheadSize]}
	if from > 0 {
		_, event["parent_block_hash"], _ = e.block(tokens, from-1)
	}
	var hashes []uint64
	var next [][]uint32
	for i := from; i < end; i++ {
		name, h, _ := e.block(tokens, i)
		e.held[name] = true
		hashes = append(hashes, h)
		next = append(next, tokens[(i+1)*aheadSize:(i+1)*aheadSize+e.ahead])
	}
	event["block_hashes"] = hashes
	if e.ahead > 0 {
		event["lookahead_token_ids"] = next
	}
	return event
}

// TestAheadModel compares answers of a fleet with several look-aheads with what each
// engine holds. Engines store prompts that share beginnings, in several events, lose
// blocks, and restart with another look-ahead.
func TestAheadModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for world := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, world))
			b := newBench()
			defer b.conductor.Close()
			var engines []*aheadEngine
			for i, ahead := range []int{0, 1, 1, 4, 8} {
				e := &aheadEngine{name: fmt.Sprint("e", i), ahead: ahead, held: make(map[string]bool)}
				engines = append(engines, e)
				b.run("register " + e.name + " block_size=2")
			}
			prompt := func() []uint32 {
				tokens := make([]uint32, rng.IntN(24))
				for i := range tokens {
					tokens[i] = uint32(1 + rng.IntN(2))
				}
				return tokens
			}
			for range 120 {
				e := engines[rng.IntN(len(engines))]
				at := b.network.PublisherAt("ipc://" + e.name + "/0")
				switch rng.IntN(12) {
				case 0:
					for name := range e.held { // any block, under every hash it can have
						delete(e.held, name)
						h := fnv.New64a()
						fmt.Fprint(h, e.name, name)
						publish(at, 0, []any{map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{h.Sum64()}}}, true, true)
						break
					}
				case 1:
					at.Restart()
					clear(e.held)
					e.ahead = []int{0, 1, 4, 8}[rng.IntN(4)]
					publish(at, 0, []any{map[string]any{"type": "AllBlocksCleared"}}, true, true)
					time.Sleep(5 * time.Second) // of the bubble: the source connects again
				default:
					tokens := prompt()
					blocks := 0
					for _, _, ok := e.block(tokens, blocks); ok; _, _, ok = e.block(tokens, blocks) {
						blocks++
					}
					held := e.hit(tokens)
					for held < blocks {
						// A held block that came again would be a copy, which a removal leaves.
						if name, _, _ := e.block(tokens, held); e.held[name] {
							held++
							continue
						}
						end := held + 1
						for most := end + rng.IntN(blocks-held); end < most; end++ {
							if name, _, _ := e.block(tokens, end); e.held[name] {
								break
							}
						}
						publish(at, 0, []any{e.store(tokens, held, end)}, true, true)
						held = end
					}
				}
				synctest.Wait()
				tokens := prompt()
				ans := b.conductor.Query(match.Query{Model: "m", BlockSize: aheadSize, Tokens: tokens})
				for _, row := range ans.Rows {
					for _, e := range engines {
						if want := e.hit(tokens); e.name == row.Instance && row.Longest != want {
							t.Fatalf("world %d, %s with look-ahead %d, prompt %v: %d blocks, want %d", world, e.name, e.ahead, tokens,
								row.Longest, want)
						}
					}
				}
			}
			for _, err := range b.conductor.Check() {
				t.Fatal(err)
			}
		})
	}
}
