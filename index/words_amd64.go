//go:build !race

package index

// write32 and write64 store words that a reader believes only after it has seen the
// version of their piece or segment unchanged. Processors of this kind keep the order of
// stores, and both steps of a version are atomic.

func write32(p *uint32, v uint32) { *p = v }
func write64(p *uint64, v uint64) { *p = v }
