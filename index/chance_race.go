//go:build race

package index

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

// onChance is a function of a test that chance calls first, nil for none.
var onChance atomic.Pointer[func(*lane)]

// chance is where another lane may come between two steps. Under the race detector it often
// does, so that tests see what seldom happens. l is the lane that is about to hold a piece,
// nil if the step is another one.
func chance(l *lane) {
	if f := onChance.Load(); f != nil {
		(*f)(l)
	}
	if rand.Uint32()%8 == 0 {
		runtime.Gosched()
	}
}
