package index

import (
	"syscall"
	"unsafe"
)

// hugeBytes is the size of a huge page.
const hugeBytes = 2 << 20

// large asks for huge pages under a big table: each probe goes to another page, and
// with small ones most of its time is spent on finding the page. Where the system
// declines, nothing is lost.
func large(p unsafe.Pointer, n uintptr) {
	const collapse = 25 // MADV_COLLAPSE, of Linux 6.1
	off := -uintptr(p) & (hugeBytes - 1)
	if n < 4*hugeBytes || off > n {
		return
	}
	b := unsafe.Slice((*byte)(unsafe.Add(p, off)), (n-off)&^(hugeBytes-1))
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)
	_ = syscall.Madvise(b, collapse)
}
