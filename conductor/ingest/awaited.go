package ingest

import (
	"math"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// A block may be known by its hash alone before any engine has announced its tokens, as when a pool is faster than the engine.
// Nobody knows then of how many parts it is. Once an event has the parts, the index gives the source that waited the last of them,
// and the source stores the whole chunk, as it would have if the engine had been first:
//
//	source A  --hash alone-->  index          the block waits under the hash
//	source B  --parts------->  index  --awaited-->  A stores the chunk

// awaited is a block of several parts that a source had stored by its hash alone.
type awaited struct {
	in *catalog.Deployment
	index.Awaited
}

// storeAwaited lets the source that waited for a block store all parts of it.
func storeAwaited(c *Sources, w *awaited) {
	m := w.in.HolderOf(w.Source)
	if m == nil {
		return
	}
	if s := c.SourceOf(m); s != nil {
		s.guard(func() {
			s.holdings.gatherChunk(w)
			s.holdings.ringBells()
		})
	}
}

// gatherChunk moves a block whose last part a holder of single blocks has to the holder of chunks, with all parts.
func (s *holdings) gatherChunk(w *awaited) {
	at := slices.IndexFunc(s.namespaces, func(ns *namespace) bool { return ns.Deployment == w.in && ns.Source == w.Source })
	if at < 0 {
		return // it has left meanwhile
	}
	ns, size := s.namespaces[at], len(w.Engine)
	for key, h := range ns.owners {
		if key.Chunk != 0 || !slices.Contains(h.owners, w.Owner) || !ns.mayHaveChunks(key.Medium, size) {
			continue
		}
		if key.Medium == tiers.NameDevice && announcesSize(s.specs[key.Rank], key.Group) {
			return // the block is the last one of another group's: this group has blocks of its own size
		}
		if key.Chunk = size; s.noRoomFor(ns, key) {
			return
		}
		to := s.holder(ns, key, s.media[key.Medium]).owners[0]
		for range takeCopies(ns.Deployment.Index, w.Owner, w.Engine[size-1:], math.MaxInt) {
			ns.Deployment.Index.Store(&index.Store{Owner: to, Engine: slices.Clone(w.Engine), Copies: index.CopyCount})
		}
		return
	}
}
