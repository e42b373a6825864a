package http

import (
	"fmt"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
)

// TestBlock is the size of the blocks of NewPromptFleet, in tokens.
const TestBlock = testBlock

// NewPromptFleet returns a Conductor with 128 instances, of which the last seven hold parts of a prompt of 64 blocks, and
// the prompt.
func NewPromptFleet(t testing.TB) (*conductor.Conductor, []uint32) {
	f := newFleet(t)
	prompt := promptOf(7, 64)
	for i := range 128 {
		f.store(f.source(fmt.Sprintf("i%d", i), 0, registration.TypeVLLM), "gpu", prompt, max(0, i-120)*4)
	}
	return f.c, prompt
}

// SetAlive changes how long a watch sends nothing at most.
func SetAlive(w *Watches, d time.Duration) { w.alive = d }
