package index

// A cursor is where the next block of a chain goes: behind a block. It carries the key and
// the identity, so that a walk along a chain computes one hash a block and never looks
// back. A cursor holds nothing: after anything else has changed, the caller asks
// refreshCursor whether the block is still there.
type cursor struct {
	kind          cursorKind
	at            position // the block, none where it is in no piece
	key           uint64   // of the block
	made          uint64   // tree.made when at was found to be none
	chainIdentity          // of the block, or of those that come behind
}

// cursorKind says what is known of the block that a cursor is behind.
type cursorKind uint8

const (
	atUnknown cursorKind = iota // the key of the block is not known
	atRoot                      // before the first block
	atBlock                     // at is the block; or none has the key, if at is none
	atKey                       // the key is known, not which piece would have the block
)

// cursorAt returns the cursor of a block.
func (t *tree) cursorAt(p position) cursor {
	if p.isNone() {
		return cursor{}
	}
	r := t.lines.pieceAt(p.piece)
	if r.loose() {
		return cursor{kind: atKey, at: p, key: t.keyOf(p), chainIdentity: r.chainIdentity()}
	}
	return cursor{kind: atBlock, at: p, key: t.keyOf(p), chainIdentity: r.chainIdentity()}
}

// markCursor keeps a cursor for the next event, with the head of its piece and the number
// of times that owners lost blocks of it. Both together say later whether the line has had
// another life since: a piece that ends loses blocks first, and a new one begins with
// another count.
func (t *tree) markCursor(c cursor) chainMark {
	if c.at.isNone() {
		return chainMark{}
	}
	r := t.lines.pieceAt(c.at.piece)
	return chainMark{c.at, c.key, r.head, r.lost}
}

// cursorAtMark returns the cursor of a mark, whose block is still in its place. Engines
// announce a growing prompt in many small events, and each of them begins where the last
// one ended. If the piece has neither ended nor lost a block since, the key in the mark is
// still right, and up to 63 hashes are saved.
func (t *tree) cursorAtMark(m *chainMark) cursor {
	if r := t.lines.pieceAt(m.at.piece); r.head == m.head && r.lost == m.lost {
		return cursor{kind: atBlock, at: m.at, key: m.key, chainIdentity: r.chainIdentity()}
	}
	return t.cursorAt(m.at)
}

// childOf returns the cursor behind the child of a block with a local hash: in the same
// piece, at the head of another one, or, if the parent's place is not known, as a loose
// block of the child's key. The child need not exist; then the cursor has its key and no
// position, and says (made) as of when.
func (t *tree) childOf(c cursor, local uint64) cursor {
	if c.kind == atUnknown {
		return cursor{}
	}
	next := cursor{kind: atBlock, made: t.made, chainIdentity: c.chainIdentity}
	if c.kind == atRoot {
		next.key = c.firstKey(local)
	} else {
		next.key = t.followKey(c.key, c.constant, local)
	}
	// A loose parent has no next block: what lies beside it is another chain's.
	if c.kind == atBlock && !c.at.isNone() {
		if r := t.lines.pieceAt(c.at.piece); c.at.at+1 < r.len() && r.localHashes()[c.at.at+1] == local {
			next.at = position{c.at.piece, c.at.at + 1}
			return next
		}
	}
	if next.at = t.findBeginning(next.key, c.kind == atRoot); next.at.isNone() && c.kind == atKey {
		next.kind, next.at = atKey, t.findLoose(next.key)
	}
	return next
}

// refreshCursor looks at a cursor again after other blocks have changed. Lines are used
// again, so that a block is at the old position proves nothing: only the key does. If the
// block has gone, the cursor has its key and no position, and made says that this was found
// out just now: a block that is made later may be the one.
func (t *tree) refreshCursor(c cursor) cursor {
	if c.kind != atBlock && c.kind != atKey || c.at.isNone() {
		return c
	}
	r := t.lines.pieceAt(c.at.piece)
	if r.meta&isSide == 0 && c.at.at < r.len() && r.loose() == (c.kind == atKey) && t.keyOf(c.at) == c.key {
		return c
	}
	c.at, c.made = position{}, t.made
	return c
}

// cleanCursor takes retired owners out of the piece of a cursor, and looks at the cursor
// again.
func (m *nameMap) cleanCursor(c cursor) cursor {
	if c.at.isNone() || m.sweep.left == 0 {
		return c
	}
	m.cleanPiece(c.at.piece, m.tree.lines.pieceAt(c.at.piece))
	return m.tree.refreshCursor(c)
}

// notePlace tells findPlace of a new block.
func (t *tree) notePlace(key uint64, p position) {
	if t.places != nil {
		t.places[key] = p.encode()
	}
}

// writeBlock writes the words of a block of a chained piece, without a name. The block is
// not yet counted in meta, so no reader looks at it.
func (t *tree) writeBlock(r *piece, at uint32, local, clientHash uint64) {
	t.made++ // all lanes are locked
	write64(&r.localHashes()[at], local)
	write64(&r.engineHashes()[at], 0)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
}
