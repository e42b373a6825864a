// Package engine is the prefix cache of one inference engine: blocks on a
// device, evicted to host memory, from there to disk, and announced event by
// event the way vLLM and SGLang do it. It computes nothing; it only keeps the
// books a scheduler would keep.
//
//	Submit --> waiting --admit--> running --last block--> done
//	                        |        | one prefill chunk or one decoded block a step
//	                        v        v
//	           device: pinned blocks | free blocks, oldest first
//	                                 | evicted
//	                                 v
//	              host (LRU) --oldest--> disk (LRU) --oldest--> gone
//
// A block that no tier has may be in a pool.
//
// A step is one batch: Step returns its events, and writes the blocks that the engine holds
// afterwards to the truth.Tree.
//
// Invariants (Check)
//  1. No tier holds more blocks than its capacity.
//  2. The tree's bits for this engine are exactly the keys of the three tiers.
//  3. A device block is on the free list if and only if no request uses it.
//  4. Applied in order, the events give exactly what the engine holds: stored
//     adds a copy, removed takes one, cleared takes all. A store of a session adds
//     none of a block that is there.
//
// Concurrency: none; one goroutine at a time drives an Engine and its tree.
//
// Cost: O(1) per block touched, stored or removed.
package engine

import (
	"fmt"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// Config describes one engine.
type Config struct {
	Tree  *truth.Tree // its look-ahead is the engine's
	Index int         // this engine's column in Tree

	// Chain names the blocks. Engines with one chain name them alike.
	Chain *digest.Chain

	// Capacities in blocks. Device is at least 1; 0 switches a lower tier off.
	Device, Host, Disk int

	// Chunk is how many blocks of a prompt one step computes.
	Chunk int
	// Running is how many requests share a step.
	Running int

	// Pool is a store behind the disk that other engines fill too; nil for none.
	Pool Pool

	Traits
}

// Pool is a store that the engine shares with others.
type Pool interface {
	// Get reports whether the pool has the block, to load it from there.
	Get(d digest.Digest) bool
	// Put offers a block that the next batch announces.
	Put(id truth.ID, d digest.Digest)
}

// Traits are the habits in which engine families differ.
type Traits struct {
	// Dedupe keeps one copy of a block that two requests computed at the same
	// time (SGLang's radix tree). Without it both copies stay and are announced
	// (vLLM).
	Dedupe bool
	// OffloadFirst announces the host copy of an evicted block before its
	// removal from the device, else right after it.
	OffloadFirst bool
	// Placeholder announces host and disk copies by their hash alone. It needs
	// OffloadFirst: a reader forgets a hash that no engine holds any more.
	Placeholder bool
	// WriteThrough copies blocks to the host as soon as a second request used
	// them, not only at eviction.
	WriteThrough bool
	// RemoveSingly announces every removal in an event of its own.
	RemoveSingly bool
	// Report announces the blocks that a request finds once more, from the first on
	// and under the request's session (vLLM's kv_cache_report_mode: full).
	Report bool
}

// Request is one prompt with the answer the engine is going to produce.
type Request struct {
	// Path holds the full blocks of prompt and answer, as truth.Tree.Intern
	// returned them; the engine takes over the pin.
	Path []truth.ID
	// Prompt is how many leading blocks of Path lie, with their look-ahead, within the
	// prompt. The others exist once the answer has those tokens.
	Prompt int
	// PromptTokens is the length of the prompt, partial block included.
	PromptTokens int
	// Save offers the blocks that have to be computed to the pool.
	Save bool
}

// Stats counts since the engine was made.
type Stats struct {
	Requests int
	Stored   [3]int // block copies announced, by device, host, disk
	Removed  [3]int // block copies announced as gone, by device, host, disk
	Copies   int    // stored on the device although already there
	Reported int    // announced again on the device, because a request found them
	Clears   int
	Cleared  [3]int // block copies that left with a clear, by device, host, disk
	Reused   [4]int // prompt blocks found on device, host, disk, in the pool
	Prompt   int    // prompt tokens of the requests started
}

// Engine is one prefix cache.
type Engine struct {
	Config
	device device
	lower  [2]*lower // host and disk

	waiting  []*running
	running  []*running
	reserved int // blocks the running requests may pin at most

	out   batch
	stats Stats
}

// New returns an empty engine.
func New(c Config) *Engine {
	if c.Device < 1 || c.Chunk < 1 || c.Running < 1 {
		panic(fmt.Sprintf("BUG: engine with device %d, chunk %d, running %d", c.Device, c.Chunk, c.Running))
	}
	if c.Placeholder && !c.OffloadFirst {
		panic("BUG: placeholders after the removal name blocks nobody knows")
	}
	longest := maxRemoved
	if c.RemoveSingly {
		longest = 1
	}
	e := &Engine{Config: c, out: batch{tree: c.Tree, maxRemoved: longest}}
	e.empty()
	return e
}

// empty makes all tiers new.
func (e *Engine) empty() {
	disk := newLower(truth.Disk, e.Disk, nil)
	e.device, e.lower = newDevice(e.Device), [2]*lower{newLower(truth.Host, e.Host, disk), disk}
}

// Submit queues a request. It cuts a path longer than the device: the engine computes the
// blocks that do not fit and never caches them.
func (e *Engine) Submit(r Request) {
	q := &running{promptTokens: r.PromptTokens, path: r.Path, prompt: r.Prompt, save: r.Save}
	if n := len(r.Path); n > 0 {
		q.pin = r.Path[n-1]
	}
	q.path = q.path[:min(len(q.path), e.Device)]
	q.prompt = min(q.prompt, len(q.path))
	e.waiting = append(e.waiting, q)
}

// Busy returns how many requests are not done.
func (e *Engine) Busy() int { return len(e.waiting) + len(e.running) }

// Step lets every running request advance by one chunk or one decoded block and
// returns what to publish, nothing if no block changed. The events are valid
// until the next call.
func (e *Engine) Step() []Event {
	e.out.reset()
	e.admit()
	left := e.running[:0]
	for _, r := range e.running {
		e.advance(r)
		if r.next < len(r.path) {
			left = append(left, r)
			continue
		}
		e.finish(r)
	}
	clear(e.running[len(left):])
	e.running = left
	return e.out.events
}

// Clear drops every block on every tier, as reset_prefix_cache and flush_cache
// do. It panics while a request runs.
func (e *Engine) Clear() []Event {
	if e.Busy() > 0 {
		panic("BUG: clear while requests run")
	}
	e.stats.Clears++
	e.stats.Cleared[0] += e.device.used
	for id := range e.device.by {
		e.Tree.Unset(id, e.Index, truth.Device)
	}
	for i, l := range e.lower {
		e.stats.Cleared[1+i] += len(l.by)
		for id := range l.by {
			e.Tree.Unset(id, e.Index, l.tier)
		}
	}
	e.empty()
	e.out.reset()
	e.out.cleared()
	return e.out.events
}

// Stats returns the counters.
func (e *Engine) Stats() Stats { return e.stats }

// Blocks returns how many blocks each tier holds now; copies count on the device.
func (e *Engine) Blocks() (device, host, disk int) {
	return e.device.used, len(e.lower[0].by), len(e.lower[1].by)
}

// Names returns the engine's own hashes of the blocks of a prompt.
func (e *Engine) Names(path []truth.ID) []digest.Digest {
	names := make([]digest.Digest, len(path))
	var parent digest.Digest
	for i, id := range path {
		parent = e.hash(parent, id, i == 0)
		names[i] = parent
	}
	return names
}

// hash returns the engine's own name for a block, the first of a prompt or one
// below a parent.
func (e *Engine) hash(parent digest.Digest, id truth.ID, first bool) digest.Digest {
	if first {
		return e.Chain.First(e.Tree.Tokens(id), e.Tree.AheadTokens(id)...)
	}
	return e.Chain.Next(parent, e.Tree.Tokens(id), e.Tree.AheadTokens(id)...)
}
