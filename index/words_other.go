//go:build !amd64 || race

package index

func write32(p *uint32, v uint32) { store32(p, v) }
func write64(p *uint64, v uint64) { store64(p, v) }
