package index

import (
	"fmt"
	"math/bits"
)

// CopyPolicy says what a store of a block already held by the same owner means.
type CopyPolicy uint8

const (
	// CopyCount adds a copy; each removal takes one, the last takes the block.
	CopyCount CopyPolicy = iota
	// CopySet changes nothing; the first removal takes the block.
	CopySet
)

// Store is one stored event. The index keeps none of its slices.
type Store struct {
	Owner Owner
	// Identity of a chain that begins with Engine[0], or of Key. Behind a known parent the
	// identity of the parent counts, unless it contradicts what the event says. Without
	// tokens, it is 0 unless its constant is in the hashes.
	Identity  Identity
	Says      Says
	Parent    uint64 // engine hash of the block before Engine[0], with HasParent
	HasParent bool
	// Rootless says that without a parent the position is unknown; else a missing
	// parent is the root.
	Rootless bool
	// Engine are the publisher's hashes, in chain order. Without Local the order does not
	// matter, and Store may permute them.
	Engine []uint64
	Local  []uint64 // local hashes of the tokens, as many; nil without tokens
	// ClientHashes returns the local hashes as clients compute them for an identity, as
	// many; nil if they equal Local, 0 if a block has none. The index asks once it knows
	// whose the blocks are, if Options.KeepClientHashes is set. Nil is a function that
	// returns nil.
	ClientHashes func(Identity) []uint64
	// Key is the key of Engine[0], with HasKey: a snapshot knows it where the parent
	// is not known.
	Key    uint64
	HasKey bool
	// Complete says, with HasKey, that no block before Engine[0] will become known: where
	// its parent is not known, it begins a piece.
	Complete bool
	// ByName says that the tokens do not say all of a block's identity, as those of events
	// about lower tiers: an engine hash that is known means its block, whatever the tokens
	// say. Only other blocks are placed by their tokens: behind the block before in the
	// event, wherever that is, else behind Parent, else at the beginning of a prompt of
	// Identity.
	ByName bool
	// Begins are constants of identities, with Local and neither parent nor Rootless. If
	// the tokens of all blocks begin prompts there under exactly one of them, that is the
	// Identity.
	Begins []uint64
	// Undecided says, where Begins may be given, that Identity is no more than a guess: blocks about which neither a hash nor
	// Begins decides wait under their hashes, and what follows them waits behind them.
	Undecided bool
	// AlsoWaiting, if not 0, says that sources without tokens name blocks
	// Engine[i]^AlsoWaiting: what waits under those hashes gets its place as well. So does
	// what waits under Engine[i] XOR the constant of the block's identity: its sources name
	// the identity, their hashes do not.
	AlsoWaiting uint64
	Copies      CopyPolicy
	// Parts, if above 1, says that Engine has as many hashes for each block as its
	// publisher knows it, and that the last of them is the publisher's.
	Parts int
	// Awaited hears, with Parts, of owners that had waited for a block by the publisher's
	// hash, and have no part of it but the last now. It must not call the index, whose lock
	// is held. Nil is for nobody.
	Awaited func(Awaited)
}

// StoreResult counts blocks.
type StoreResult struct {
	Added     int // the owner did not hold them
	Copies    int // it did already
	Orphaned  int // with tokens, but behind an unknown parent: held under the raw hash
	Undecided int // of Orphaned, those at the beginning of a prompt of an unknown identity, and behind such a block
	HashOnly  int // without tokens, under an engine hash of unknown key
	Resolved  int // stored earlier under a raw hash, whose key became known
	Conflicts int // engine hashes that turned out to mean another prefix, or name themselves as parent
	Shed      int // links that left the full waiting room
	Refused   int // new blocks the budget had no room for
	ByName    int // with Store.ByName and tokens, whose hash was known
	Lost      int // stored by an unknown hash alone, or ByName, which looks like a name of a ghost that had to go lately

	// Identity of the first block of the event that has a place in a chain; Placed is false
	// if none has.
	Identity Identity
	Placed   bool
	Begun    bool // Store.Begins has it

	// Before is the canonical sequence hash of the block before the first one of the event,
	// 0 at the beginning of a prompt. It is valid if Chained.
	Before  uint64
	Chained bool
}

// Awaited is a block in several parts for which an owner waited by the last one's hash.
type Awaited struct {
	Source Source
	Owner  Owner
	Engine []uint64 // engine hashes of all parts, in chain order, as the source knows the last one
}

