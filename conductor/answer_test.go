package conductor

import (
	"testing"

	"kvconductor/index/hash"
)

// A prompt is nobody's once it is answered, and a giant's buffers are not kept for those
// that follow.
func TestScratchKeepsNoPrompt(t *testing.T) {
	x := &indexContext{scheme: hash.Default()}
	for _, n := range []int{1, keepHashes, keepHashes + 1} {
		prompt := make([]uint64, n)
		sc := new(scratch)
		sc.hashes, sc.mixed = prompt, make([]uint64, n)
		sc.locals.reset(x, prompt, true)
		sc.locals.seq = make([]uint64, n)
		sc.release()
		if sc.hashes != nil || sc.locals.labels != nil || sc.locals.context != nil {
			t.Errorf("%d hashes: the prompt or its context is kept", n)
		}
		if got := max(cap(sc.mixed), cap(sc.locals.seq)); (got > 0) != (n <= keepHashes) {
			t.Errorf("%d hashes: room for %d is kept", n, got)
		}
	}
}
