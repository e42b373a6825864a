package conductor_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor/match"
	"example.com/conductor/events/stream/streamtest"
)

var resetsSeed = flag.Uint64("resets.seed", 0, "seed of TestResetsModel; 0 takes the time")

// resetEngine is a vLLM whose connector keeps chunks on the host, the least recently used ones first in line to go. A chunk is the
// prompt up to its end.
type resetEngine struct {
	name             string
	chunk, room      int
	resets           bool // its connector may be reset
	device           map[string]bool
	host             []string // chunks, the one to go first
	connector, reset []any    // events of the connector and of the device since the last batch
	fresh            []string // chunks that the former store

	waiting   map[string]bool // chunks announced behind a clear that may have taken the names of their blocks
	announced map[string]bool // chunks stored and not removed, since the last sign of a reset
	silent    bool            // the connector was reset, and no event since has shown it
	lost      bool            // chunks left with a sign of a reset that may have been stored since
}

func (e *resetEngine) hash(prefix string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, e.name, prefix)
	return h.Sum64()
}

// blocks returns an event about the blocks of a prompt from one on.
func (e *resetEngine) blocks(kind, medium, prompt string, from int) map[string]any {
	var hashes []uint64
	for end := from + 1; end <= len(prompt); end++ {
		hashes = append(hashes, e.hash(prompt[:end]))
	}
	event := map[string]any{"type": kind, "medium": medium, "block_hashes": hashes}
	if kind == "BlockStored" {
		event["block_size"], event["token_ids"] = largerSize, largerPrompt(prompt)[largerSize*from:]
		event["group_idx"], event["kv_cache_spec_kind"] = 0, "full_attention"
		if from > 0 {
			event["parent_block_hash"] = e.hash(prompt[:from])
		}
	}
	return event
}

// compute lets a request compute a prompt, and the connector offload its chunks.
func (e *resetEngine) compute(prompt string) {
	from := 0
	for from < len(prompt) && e.device[prompt[:from+1]] {
		from++
	}
	for end := from + 1; end <= len(prompt); end++ {
		e.device[prompt[:end]] = true
	}
	if from < len(prompt) {
		e.reset = append(e.reset, e.blocks("BlockStored", "GPU", prompt, from))
	}
	maps.DeleteFunc(e.waiting, func(chunk string, _ bool) bool { return strings.HasPrefix(prompt, chunk) })
	for end := e.chunk; end <= len(prompt); end += e.chunk {
		chunk := prompt[:end]
		if at := slices.Index(e.host, chunk); at >= 0 {
			e.host = append(slices.Delete(e.host, at, at+1), chunk)
			continue
		}
		if len(e.host) == e.room {
			oldest := e.host[0]
			e.host = e.host[1:]
			delete(e.announced, oldest)
			e.connector = append(e.connector, e.blocks("BlockRemoved", "CPU", oldest, len(oldest)-e.chunk))
		}
		if e.host = append(e.host, chunk); e.announced[chunk] {
			e.silent, e.lost = false, true
			clear(e.announced)
		}
		e.announced[chunk], e.fresh = true, append(e.fresh, chunk)
		e.connector = append(e.connector, e.blocks("BlockStored", "CPU", chunk, end-e.chunk))
	}
}

// resetCaches resets the device, and the connector with it if so asked. What the connector has not published yet comes behind.
func (e *resetEngine) resetCaches(connector bool) {
	clear(e.device)
	e.reset = append(e.reset, map[string]any{"type": "AllBlocksCleared"})
	if connector {
		e.host, e.silent = nil, e.silent || len(e.announced) > 0
	}
	for _, chunk := range e.fresh {
		e.waiting[chunk] = true
	}
}

// publish ends a step of the engine.
func (e *resetEngine) publish(at *streamtest.Publisher) {
	if all := append(e.reset, e.connector...); len(all) > 0 {
		publish(at, 0, all, true, true)
	}
	e.reset, e.connector, e.fresh = nil, nil, nil
}

