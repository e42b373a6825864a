package streamtest

import "slices"

// Recorder is the memory of an engine that serves snapshots, as vLLM's recorder keeps it: the
// blocks that are cached, where and how often, the tokens of each block and of the blocks before it.
type Recorder struct {
	BlockSize int

	blocks map[uint64]*recorded
	order  []uint64 // of first stores: parents come before their children
}

// Scope is where an engine counts copies of a block.
type Scope struct {
	Medium    string
	Group     int
	Ownership string // "" is the engine's own
}

// recorded is one block. It stays while it is cached, and while a block behind it stays.
type recorded struct {
	parent   uint64 // 0: none
	tokens   []uint32
	copies   map[Scope]int
	children int
}

func (b *recorded) isCached() bool { return len(b.copies) > 0 }

// Limits of the parts of a snapshot.
const (
	partEvents  = 256
	eventBlocks = 1024
)

// RecordStore notes a store, parent 0 is none. Without tokens it is of blocks that are known.
func (r *Recorder) RecordStore(at Scope, parent uint64, hashes []uint64, tokens []uint32) {
	if r.blocks == nil {
		r.blocks = make(map[uint64]*recorded)
	}
	for i, h := range hashes {
		b := r.blocks[h]
		if b == nil {
			if len(tokens) == 0 {
				continue
			}
			b = &recorded{parent: parent, tokens: tokens[i*r.BlockSize : (i+1)*r.BlockSize], copies: make(map[Scope]int)}
			if p := r.blocks[parent]; p != nil {
				p.children++
			}
			r.blocks[h] = b
			r.order = append(r.order, h)
		}
		b.copies[at]++
		parent = h
	}
}

// RecordRemoval notes a removal.
func (r *Recorder) RecordRemoval(at Scope, hashes ...uint64) {
	for _, h := range hashes {
		b := r.blocks[h]
		if b == nil || b.copies[at] == 0 {
			continue
		}
		if b.copies[at]--; b.copies[at] == 0 {
			delete(b.copies, at)
		}
		r.forgetUnused(h)
	}
}

// forgetUnused drops a block that is cached nowhere and has nothing behind it, and those before it.
func (r *Recorder) forgetUnused(h uint64) {
	for b := r.blocks[h]; b != nil && !b.isCached() && b.children == 0; b = r.blocks[h] {
		delete(r.blocks, h)
		if h = b.parent; r.blocks[h] != nil {
			r.blocks[h].children--
		}
	}
}

// CopiesOf returns how often each scope has a block.
func (r *Recorder) CopiesOf(h uint64) map[Scope]int {
	if b := r.blocks[h]; b != nil {
		return b.copies
	}
	return nil
}

// SnapshotParts returns the parts of a snapshot: all blocks once, with tokens; without those that are
// not cached; all copies; without the first ones.
func (r *Recorder) SnapshotParts(seconds float64, rank any) (parts []string) {
	var events []any
	add := func(e map[string]any) {
		if events = append(events, e); len(events) == partEvents {
			parts = append(parts, EncodeBatch(seconds, rank, events...))
			events = nil
		}
	}
	r.order = slices.DeleteFunc(r.order, func(h uint64) bool { return r.blocks[h] == nil })
	first := make(map[Scope][]uint64)
	copies := make(map[Scope][]uint64)
	var dead, run []uint64
	var tokens []uint32
	var at Scope
	flush := func() {
		if len(run) == 0 {
			return
		}
		e := at.newEvent("BlockStored", run)
		e["token_ids"], e["block_size"] = tokens, r.BlockSize
		if p := r.blocks[run[0]].parent; p != 0 {
			e["parent_block_hash"] = p
		}
		add(e)
		run, tokens = nil, nil
	}
	for _, h := range r.order {
		b, scope := r.blocks[h], Scope{Medium: "GPU"}
		if b.isCached() {
			scope = b.firstScope()
			first[scope] = append(first[scope], h)
			for s, n := range b.copies {
				for range n {
					copies[s] = append(copies[s], h)
				}
			}
		} else {
			dead = append(dead, h)
		}
		if len(run) == eventBlocks || len(run) > 0 && (run[len(run)-1] != b.parent || scope != at) {
			flush()
		}
		run, tokens, at = append(run, h), append(tokens, b.tokens...), scope
	}
	flush()
	each := func(kind string, at Scope, hashes []uint64) {
		for part := range slices.Chunk(hashes, eventBlocks) {
			add(at.newEvent(kind, part))
		}
	}
	each("BlockRemoved", Scope{Medium: "GPU"}, dead)
	for s, hashes := range copies {
		each("BlockStored", s, hashes)
	}
	for s, hashes := range first {
		each("BlockRemoved", s, hashes)
	}
	if len(events) > 0 {
		parts = append(parts, EncodeBatch(seconds, rank, events...))
	}
	return parts
}

// firstScope returns one of the scopes that have the block, the same each time.
func (b *recorded) firstScope() (least Scope) {
	found := false
	for s := range b.copies {
		if !found || s.Medium+s.Ownership < least.Medium+least.Ownership {
			least, found = s, true
		}
	}
	return least
}

// newEvent returns an event about blocks in the scope, without tokens.
func (s Scope) newEvent(kind string, hashes []uint64) map[string]any {
	e := map[string]any{"type": kind, "block_hashes": hashes, "medium": s.Medium, "group_idx": s.Group}
	if s.Ownership != "" {
		e["ownership"] = s.Ownership
	}
	if kind == "BlockStored" {
		e["parent_block_hash"], e["token_ids"], e["block_size"], e["lora_id"] = nil, []uint32{}, 0, nil
		e["kv_cache_spec_kind"] = "full_attention"
	}
	return e
}

// StoredEvent is the event of a live store.
func (s Scope) StoredEvent(parent uint64, hashes []uint64, tokens []uint32, blockSize int) map[string]any {
	e := s.newEvent("BlockStored", hashes)
	e["token_ids"], e["block_size"] = tokens, blockSize
	if parent != 0 {
		e["parent_block_hash"] = parent
	}
	return e
}

// RemovedEvent is the event of a live removal.
func (s Scope) RemovedEvent(hashes ...uint64) map[string]any {
	return s.newEvent("BlockRemoved", hashes)
}
