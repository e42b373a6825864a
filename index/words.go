package index

import "sync/atomic"

// Words that readers without a lock look at are loaded and stored by these.

// On the processors that we know a load or a store of a word that is aligned is one
// instruction either way. The functions are there for the compiler, which must neither
// split a load nor do it twice, and for the race detector.
func load32(p *uint32) uint32     { return atomic.LoadUint32(p) }
func load64(p *uint64) uint64     { return atomic.LoadUint64(p) }
func store32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
func store64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
