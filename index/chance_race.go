//go:build race

package index

import (
	"math/rand/v2"
	"runtime"
)

// chance is where another lane may come between two steps. Under the race detector it often
// does, so that tests see what seldom happens.
func chance() {
	if rand.Uint32()%8 == 0 {
		runtime.Gosched()
	}
}
