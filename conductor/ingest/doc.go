// Package ingest follows the publishers of a fleet: for each source one goroutine takes batches from its stream, applies
// them to the indexes of a catalog, and keeps what it takes to explain, compare, copy and restore what the source holds.
//
//	stream.Stream --Step--> Source.applyStep --Batch--> normalize --Change--> applier --Store, Remove--> index.Index
//	                            |                                               |
//	                            |<-------- gaps, unusable, effects -------------+
//	                            v
//	                      Sources.dispatch: what the step means for other sources
//
// Sources registers, starts and stops sources. A Source has the loop, the mark of the batch applied last, and the snapshot
// that is being filled. Its holdings are the owners it has in each deployment. Its applier turns changes into calls of the
// index and knows no stream. Snapshots copies what all sources hold at one moment, and Recovery brings such a copy back.
//
// Invariants:
//
//  1. A key names at most one running source.
//  2. What a source holds changes only while its turn is held: by its own goroutine, by its ageing, or by a recovery before
//     the gate opens.
//  3. A source knows no other source. What a step of one means for others it returns as effects, which are handed on while
//     no turn is held.
//  4. With a mark, a source holds exactly the blocks that its engine held behind that batch. Blocks without a mark are kept
//     apart, as the older generation of their holders, until the source has seen its publisher's whole history.
//
// Lock order: Sources.copying; the turns of sources, several of them by key; Sources.mu; Catalog.mu and what follows there;
// holdings.mu; the locks of the index. No turn is waited for and no stream is closed under Sources.mu or Catalog.mu.
//
// Applying an event costs the index's work and a few hundred nanoseconds; nothing is allocated for events of known shapes.
package ingest
