package index

import "runtime"

// spins counts how often a goroutine has looked at a word that another one is about to
// change.
type spins uint32

// spinLooks is some microseconds of looking: longer than a piece or a small lock is held,
// unless its holder has lost the processor.
const spinLooks = 4096

// pause lets time pass between two looks, and others run after many of them.
func (s *spins) pause() {
	if *s++; *s%spinLooks == 0 {
		runtime.Gosched()
	}
}
