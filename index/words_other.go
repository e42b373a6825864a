//go:build !amd64 || race

package index

func write64(p *uint64, v uint64) { store64(p, v) }