// Store applies a stored event. A retired owner stores nothing. It panics if Local is
// neither nil nor as long as Engine, or what ClientHashes returns not as long as Local.
func (x *Index) Store(e *Store) StoreResult {
	if e.Local != nil && len(e.Local) != len(e.Engine) {
		panic(fmt.Sprintf("BUG: %d local hashes for %d blocks", len(e.Local), len(e.Engine)))
	}
	p := storing{x: x, e: e}
	if i, c, more := p.storeBesideOthers(); more {
		p.storeAlone(i, c)
	}
	return p.res
}

// storing is a store in progress.
type storing struct {
	x   *Index
	s   *source
	o   *owner
	e   *Store
	of  chainIdentity // Store.Identity
	res StoreResult

	piece    uint32   // of the last block stored by its hash alone
	constant uint64   // of the identity of the block at hand
	clientOf Identity // whose client hashes are known, plus one
	client   []uint64 // of them; nil if they equal Local
}

// clientHash returns the client hash of block i as one of an identity.
func (p *storing) clientHash(i int, id Identity) uint64 {
	if p.e.ClientHashes == nil || !p.x.tree.keepsClientHashes {
		return p.e.Local[i]
	}
	if p.clientOf != id+1 {
		p.client, p.clientOf = p.e.ClientHashes(id), id+1
		if p.client != nil && len(p.client) != len(p.e.Local) {
			panic(fmt.Sprintf("BUG: %d client hashes for %d blocks", len(p.client), len(p.e.Local)))
		}
	}
	if p.client == nil {
		return p.e.Local[i]
	}
	return p.client[i]
}

// storeBesideOthers stores the first blocks next to events of other sources, as far as they
// are ordinary. It returns the next block and the cursor of the one before it, and whether
// all lanes have to be locked for the rest.
//
// Nearly every event ends here. Each step below it decides whether it is ordinary before it
// changes anything that an answer shows, so the event can stop between any two blocks and
// go on in storeAlone as if nothing had happened.
func (p *storing) storeBesideOthers() (i int, c cursor, more bool) {
	x, e := p.x, p.e
	l := x.tree.lanes.laneOfOwner(e.Owner)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.o = x.holders.owners[e.Owner]; p.o == nil {
		return 0, c, false
	}
	p.s = p.o.s
	p.s.teaches = p.s.teaches || e.Local != nil
	p.of = x.tree.identities.rootOf(e.Identity)
	// An event with a key comes from a snapshot. Its blocks may go anywhere, so it is never
	// ordinary.
	if !x.resolver.isCalmFor(p.s) || e.HasKey {
		return 0, c, true
	}
	if i, c = p.storeOrdinary(); i == len(e.Engine) && c.kind == atBlock {
		p.o.last = x.tree.markCursor(c)
	}
	return i, c, x.resolver.leaveLane(p.s, i, len(e.Engine))
}

// storeAlone stores the blocks from i on while all lanes are locked. Between the lane's
// lock and this one other calls may have taken anything away, the owner included. So the
// cursor is looked at again, and if its block has gone, only its key is believed.
func (p *storing) storeAlone(i int, c cursor) {
	x, e := p.x, p.e
	x.lockRest()
	defer x.unlock()
	x.resolver.resumeAlone(x.tree.lanes.laneOfOwner(e.Owner), i, len(e.Engine))
	if p.o = x.holders.owners[e.Owner]; p.o == nil {
		return
	}
	p.s, p.of = p.o.s, x.tree.identities.rootOf(e.Identity)
	if i == 0 {
		if !p.hasMeaning(0) {
			c, _ = p.findStart()
		}
	} else if c.kind == atBlock {
		if c = x.tree.refreshCursor(c); c.at.isNone() {
			c.kind = atKey // another call took the block from the owner
		}
	}
	p.storeRest(i, c)
	// maintain throws the map of findPlace away. An event of a restore keeps it for the
	// next one, as it has noted its own blocks there. Blocks that waited and got their
	// places are not in it, so then it goes.
	places := x.tree.places
	if placed := x.maintain(p.s); e.Complete && !placed {
		x.tree.places = places
	}
}

// storeOrdinary stores blocks, each behind the one before, until one is not ordinary. It
// returns that one and the cursor of the block before it.
func (p *storing) storeOrdinary() (i int, c cursor) {
	if p.e.ByName && p.e.Local != nil {
		return p.storeByName()
	}
	c, ok := p.findStart()
	for ok && i < len(p.e.Engine) {
		if p.e.Local == nil {
			i, ok = p.storeHashes(i)
		} else {
			i, c, ok = p.growChain(i, c)
		}
	}
	return i, c
}

