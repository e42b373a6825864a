//go:build !linux || race

package index

import "unsafe"

// The race detector sees the Go heap only, so its builds allocate there.

// reserveMemory returns n bytes of zeros. The type words reaches behind a piece at their
// end.
func reserveMemory(n int) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+maxPiece)))
}

func releaseWith(*arena, unsafe.Pointer, int) {}

func discardMemory(unsafe.Pointer, int) {}

func takePages(unsafe.Pointer, int) {}

func joinPages(unsafe.Pointer, int) {}

// offHeap says whether pieces lie outside the Go heap.
const offHeap = false

// makeBuckets returns n free buckets.
func makeBuckets(n int) []bucket { return make([]bucket, n) }

// freeBuckets gives buckets back.
func freeBuckets([]bucket) {}

const offHeapBuckets = 1 << 62
