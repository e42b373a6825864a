//go:build amd64 || arm64

package index

import "unsafe"

// prefetch begins to load the cache line at p and waits for nothing. A plain load
// would do the same but for the atomic operations that follow: they wait until
// every load before them has come.
//
//go:noescape
func prefetch(p unsafe.Pointer)

// prefetchLines is prefetch for n lines in a row, at least one.
//
//go:noescape
func prefetchLines(p unsafe.Pointer, n int)
