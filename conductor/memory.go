package conductor

import (
	"kvconductor/events/payload"
	"kvconductor/index"
)

// MemoryPart is memory that one kind of state takes.
type MemoryPart struct {
	Name  string // label part of conductor_memory_bytes
	Bytes int64
	// OffHeap is how many of the bytes lie outside the Go heap.
	OffHeap int64
}

// Memory returns the memory that the Conductor accounts for, by part. It costs the number
// of sources and owners, not blocks.
func (c *Conductor) Memory() []MemoryPart {
	var x index.Memory
	for _, context := range c.allContexts() {
		m := context.index.Memory()
		x.Pieces += m.Pieces
		x.Lists += m.Lists
		x.Heads += m.Heads
		x.Loose += m.Loose
		x.Names += m.Names
		x.Sets += m.Sets
		x.Waiting += m.Waiting
		x.Owners += m.Owners
		x.PiecesOffHeap += m.PiecesOffHeap
		x.NamesOffHeap += m.NamesOffHeap
	}
	streams, pools := 0, int64(0)
	for _, s := range c.registered() {
		streams += s.stream.Status().Bytes
		pools += s.bound.Load()
	}
	waiting, reading := c.opts.Stream.Memory.Used()
	return []MemoryPart{
		{Name: "index_pieces", Bytes: int64(x.Pieces), OffHeap: int64(x.PiecesOffHeap)},
		{Name: "index_lists", Bytes: int64(x.Lists)},
		{Name: "index_heads", Bytes: int64(x.Heads)},
		{Name: "index_loose", Bytes: int64(x.Loose)},
		{Name: "index_names", Bytes: int64(x.Names), OffHeap: int64(x.NamesOffHeap)},
		{Name: "index_sets", Bytes: int64(x.Sets)},
		{Name: "index_waiting", Bytes: int64(x.Waiting)},
		{Name: "index_owners", Bytes: int64(x.Owners)},
		{Name: "payloads", Bytes: waiting},
		{Name: "socket_blocks", Bytes: reading},
		{Name: "payload_pools", Bytes: payload.Pooled()},
		{Name: "streams", Bytes: int64(streams)},
		{Name: "pools", Bytes: pools},
		{Name: "recall", Bytes: c.recall.bytes()},
		{Name: "hash_memo", Bytes: c.memo.Stats().Bytes},
		{Name: "journal", Bytes: int64(c.opts.Journal.Waiting())},
	}
}
