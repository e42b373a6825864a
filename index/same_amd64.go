//go:build amd64 && !race

package index

// sameWords returns how many of the first n words of two lists are equal, up to the first
// two that differ. It loads each word of a at once, as load64 does: others may write it at
// the same time.
//
//go:noescape
func sameWords(a, b *uint64, n int) int