// storeByName is storeOrdinary for an event that says nothing about blocks with known hashes.
//
// Engines announce copies on lower tiers that way. They know the hash of the block and
// sometimes the tokens, but not always the adapter or the salt. The hash was taught by the
// event about the device, which knew all of it.
//
// The cursor of the block before is made only where it is needed, since it costs up to 63
// hashes and blocks with known hashes need none. While names get entries on demand it ends
// at the first unknown hash: whether that is new or just has no entry only a search tells,
// which storeRest does.
func (p *storing) storeByName() (i int, c cursor) {
	x, e, l := p.x, p.e, p.s.lane
	last, ok := position{}, false // the block before, where c is not its cursor yet
	for i < len(e.Engine) {
		if q := x.finder.holdNamed(p.s, normal(e.Engine[i]), nil); !q.isNone() {
			next, at, plain := p.storeRun(i, q, normal(e.Engine[i]))
			if !plain {
				break
			}
			p.res.ByName += next - i
			i, last = next, at
			continue
		}
		if x.names.naming != allNamed {
			break // the hash may have no entry
		}
		switch {
		case !last.isNone():
			x.tree.holdPiece(l, last.piece) // the owner holds the block, so it is still there
			c, last = x.tree.cursorAt(last), position{}
		case i == 0:
			if c, ok = p.findStart(); !ok {
				return i, c
			}
		}
		next := i
		if next, c, ok = p.growChain(i, c); !ok {
			return next, c
		}
		p.countLost(i, next)
		i = next
	}
	if !last.isNone() {
		x.tree.holdPiece(l, last.piece)
		c = x.tree.cursorAt(last)
	}
	return i, c
}

// storeRest stores the blocks from i on, each behind the one before. All lanes are locked.
// It handles everything, and goes back to growChain for stretches that are ordinary, which
// is much cheaper a block.
//
// A cursor that says that its block is nowhere (atBlock, without a position) is true only
// as long as no block of a chain was made. The block before may have been placed by what
// was just stored, as one that had waited. Then only the key of the cursor is believed.
func (p *storing) storeRest(i int, c cursor) {
	x, e := p.x, p.e
	for i < len(e.Engine) {
		from, named := i, p.hasMeaning(i)
		switch {
		case named:
			i, c = p.storeOrphan(i)
		case i == 0 && e.HasKey:
			i, c = 1, p.storeKeyed(c)
		case e.Local == nil:
			i, _ = p.storeHashes(i)
			c = cursor{}
		case c.kind == atUnknown:
			i, c = p.storeOrphan(i)
		case c.kind == atKey:
			c = p.storeOne(i, x.tree.childOf(c, e.Local[i]), c)
			i++
		case c.kind == atBlock && c.at.isNone() && c.made != x.tree.made:
			c.kind = atKey // the block before may be in a piece by now
		case e.ByName && x.names.naming != allNamed:
			c = p.storeOne(i, x.tree.childOf(c, e.Local[i]), c) // the hashes behind may be known
			i++
		default:
			var ok bool
			if i, c, ok = p.growChain(i, c); !ok {
				c = p.storeOne(i, x.tree.childOf(c, e.Local[i]), c)
				i++
			}
		}
		if named {
			p.res.ByName += i - from
		} else {
			p.countLost(from, i)
		}
	}
	if c.kind == atBlock {
		p.o.last = x.tree.markCursor(c)
	}
}

// findStart returns the cursor of the event's parent, and whether that was ordinary. The
// lane holds its piece. A parent of an identity that contradicts what the event says is
// none: two salts may have used one engine hash, and the block waits for the parent that
// was meant.
func (p *storing) findStart() (c cursor, ok bool) {
	if c, ok = p.findParent(); ok && !p.x.tree.identities.mayFollow(p.e.Says, p.of, c) {
		return cursor{}, false // it waits for a parent that the event may mean
	}
	if c.kind != atUnknown && p.e.Local != nil {
		if p.res.Chained = true; c.kind != atRoot {
			p.res.Before = plain(c.key) ^ c.constant
		}
	}
	return c, ok
}

