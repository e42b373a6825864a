//go:build !amd64 || race

package index

import "unsafe"

// sameWords returns how many of the first n words of two lists are equal, up to the first
// two that differ. Others may write those of a at the same time.
func sameWords(a, b *uint64, n int) (m int) {
	k, c := unsafe.Slice(a, n), unsafe.Slice(b, n)
	for m < n && load64(&k[m]) == c[m] {
		m++
	}
	return m
}
