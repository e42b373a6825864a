package meter

import (
	"example.com/conductor/events/payload"
	"example.com/conductor/index"
)

// MemoryPart is memory that one kind of state takes.
type MemoryPart struct {
	Name  string // label part of conductor_memory_bytes
	Bytes int64
	// OffHeap is how many of the bytes lie outside the Go heap.
	OffHeap int64
}

// Memory returns the memory that the server accounts for, by part. It costs the number
// of sources and owners, not blocks.
func (m *Meter) Memory() []MemoryPart {
	var x index.Memory
	for _, d := range m.opts.Catalog.Indexed() {
		n := d.Index.Memory()
		x.Pieces += n.Pieces
		x.Lists += n.Lists
		x.Heads += n.Heads
		x.Loose += n.Loose
		x.Names += n.Names
		x.Sets += n.Sets
		x.Waiting += n.Waiting
		x.Owners += n.Owners
		x.PiecesOffHeap += n.PiecesOffHeap
		x.NamesOffHeap += n.NamesOffHeap
	}
	sources := m.opts.Sources.Memory()
	waiting, reading := m.opts.Payloads.Used()
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
		{Name: "payload_pools", Bytes: payload.PooledBytes()},
		{Name: "streams", Bytes: sources.Streams},
		{Name: "removals", Bytes: sources.Removals},
		{Name: "pools", Bytes: sources.Pools},
		{Name: "lmcache", Bytes: sources.Pushed},
		{Name: "lifetimes", Bytes: sources.Lives},
		{Name: "source_histories", Bytes: sources.Histories},
		{Name: "expected", Bytes: m.opts.Catalog.Expected().Bytes()},
		{Name: "answers", Bytes: m.opts.Matcher.KeptBytes()},
		{Name: "prefixes", Bytes: int64(m.opts.Catalog.PrefixBytes())},
		{Name: "hash_memo", Bytes: m.opts.Memo.Stats().Bytes},
		{Name: "journal", Bytes: int64(m.opts.Tape.MemoryBytes())},
	}
}
