//go:build linux && !race

package index

import (
	"runtime"
	"syscall"
	"unsafe"
)

// reserveMemory returns n bytes of zeros outside the Go heap. Pages take memory once they
// are written. n is a multiple of the page size.
//
// On the heap these words would count as live memory. The collector runs when garbage has
// reached a share of that (GOGC), so it would let garbage the size of the index pile up.
func reserveMemory(n int) unsafe.Pointer {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		panic("BUG: no address space for the index: " + err.Error())
	}
	return unsafe.Pointer(unsafe.SliceData(b))
}

// releaseWith gives memory of reserveMemory back to the system once the arena, and with it
// the index that it is a part of, is unreachable.
func releaseWith(a *arena, p unsafe.Pointer, n int) {
	runtime.AddCleanup(a, func(p uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, p, uintptr(n), 0)
	}, uintptr(p))
}

// discardMemory gives the pages of n bytes back to the system. They read as zeros until
// they are written again.
func discardMemory(p unsafe.Pointer, n int) {
	_ = syscall.Madvise(unsafe.Slice((*byte)(p), n), syscall.MADV_DONTNEED)
}

// takePages makes the system give n bytes their memory at once, which costs less than a
// fault for each page. Where the system cannot, the first writes do.
func takePages(p unsafe.Pointer, n int) {
	const populateWrite = 23 // MADV_POPULATE_WRITE
	_ = syscall.Madvise(unsafe.Slice((*byte)(p), n), populateWrite)
}

// joinPages lets the system make huge pages of n bytes that have been written. A huge page
// at the first write would cost that write milliseconds.
func joinPages(p unsafe.Pointer, n int) {
	if n >= 4*hugeBytes {
		_ = syscall.Madvise(unsafe.Slice((*byte)(p), n), syscall.MADV_HUGEPAGE)
	}
}

// hugeBytes is the size of a huge page.
const hugeBytes = 2 << 20

// offHeap says whether pieces lie outside the Go heap.
const offHeap = true

// offHeapBuckets is how many buckets lie outside the Go heap: fewer are not worth a page.
const offHeapBuckets = 256

// makeBuckets returns n free buckets.
func makeBuckets(n int) []bucket {
	if n < offHeapBuckets {
		return make([]bucket, n)
	}
	b, err := syscall.Mmap(-1, 0, n*lineBytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return make([]bucket, n)
	}
	return unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// freeBuckets gives buckets back.
func freeBuckets(b []bucket) {
	if len(b) >= offHeapBuckets {
		_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)*lineBytes), 0)
	}
}
