//go:build !race

package index

// write64 stores a word that a reader believes only after it has seen the version of its
// piece unchanged. Processors of this kind keep the order of stores, and both steps of a
// version are atomic.
func write64(p *uint64, v uint64) { *p = v }
