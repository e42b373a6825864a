package sim

import (
	"cmp"
	"sync"
	"time"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/truth"
)

// shown is how many wrong answers are kept in full.
const shown = 5

// tally counts the answers that the clients get.
type tally struct {
	mu sync.Mutex // guards the rest

	requests     int
	promptTokens int
	outputTokens int
	latencies    harness.Latencies // of answered queries
	failed       int               // queries without an answer
	lastFailure  error

	downtimes      []Downtime
	lostToRestarts int // queries

	served  time.Time // the last answer
	outage  *Outage   // that goes on; nil if the last query was answered
	outages []Outage

	Answers
	examples []finding

	// Tokens of the instance each request went to.
	truth    hits
	answered hits
	pooled   hits // of the truth, blocks that the instance does not hold itself
}

// hits are matched prompt tokens: on GPU, CPU, disk, on any of them.
type hits [4]int

func (h *hits) add(tokens ...int) {
	for i, n := range tokens {
		h[i] += n
	}
}

// truncated counts a row that says that it may be too short.
func (t *tally) truncated() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Truncated++
}

// row counts the comparison of one row; f is nil when it does not differ. A row
// that says that its history is incomplete is neither right nor wrong.
func (t *tally) row(settled, incomplete bool, f *finding) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Compared++
	switch {
	case incomplete:
		t.Partial++
	case settled:
		t.Settled++
	}
	if f == nil {
		return
	}
	switch f.verdict {
	case behind:
		t.Behind++
	case wrong:
		t.Wrong++
		if f.over() {
			t.Over++
		}
		if f.under() {
			t.Under++
		}
		if len(t.examples) < shown {
			t.examples = append(t.examples, *f)
		}
	}
}

func (t *tally) query(took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		t.lastFailure = err
		return
	}
	t.latencies.Add(took)
	t.servedLocked()
}

// routed counts a request that an instance ran.
func (t *tally) routed(prompt, output int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	t.promptTokens += prompt
	t.outputTokens += output
}

// matched counts the match of the instance a request went to.
func (t *tally) matched(want truth.Row, got *row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.truth.add(want.GPU, want.CPU, want.Disk, want.Longest)
	t.pooled.add(0, want.Pool.CPU, want.Pool.Disk, want.Pool.Longest)
	if got != nil {
		none := new(int)
		t.answered.add(*cmp.Or(got.GPU, none), *cmp.Or(got.CPU, none), *cmp.Or(got.Disk, none), *cmp.Or(got.Longest, none))
	}
}

func (t *tally) waited(ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.Waits++
	} else {
		t.Timeouts++
	}
}

// brief returns the counts next to the progress bar.
func (t *tally) brief() (wrong, behind, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Wrong, t.Behind, t.failed
}