// truth returns how many blocks of a prompt the engine has on its device, and then on the host; told are those that are not in chunks
// that wait for the device.
func (e *resetEngine) truth(prompt string) (device, told, host int) {
	for device < len(prompt) && e.device[prompt[:device+1]] {
		device++
	}
	behind := func(skip map[string]bool) int {
		end := device
		for end < len(prompt) {
			next := (end/e.chunk + 1) * e.chunk
			if next > len(prompt) || !slices.Contains(e.host, prompt[:next]) || skip[prompt[:next]] {
				break
			}
			end = next
		}
		if end-device < e.chunk { // it loads nothing rather than less than a chunk
			return device
		}
		return end
	}
	return device, behind(e.waiting), behind(nil)
}

// TestResetsModel compares answers with engines whose prefix cache is reset at random, some of them with their connector. Answers
// about the others are exact. About these they are never too long once the connector has announced a chunk again.
func TestResetsModel(t *testing.T) {
	seed := *resetsSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-resets.seed %d", seed)
	var exact, bounded, long int
	for world := range uint64(30) {
		synctest.Test(t, func(t *testing.T) { playResets(t, seed, world, &exact, &bounded, &long) })
	}
	if t.Logf("%d exact answers, %d others, %d unproven ones too long", exact, bounded, long); exact == 0 || bounded == 0 {
		t.Error("no answers of one kind")
	}
}

func playResets(t *testing.T, seed, world uint64, exact, bounded, long *int) {
	rng := rand.New(rand.NewPCG(seed, world))
	network := new(streamtest.Network)
	b := openReplica(t, network)
	var engines []*resetEngine
	for i := range 4 {
		e := &resetEngine{name: fmt.Sprint("e", i), chunk: 1 + rng.IntN(3), room: 2 + rng.IntN(12), resets: i%2 == 1,
			device: make(map[string]bool), waiting: make(map[string]bool), announced: make(map[string]bool)}
		engines = append(engines, e)
		b.run(fmt.Sprintf("register %s block_size=%d copies=%s", e.name, largerSize, []string{"count", "set"}[i/2]))
	}
	prompt := func() string {
		path := make([]byte, 1+rng.IntN(9))
		for i := range path {
			path[i] = "ab"[rng.IntN(6)/5]
		}
		return string(path)
	}
	for step := range 150 {
		e := engines[rng.IntN(len(engines))]
		for range 1 + rng.IntN(2) {
			e.compute(prompt())
		}
		if rng.IntN(12) == 0 {
			e.resetCaches(e.resets && rng.IntN(2) == 0)
		}
		e.publish(network.PublisherAt("ipc://" + e.name + "/0"))
		synctest.Wait()
		for range 4 {
			path := prompt()
			for _, row := range b.conductor.Query(match.Query{Model: "m", BlockSize: largerSize, Tokens: largerPrompt(path)}).Rows {
				e := engines[slices.IndexFunc(engines, func(e *resetEngine) bool { return e.name == row.Instance })]
				device, told, host := e.truth(path)
				got := row.Ranks[0]
				what := fmt.Sprintf("world %d, step %d, %s with chunks of %d, prompt %s", world, step, e.name, e.chunk, path)
				slack := 0
				if e.lost { // the removal of a chunk that has left takes the blocks that it shares with another one
					slack = 2 * (e.chunk - 1) // with these, what was less than a chunk may be one
				}
				switch {
				case got.Device != device:
					t.Fatalf("%s: %d on the device, want %d", what, got.Device, device)
				case e.silent:
					if got.Host > host {
						*long++
					}
				case got.Host > host+slack || !e.lost && got.Host < told:
					t.Fatalf("%s: %d down to the host, want %d to %d, lost %v", what, got.Host, told, host, e.lost)
				case e.lost || told < host:
					*bounded++
				default:
					*exact++
				}
			}
		}
	}
	for _, err := range b.conductor.Check() {
		t.Error(err)
	}
}
