package index

import "runtime"

// pause lets a writer go on for whom a reader waits.
func pause() { runtime.Gosched() }
