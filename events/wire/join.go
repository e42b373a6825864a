package wire

import (
	"encoding/binary"

	"example.com/conductor/events"
)

// Engines cache and evict block by block: vLLM sends a removal for each block, a hundred in a
// batch, and its offloading a store by hash alone for each. SGLang's node of one page is a store of one block.
// An index does as much work for one of them as for a list, so the decoder joins them:
//
//	removed a        an event that knows a block by its hash alone has the bytes of the one
//	removed b   -->  before but for the hash: it is compared instead of decoded
//	removed c
//	                 removed a b c    Joined: 2
//
//	stored p: a      an event differs from the one before in hash, parent and tokens alone, and its
//	stored a: b -->  parent is the block of that one
//
//	                 stored p: a b    Joined: 1
//
// Stores behind one that names no parent stay apart from it: how many blocks of a prompt's beginning
// an event repeats tells how the engine reports (conductor/doctor).

// previous is what the next event needs to know of the last good one to go on with it.
type previous struct {
	hashes []uint64 // the memory from its last list of hashes on
	tokens []uint32 // likewise of tokens
	// Of an event that knows one block by its hash alone: where its bytes begin and end, and the hash
	// in them. end is 0 for other events.
	start, end       int
	hashFrom, hashTo int
}

// rememberEvent lets the next event go on with a good one, which was read from start on.
func (d *decoder) rememberEvent(ev *events.Event, start int) {
	p := previous{hashes: d.hashes.taken, tokens: d.tokens.taken, start: start}
	bare := ev.Kind == events.Removed && ev.Remaining == nil || ev.Kind == events.Moved ||
		ev.Kind == events.Stored && !ev.HasParent && len(ev.Tokens) == 0
	sure := d.ambiguous == d.ambiguousBefore // else each event like it counts in Batch.Ambiguous
	if bare && sure && d.lists == 1 && len(ev.Hashes) == 1 && hasNoNumber(ev) {
		p.end, p.hashFrom, p.hashTo = d.in.i, d.hashFrom, d.hashTo
	}
	d.previous = p
}

// hasNoNumber reports whether an event is of those that have neither a number nor a name of their own.
func hasNoNumber(ev *events.Event) bool {
	return !ev.Envelope && ev.ID == 0 && ev.ObjectKey == "" && ev.ConnectorHash == ""
}

// joinRepeatedEvent reads the next event into the last good one, if it names another block and says the same otherwise.
func (d *decoder) joinRepeatedEvent(ev *events.Event) bool {
	p := &d.previous
	size := p.end - p.start
	if p.end == 0 || d.in.bytesLeft() < size {
		return false
	}
	was, is := d.in.b[p.start:p.end], d.in.b[d.in.i:d.in.i+size]
	from, to := p.hashFrom-p.start, p.hashTo-p.start
	if !haveSameWidth(was[from:to], is[from:to]) || string(was[to:]) != string(is[to:]) || string(was[:from]) != string(is[:from]) {
		return false
	}
	ev.Hashes = d.hashes.appendElement(binary.BigEndian.Uint64(is[to-8:]), min(d.siblings, d.in.bytesLeft()/size))
	ev.Joined++
	d.in.i += size
	return true
}

// haveSameWidth reports whether two values of the same number of bytes are hashes whose last eight bytes count.
func haveSameWidth(was, is []byte) bool {
	switch was[0] {
	case 0xcf, 0xd3: // an integer
		return is[0] == 0xcf || is[0] == 0xd3
	case 0xc4: // bytes
		return is[0] == 0xc4 && is[1] == was[1] && was[1] >= 8
	}
	return false
}

// joinNextBlock adds an event to the last good one, if both store one block, the second behind the first, and they say the
// same otherwise.
func (d *decoder) joinNextBlock(prev, ev *events.Event) bool {
	n, size := len(prev.Hashes), ev.BlockSize
	if n != prev.Count() || len(ev.Hashes) != 1 || !ev.HasParent || !prev.HasParent ||
		ev.Parent != prev.Hashes[n-1] || !agreeButForBlock(prev, ev) ||
		size == 0 || len(ev.Tokens) != size || len(prev.Tokens) != n*size {
		return false
	}
	p := &d.previous
	if !areAdjacent(p.hashes, prev.Hashes, ev.Hashes) || !areAdjacent(p.tokens, prev.Tokens, ev.Tokens) {
		return false
	}
	prev.Hashes, prev.Tokens = p.hashes[:n+1:n+1], p.tokens[:(n+1)*size:(n+1)*size]
	prev.Joined++
	return true
}

// areAdjacent reports whether two lists that are not empty lie one behind the other at the beginning of some memory.
func areAdjacent[T any](in, a, b []T) bool {
	return len(in) > len(a) && &in[0] == &a[0] && &in[len(a)] == &b[0]
}

// agreeButForBlock reports whether two stored events of a batch agree in all but hashes, parents and tokens. A batch
// has each name in one place.
func agreeButForBlock(a, b *events.Event) bool {
	return a.Kind == events.Stored && b.Kind == events.Stored && hasNoNumber(a) && hasNoNumber(b) &&
		a.Ahead == 0 && b.Ahead == 0 && !a.Bigram && !b.Bigram && a.Items == nil && b.Items == nil &&
		a.BlockSize == b.BlockSize && a.BaseBlock == -1 && b.BaseBlock == -1 &&
		a.Medium == b.Medium && a.Group == b.Group && a.GroupKind == b.GroupKind && a.Window == b.Window &&
		a.LoraName == b.LoraName && a.LoraID == b.LoraID && a.Salt == b.Salt &&
		a.Model == b.Model && a.Tenant == b.Tenant && a.Backend == b.Backend && a.Rank == b.Rank && a.Owned == b.Owned
}
