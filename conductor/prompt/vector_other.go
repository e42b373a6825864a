//go:build !amd64

package prompt

// hasVectors reports whether readWindows works on this processor.
const hasVectors = false

func readWindows([]uint32, []byte, int) (n, next int) { panic("BUG: no vector instructions") }