// findParent is findStart for an event that says nothing of its identity.
//
// A mark at the end of the last event needs no look at private names only if the source has
// none, which is the condition here. Otherwise the hash may mean another block to it than
// the one that has this name.
func (p *storing) findParent() (c cursor, ok bool) {
	x, e, l := p.x, p.e, p.s.lane
	switch {
	case e.Local == nil && !e.HasKey:
		return cursor{}, true
	case e.HasParent:
		parent := normal(e.Parent)
		// The parent is usually where the owner's last event ended. Then its key is known
		// too, and no table is asked.
		if q := p.o.last.at; !q.isNone() && p.s.private.len() == 0 && x.names.sweep.left == 0 {
			x.tree.holdPiece(l, q.piece)
			if x.names.lineOf(q, parent) != 0 {
				return x.tree.cursorAtMark(&p.o.last), true
			}
			// It is not, so the chain was left there, and may be taken up again by name.
			p.nameLastBlock()
		}
		// With all lanes locked meanings are looked up in full: private names, contests,
		// searches.
		if x.tree.lanes.alone {
			return x.tree.cursorAt(x.resolver.meaningOf(p.s, parent)), true
		}
		q := x.finder.holdNamed(p.s, parent, e.Engine)
		return x.tree.cursorAt(q), !q.isNone()
	case e.Rootless:
		return cursor{}, false
	}
	p.nameLastBlock()
	// The publisher does not say whose the prompt is. If its blocks are there under exactly
	// one of the identities that it serves, that one is believed.
	once := false
	if len(e.Begins) > 0 && len(e.Local) > 0 {
		var of chainIdentity
		if of, once = x.finder.findIdentity(l, e.Begins, e.Local); once {
			p.of, p.res.Begun = of, true
		}
	}
	if e.Undecided && !once {
		return cursor{}, false
	}
	return cursor{kind: atRoot, chainIdentity: p.of}, true
}

// countLost counts blocks of an event by names whose hashes were not known: those that look
// like names of ghosts that had to go.
func (p *storing) countLost(from, to int) {
	if !p.e.ByName || p.e.Local == nil || p.x.names.ghosts.gens.Load() == nil {
		return
	}
	for _, engine := range p.e.Engine[from:to] {
		if p.x.bounds.isLostName(normal(engine)) {
			p.res.Lost++
		}
	}
}

// hasMeaning reports whether the hash of block i says which block it is, whatever the tokens
// say. All lanes are locked.
func (p *storing) hasMeaning(i int) bool {
	return p.e.ByName && p.e.Local != nil && i < len(p.e.Engine) && !p.x.resolver.meaningOf(p.s, normal(p.e.Engine[i])).isNone()
}

// nameLastBlock gives the block where the owner's last event ended an entry in the table of
// names. The chain will go on there, or be taken away from there, and this event is about
// something else, so the block will no longer be found as the one that was mentioned last.
func (p *storing) nameLastBlock() {
	if p.x.names.naming == onDemand {
		p.x.names.nameBlock(p.s.lane, p.o.last.at)
	}
}

// storeKeyed stores the first block of an event that says its key. Such events come from
// snapshots: their blocks are in any order, so the parent may come later, or never
// (Complete). A block whose key is known but whose place is not is held as a loose one
// under that key, where queries find it, and moves into its chain once the parent appears.
func (p *storing) storeKeyed(c cursor) cursor {
	x, e := p.x, p.e
	of := p.of
	if c.kind == atBlock || c.kind == atKey {
		of = c.chainIdentity
	}
	engine, key := normal(e.Engine[0]), of.keyOf(e.Key)
	next := cursor{kind: atKey, key: key, chainIdentity: of}
	if e.Local != nil && c.kind != atUnknown {
		// The parent is known, and the block follows it as its key says: an ordinary place.
		if n := x.tree.childOf(c, e.Local[0]); n.key == key && (n.kind == atBlock || !e.Complete) {
			return p.storeOne(0, n, c)
		}
	}
	// The parent is not known, or is another one than the key says. The key is right, as it
	// was computed from all tokens.
	if next.at = x.resolver.findByKey(p.s, engine, key); !next.at.isNone() {
		next = x.tree.cursorAt(next.at)
		next.chainIdentity = of
	}
	// Nothing before it will ever come. So it begins a piece of its own, in which later
	// blocks are found by their keys.
	if e.Complete && e.Local != nil && next.kind == atKey {
		next = cursor{kind: atBlock, at: x.resolver.findPlace(key), key: key, made: x.tree.made, chainIdentity: of}
		return p.storeOne(0, next, cursor{kind: atBlock, made: x.tree.made, chainIdentity: of})
	}
	return p.storeOne(0, next, cursor{kind: atKey, chainIdentity: of})
}

