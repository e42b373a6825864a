package engine

import (
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// running is a request from Submit until its last block.
type running struct {
	path         []truth.ID
	prompt       int // leading blocks of path that lie within the prompt
	promptTokens int
	save         bool     // offer computed blocks to the pool
	pin          truth.ID // block to unpin at the end, Root for none

	next   int           // blocks of path that are computed or found
	hits   int           // leading blocks of path that were found
	hash   digest.Digest // of path[next-1]
	blocks []*block      // one per computed or found block, in path order
}

// admit starts waiting requests while the device has room for all their blocks.
func (e *Engine) admit() {
	for len(e.waiting) > 0 && len(e.running) < e.Running {
		r := e.waiting[0]
		if len(e.running) > 0 && e.reserved+len(r.path) > e.Device {
			return
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, r)
		e.reserved += len(r.path)
		e.start(r)
	}
}

// start finds the cached prefix of a request and loads its blocks of lower tiers and of
// the pool. The last token of a prompt is always computed, so a prompt whose
// every block is cached computes its last block again.
func (e *Engine) start(r *running) {
	e.stats.Requests++
	e.stats.Prompt += r.promptTokens
	limit := min(r.prompt, (r.promptTokens-1)/e.Tree.BlockSize())
	missing := 0
	var at digest.Digest
	for i, id := range r.path[:max(limit, 0)] {
		b, hash, tier := e.find(at, id, i == 0)
		if tier < 0 {
			break
		}
		at = hash
		e.stats.Reused[tier]++
		if b == nil {
			missing++
		}
		r.blocks = append(r.blocks, b)
	}
	r.hits = len(r.blocks)
	e.ensure(missing)
	for i, b := range r.blocks {
		if b == nil {
			r.blocks[i] = e.store(r.path[i], r.hash, i == 0)
		}
		r.hash = r.blocks[i].hash
	}
	r.next = r.hits
	if e.Report {
		e.report(r.blocks)
	}
}

// find returns the tier that serves a block, 0 to 2, 3 for the pool or -1, and
// its hash. It pins the block if that is the device.
func (e *Engine) find(parent digest.Digest, id truth.ID, first bool) (*block, digest.Digest, int) {
	if b := e.device.find(id); b != nil {
		e.device.pin(b)
		return b, b.hash, 0
	}
	for i, l := range e.lower {
		if l.touch(id) {
			return nil, l.by[id].hash, 1 + i
		}
	}
	if e.Pool != nil {
		if hash := e.hash(parent, id, first); e.Pool.Get(hash) {
			return nil, hash, 3
		}
	}
	return nil, digest.Digest{}, -1
}

// advance computes one chunk of the prompt or one block of the answer.
func (e *Engine) advance(r *running) {
	if r.next == len(r.path) {
		return
	}
	end := r.next + 1
	if r.next < r.prompt {
		end = min(r.next+e.Chunk, r.prompt)
	}
	missing := 0
	for _, id := range r.path[r.next:end] {
		var b *block
		if e.Dedupe {
			b = e.device.find(id)
		}
		if b != nil {
			e.device.pin(b)
		} else {
			missing++
		}
		r.blocks = append(r.blocks, b)
	}
	e.ensure(missing)
	for i := r.next; i < end; i++ {
		if r.blocks[i] == nil {
			r.blocks[i] = e.store(r.path[i], r.hash, i == 0)
			if r.save && e.Pool != nil {
				e.Pool.Put(r.path[i], r.blocks[i].hash)
			}
		}
		r.hash = r.blocks[i].hash
	}
	r.next = end
}

// finish frees the blocks of a request, the last one first, so that the
// oldest free block is always a leaf.
func (e *Engine) finish(r *running) {
	if e.WriteThrough {
		e.copyTo(e.lower[0], r.blocks[:r.hits])
	}
	for i := len(r.blocks) - 1; i >= 0; i-- {
		e.device.unpin(r.blocks[i])
	}
	e.reserved -= len(r.path)
	if r.pin != truth.Root {
		e.Tree.Unpin(r.pin)
	}
}
