//go:build !race

package index

// write32 and write64 store a word that others may load at the same time. Most such words
// are stored while a version is odd: a reader believes them only if the version is
// unchanged. Others end a lock, or are hints and names of a piece (see piece). Processors
// of this kind keep the order of stores. An atomic store makes a version odd, and the
// compiler keeps it in place.
func write32(p *uint32, v uint32) { *p = v }
func write64(p *uint64, v uint64) { *p = v }