// storeOne stores block i, which is at next or is made behind c, whatever its engine hash
// meant before.
//
// The order of its steps is fixed. The owner gets the block before the hash gets its
// meaning, as a name belongs to a held block. What waits is moved after that, because only
// then is it known where to. Each step may move blocks, end pieces or make new ones, so the
// cursor is looked at again behind each.
//
//	find or make the block -> move what waited raw -> owner holds it -> hash means it -> place what waited behind it
func (p *storing) storeOne(i int, next, c cursor) cursor {
	x, e := p.x, p.e
	engine, clientHash := normal(e.Engine[i]), uint64(0)
	if e.Local != nil {
		clientHash = p.clientHash(i, next.id)
	}
	// Find the block, by position, key or name, or make it.
	if next = x.resolver.seekBlock(p.s, engine, next, c); next.at.isNone() {
		local := uint64(0)
		if e.Local != nil {
			local = e.Local[i]
		}
		if next.at = x.holders.createBlock(p.s, c, next.key, p.e.parentOf(i), local, clientHash, len(e.Engine)-i); next.at.isNone() {
			p.res.Refused++
			x.bounds.refuseKey(next.key)
			return next
		}
	} else if r := x.tree.lines.pieceAt(next.at.piece); clientHash != 0 && r.meta&isWide != 0 {
		x.tree.keepForCheckpoint(next.at.piece)
		write64(&r.clientHashes()[next.at.at], clientHash)
	}
	if next.kind == atKey {
		next.at = x.holders.rerootLoose(p.s, next)
	}
	// What this source has stored under the hash alone moves to the block before the owner
	// gets it, or the owner would hold two blocks for a moment and count one copy too many.
	p.moveWaiting(engine, next.key, next.at)
	p.holdBlock(next.at)
	x.resolver.joinGhost(next.key, next.at)
	// The block is held, so the hash may mean it now. If it meant another one to this
	// source, that one is gone.
	if x.resolver.learnMeaning(p.s, engine, next.at, len(e.Engine)-i) {
		p.res.Conflicts++
		next = x.tree.refreshCursor(next)
	} else if x.resolver.contests.some.Load() {
		next = x.tree.refreshCursor(next) // blocks of others have moved
	}
	// Blocks that waited in the source's room for this one as their parent get their
	// places.
	if p.s.room.used > 0 {
		p.res.Resolved += p.placeWaiting(engine, next)
		next = x.tree.refreshCursor(next)
	}
	// Sources without tokens may wait under other forms of the hash, with or without a
	// constant.
	if p.constant = next.constant; p.mayAlsoWait() && x.tree.looseBlocks.Load() > 0 {
		for _, other := range p.otherHashes(engine) {
			x.resolver.alsoLearn(other, next.at)
		}
	}
	// And so may blocks of other sources, which this event has just given a meaning.
	if len(x.names.met) > 0 {
		p.placeWaiters()
		next = x.tree.refreshCursor(next)
	}
	return next
}

// moveWaiting moves what the source holds under an engine hash, or under the key as if it
// were one, to a block. The second case is that of engines whose hashes are the keys.
func (p *storing) moveWaiting(engine, key uint64, q position) {
	if p.x.tree.looseBlocks.Load() == 0 {
		return
	}
	owners := p.partHolders(p.s, engine)
	if p.x.holders.moveRaw(p.s, engine, q) {
		if engine != key {
			p.res.Resolved++
		}
		p.tellAwaited(owners, p.s, engine)
	}
	p.x.resolver.placeLoose(p.s, key, q)
}

// parentOf returns the engine hash of the block before block i, 0 for none.
func (e *Store) parentOf(i int) uint64 {
	switch {
	case i > 0:
		return normal(e.Engine[i-1])
	case e.HasParent:
		return normal(e.Parent)
	}
	return 0
}

// notePlacing remembers the identity of the first block of the event that has a place in a
// chain.
func (r *StoreResult) notePlacing(of *piece) {
	if !r.Placed && !of.loose() {
		r.Identity, r.Placed = of.identityID(), true
	}
}

