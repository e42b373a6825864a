package sim

import (
	"fmt"
	"math/bits"
	"time"

	"example.com/conductor/lab/sim/truth"
)

// station is a rank in simulated time. It computes one prompt after the other.
type station struct {
	jobs []*job        // in the order of their arrival; of the first the prompt may be at hand
	busy bool          // it is
	free time.Duration // when it is computed, or when the last one was
}

// job is a request on its way through a rank.
type job struct {
	at       time.Duration
	tokens   []uint32 // of the prompt, then of the answer
	length   int      // of the prompt
	computed func()   // to call when the prompt is
	reused   [3]int   // what the rank found of it on device, host and disk, in tokens
}

func (j *job) prompt() []uint32 { return j.tokens[:j.length] }

// advance lets a rank compute the prompts that it can begin until a time. Its engine works on a
// prompt, and announces the blocks, when the prompt is computed: a choice that is made meanwhile
// knows nothing of them.
func (t *trial) advance(n int, until time.Duration) error {
	s := &t.stations[n]
	for {
		if s.busy {
			if s.free > until {
				return nil
			}
			if err := t.finish(n, s.jobs[0]); err != nil {
				return err
			}
			s.jobs, s.busy = s.jobs[1:], false
		}
		if len(s.jobs) == 0 {
			return nil
		}
		j := s.jobs[0]
		took := t.begin(n, j)
		s.free, s.busy = max(s.free, j.at)+took, true
		t.ttft.Add(s.free - j.at)
		t.waited += s.free - j.at
		t.work[n] += took
	}
}

// begin looks for what a rank reuses of a prompt, and returns how long the prompt takes there. The
// rank's cache stays as it is until finish.
func (t *trial) begin(n int, j *job) (took time.Duration) {
	most := (j.length - 1) / t.driver.fleet.BlockSize * t.driver.fleet.BlockSize // an engine computes at least the last token
	elsewhere := 0
	for _, c := range t.cached(j.prompt(), false) {
		elsewhere = max(elsewhere, min(c.Expected, most))
	}
	tree := t.driver.fleet.ranks[n].instance.tree
	t.scratch.path = tree.Walk(j.prompt(), t.scratch.path[:0])
	for _, id := range t.scratch.path[:min(len(t.scratch.path), most/t.driver.fleet.BlockSize)] {
		held := tree.Held(id, n)
		if held == 0 {
			break
		}
		j.reused[bits.TrailingZeros8(uint8(held))] += t.driver.fleet.BlockSize // from the fastest tier
	}
	reused := j.reused[0] + j.reused[1] + j.reused[2]
	t.hits.add(j.reused[0], j.reused[1], j.reused[2], reused)
	t.recomputed += max(elsewhere-reused, 0)
	return time.Duration(j.length-reused)*computeToken + time.Duration(j.reused[1])*hostToken + time.Duration(j.reused[2])*diskToken
}

// finish runs a request on a rank's engine, which publishes its events.
func (t *trial) finish(n int, j *job) error {
	r := t.driver.fleet.ranks[n]
	before, batches := r.engine.Stats().Reused, r.batches
	if err := t.driver.fleet.submit(r, j.tokens, j.length); err != nil {
		return err
	}
	after := r.engine.Stats().Reused
	for tier, tokens := range j.reused {
		if got := (after[tier] - before[tier]) * t.driver.fleet.BlockSize; got != tokens {
			return fmt.Errorf("BUG: rank %d took %d tokens from tier %d and reused %d", n, tokens, tier, got)
		}
	}
	t.settled = t.settled && r.batches == batches
	j.computed()
	return nil
}

// Cached is what a rank has of a prompt, in tokens: how far its device reaches, with its host and
// then its disk behind that, and how far they do once the rank has computed other prompts.
type Cached struct{ GPU, CPU, Disk, Expected int }

// cached returns what each rank has of a prompt. Expected are prompts at hand, or all that wait for
// a rank too.
func (t *trial) cached(prompt []uint32, waiting bool) []Cached {
	all, one := make([]Cached, len(t.driver.fleet.ranks)), make([]truth.Rank, 1)
	for _, tree := range t.driver.fleet.trees {
		path := tree.Walk(prompt, t.scratch.path[:0])
		t.scratch.path = path
		for n, r := range t.driver.fleet.ranks {
			if r.instance.tree != tree {
				continue
			}
			expected := t.expected(n, prompt, waiting)
			tree.Row(path, n, one)
			all[n] = Cached{GPU: one[0].GPU, CPU: one[0].CPU, Disk: one[0].Disk, Expected: expected * t.driver.fleet.BlockSize}
			tree.Row(path[min(expected, len(path)):], n, one)
			all[n].Expected += one[0].Disk
		}
	}
	return all
}

// expected returns how many leading blocks of a prompt a rank is going to compute for other prompts.
func (t *trial) expected(n int, prompt []uint32, waiting bool) (blocks int) {
	jobs := t.stations[n].jobs
	switch {
	case waiting:
	case t.stations[n].busy:
		jobs = jobs[:1]
	default:
		return 0
	}
	for _, j := range jobs {
		shared := 0
		for _, token := range j.prompt()[:min(j.length, len(prompt))] {
			if token != prompt[shared] {
				break
			}
			shared++
		}
		blocks = max(blocks, (shared-t.driver.fleet.ranks[n].instance.tree.Ahead())/t.driver.fleet.BlockSize)
	}
	return blocks
}
