//go:build !amd64 && !arm64

package index

import "unsafe"

func prefetch(unsafe.Pointer) {}

func prefetchLines(unsafe.Pointer, int) {}