// holdBlock gives a block to the owner, or a copy.
func (p *storing) holdBlock(q position) {
	p.res.notePlacing(p.x.tree.lines.pieceAt(q.piece))
	if p.x.holders.addHolder(p.o, q) {
		p.res.Added++
		return
	}
	p.countCopies(q.piece, 1<<q.at)
}

// countCopies counts blocks that the owner held already.
func (p *storing) countCopies(n uint32, blocks uint64) {
	p.res.Copies += bits.OnesCount64(blocks)
	if p.e.Copies != CopyCount {
		p.o.copies.trustBlocks(n, blocks)
		return
	}
	p.o.copies.addCopies(n, blocks)
}

// storeHashes stores blocks without tokens from i on: as many as have names next to each
// other, or a single one. It returns the next block, and reports false if the first one is
// not ordinary. A hash that nobody has taught is held raw, as a loose block under the hash
// itself, until an event with tokens says what it means.
func (p *storing) storeHashes(i int) (int, bool) {
	x, e := p.x, p.e
	engine := normal(e.Engine[i])
	if !x.tree.lanes.alone {
		// Next to others only a block that is found at once is ordinary.
		q := p.findBeside(engine)
		if q.isNone() {
			q = x.finder.holdNamed(p.s, engine, nil)
		}
		if q.isNone() {
			return i, false
		}
		i, last, ok := p.storeRun(i, q, engine)
		p.piece = last.piece
		return i, ok
	}
	if q := x.resolver.meaningOf(p.s, engine); !q.isNone() {
		if !p.s.raw && x.resolver.isOrdinary(p.s, engine) {
			i, _, ok := p.storeRun(i, q, engine)
			return i, ok
		}
		p.storeMeant(engine, q)
		return i + 1, true
	}
	p.storeRaw(engine, p.of)
	p.res.HashOnly++
	if !x.tree.findLoose(engine).isNone() && x.bounds.isLostName(engine) {
		p.res.Lost++
	}
	return i + 1, true
}

// findBeside returns the block that an engine hash means to the source if it lies close to
// the last one of the event, and the source holds it. vLLM announces what it has offloaded
// of a chain in no order. The lane holds the block's piece.
//
// It looks at four pieces around the last one. A wider search would cost more than the one
// lookup in the table of names that it saves.
func (p *storing) findBeside(engine uint64) position {
	x, l := p.x, p.s.lane
	if p.piece == 0 || x.names.naming != onDemand || x.names.sweep.left > 0 || !x.resolver.isOrdinary(p.s, engine) {
		return position{}
	}
	n, pieces := p.piece, 4
	if next := load32(&x.tree.lines.pieceAt(n).next); next != 0 {
		n, pieces = next, 5
	}
	if q := x.finder.searchAround(l, n, pieces, engine); !q.isNone() && x.tree.isHeldBy(p.s, q) {
		return q
	}
	return position{}
}

// storeRun stores blocks from i on which have names next to each other from a block on, as
// storeHashes does. The lane holds its piece. Owners change once for the whole run, so the
// cost of a block is the comparison of one word.
func (p *storing) storeRun(i int, q position, engine uint64) (int, position, bool) {
	x, e := p.x, p.e
	r := x.tree.lines.pieceAt(q.piece)
	line := x.names.lineOf(q, engine)
	if !x.finder.joinTeacher(p.s, line) {
		return i, position{}, false
	}
	p.res.notePlacing(r)
	lo, at := q.at, q.at+1
	i++
	dead := x.tree.lines.deadBlocks(r)
	// Go on along the body as long as the event's hashes are its names.
	if line == q.piece {
		for at < r.len() && i < len(e.Engine) && r.engineHashes()[at] == normal(e.Engine[i]) && dead>>at&1 == 0 &&
			x.resolver.isOrdinary(p.s, normal(e.Engine[i])) {
			at++
			i++
		}
	}
	blocks := spanOf(lo, at)
	if at == lo+1 && line == q.piece && i < len(e.Engine) {
		i, blocks = p.gatherNames(i, r, blocks, dead)
	}
	if x.names.naming != allNamed && x.tree.lines.hasUnindexedNames(r, lowestBit(blocks), uint32(bits.Len64(blocks))) &&
		!x.finder.surelyLists(p.s, r) {
		x.finder.noteUnindexed(p.s, q.piece)
	}
	changed := uint64(0)
	x.tree.lockPiece(q.piece, r)
	// Blocks that were gathered may have gaps, so each run of neighbours is given on its
	// own, under one lock.
	for w := blocks; w != 0; {
		lo = lowestBit(w)
		at = lo + uint32(bits.TrailingZeros64(^(w >> lo)))
		changed |= x.holders.addHolders(p.o, q.piece, r, lo, at, dead)
		w &^= spanOf(lo, at)
	}
	r.unlockReaders()
	p.res.Added += bits.OnesCount64(changed)
	if held := blocks &^ changed; held != 0 {
		p.countCopies(q.piece, held)
	}
	return i, position{q.piece, at - 1}, true
}

