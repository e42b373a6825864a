//go:build !race

package index

// write32 and write64 store a word that a reader believes only after it has seen the version
// of its piece or segment unchanged, or that ends a lock. Processors of this kind keep the order
// of stores. What makes a version odd is an atomic store, which the compiler keeps.
func write32(p *uint32, v uint32) { *p = v }
func write64(p *uint64, v uint64) { *p = v }