// gatherAhead is how many hashes of an event are compared with the names of a piece.
const gatherAhead = 512

// gatherNames adds to some blocks of a piece those that an event without tokens names from
// i on, in any order, as vLLM's offloading does. It brings their hashes to i and behind,
// and returns the first one behind them.
//
// It puts the names of the piece into a hash table of 128 bytes on the stack, two cache
// lines, and looks each hash of the event up there. Comparing each with each would be 64
// times 512.
func (p *storing) gatherNames(i int, r *piece, blocks, dead uint64) (int, uint64) {
	if p.e.Local != nil || !p.s.isSimple() || p.x.resolver.contests.some.Load() || p.e.Parts > 1 {
		return i, blocks
	}
	var slots [2 * maxPiece]uint8 // of the names, each block plus one
	names, size := r.engineHashes(), r.len()
	for at := range size {
		if name := names[at]; name != 0 && (blocks|dead)>>at&1 == 0 {
			// Half of the slots are free at least, so a probe ends soon.
			k := mix(name) % uint64(len(slots))
			for slots[k] != 0 {
				k = (k + 1) % uint64(len(slots))
			}
			slots[k] = uint8(at + 1)
		}
	}
	rest := p.e.Engine[i:min(i+gatherAhead, len(p.e.Engine))]
	found := 0
	for j, engine := range rest {
		for k := mix(normal(engine)) % uint64(len(slots)); slots[k] != 0; k = (k + 1) % uint64(len(slots)) {
			if at := uint32(slots[k] - 1); names[at] == normal(engine) && blocks>>at&1 == 0 {
				blocks |= 1 << at
				rest[j], rest[found] = rest[found], engine
				found++
				break
			}
		}
	}
	return i + found, blocks
}

// storeMeant stores the block that an engine hash means, while all lanes are locked.
func (p *storing) storeMeant(engine uint64, q position) cursor {
	x := p.x
	p.moveWaiting(engine, x.tree.keyOf(q), q)
	if line := x.names.lineOf(q, engine); line != 0 && p.s.private.find(engine) == nil {
		x.finder.joinTeacher(p.s, line)
	}
	p.holdBlock(q)
	c := x.tree.cursorAt(q)
	if p.s.room.used > 0 {
		p.res.Resolved += p.placeWaiting(engine, c)
		p.placeWaiters()
		c = x.tree.refreshCursor(c)
	}
	return c
}

// storeRaw stores a block under its engine hash. of is the identity if that is a part of
// the hash. Sources that hash alike share the loose block, so a pool with many clients does
// not pay for each of them.
func (p *storing) storeRaw(engine uint64, of chainIdentity) {
	x := p.x
	q := x.tree.findLoose(engine)
	if !q.isNone() && !x.names.isAlive(q) {
		q = x.tree.findLoose(engine)
	}
	if q.isNone() {
		if q = x.holders.createLoose(p.s, of, engine, 0, 1); q.isNone() {
			p.res.Refused++
			x.bounds.refuseKey(engine)
			return
		}
	}
	p.s.raw = true
	added := p.res.Added
	p.holdBlock(q)
	p.o.raw += p.res.Added - added
}

// storeOrphan stores block i, whose key is not known unless its engine hash is.
func (p *storing) storeOrphan(i int) (int, cursor) {
	x, e := p.x, p.e
	engine := normal(e.Engine[i])
	if q := x.resolver.meaningOf(p.s, engine); !q.isNone() {
		return i + 1, p.storeMeant(engine, q)
	}
	if p.isUndecided(e.parentOf(i)) {
		p.res.Undecided++
	}
	p.storeRaw(engine, chainIdentity{})
	p.res.Orphaned++
	switch {
	case i > 0:
		p.waitForParent(engine, normal(e.Engine[i-1]), i)
	case e.HasParent:
		p.waitForParent(engine, normal(e.Parent), i)
	}
	return i + 1, cursor{}
}
