package ingest

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Publishers keep blocks in chunks that they use whole or not at all. On the device a chunk is a block of the
// engine, which may be larger than the registered one: 528 tokens in a hybrid model. Below it LMCache has 256
// tokens in a chunk, vLLM's offloading a multiple of the engine's block. A chunk of k registered blocks is
// indexed as k blocks of an owner with chunks of k, and answers leave out what such an owner holds of a
// chunk in part (tiers.Owner.Chunk).
//
// An engine that offloads names a chunk by the hash of the last of its blocks on the device:
//
//	device   |-- 1 --|-- 2 --|-- 3 --|-- 4 --|-- 5 --| ...
//	chunk    |-------------- 4 --------------|
//
// The blocks before that one follow from its chain. How many they are, the block size of the event
// says, else the places of the hashes that came without a size (chunkGuess).
//
// An engine that describes what it offloads names all blocks of a chunk, when it stores it and when it removes it
// (normalize.Owner.Listed).

// maxChunkSizes is how many sizes of chunks a source may have on a medium of a deployment: each has an owner for
// each rank and group. LMCache has one, and shorter ones of all sizes where prompts end: 256 tokens in blocks
// of 16 make 15.
const maxChunkSizes = 32

// mayHaveChunks reports whether the source may have chunks of a size, in blocks, on a medium.
func (ns *namespace) mayHaveChunks(medium string, size int) bool {
	sizes := ns.chunks[medium]
	return size <= 1 || len(sizes) < maxChunkSizes || slices.Contains(sizes, size)
}

// noteChunks notes that a holder may have chunks.
func (ns *namespace) noteChunks(key normalize.Owner) {
	sizes := ns.chunks[key.Medium]
	at, known := slices.BinarySearch(sizes, key.Chunk)
	if key.Chunk == 0 || known {
		return
	}
	if ns.chunks == nil {
		ns.chunks = make(map[string][]int)
	}
	ns.chunks[key.Medium] = slices.Insert(sizes, at, key.Chunk)
}

// putHashes stores blocks that come by their hashes alone. A hash may stand for a chunk.
func (a *applier) putHashes(ns *namespace, c *normalize.Change, at names.Placing) (sum index.StoreResult) {
	specs := a.holdings.specs[c.Owner.Rank]
	if c.Runs && !namesAll(specs, c.Event.BlockSize) && !dropsInWindows(a.reg.Drafter, specs) {
		return a.putRuns(ns, c, at)
	}
	size, block := c.Chunk, ns.blockOf(specs, c.Event)
	if size == 0 { // only vLLM's OffloadingConnector leaves the size out
		if size = a.guessChunk(ns, c, max(block, 1), at.Fold); size > max(block, 1) {
			noteLoads(a.holdings, ns, c.Owner.Rank)
		}
	}
	if size <= 1 && ns.parts() == 0 || c.Parts > 1 {
		return a.put(ns, c, at)
	}
	part, event := *c, *c.Cut
	part.Cut = &event
	put := func(hashes []uint64, chunk int) {
		if event.Hashes, part.Owner.Chunk = hashes, chunk; len(hashes) > 0 {
			res := a.put(ns, &part, at)
			addResult(&sum, &res)
			a.leaveAlone(ns, &part, at.Fold)
		}
	}
	var all []uint64
	chunk, from := 0, 0 // of all[from:]
	exact := len(specs) > 1 && block > 0 && c.Chunk > 0 && c.Medium.Tier == tiers.Device
	for _, h := range c.Cut.Hashes {
		before := len(all)
		if exact {
			all = ns.blocksBehind(all, h, size, at.Fold)
		} else {
			all = ns.blocksOf(all, h, size, block, at.Fold)
		}
		own := len(all) - before
		if own < size && size > max(block, 1) && !exact { // of an engine with several groups, full attention has just evicted the others
			reportChunks(a, "a chunk of %d tokens on %s came by the hash of its last block, and the blocks before that are not known: it "+
				"counts as that one block until it is announced again behind them", size*a.reg.BlockSize, c.Medium.Name)
		}
		if own < size || !ns.mayHaveChunks(c.Owner.Medium, own) {
			all, own = append(all[:before], h), 1 // the last block matches only where all do
		}
		if own == 1 {
			own = 0
		}
		if own != chunk {
			put(all[from:before], chunk)
			chunk, from = own, before
		}
	}
	put(all[from:], chunk)
	return sum
}

// leaveAlone drops blocks that are held alone and now come as a chunk, where a second announcement is no copy.
// Otherwise the removal would leave one of the two.
func (a *applier) leaveAlone(ns *namespace, c *normalize.Change, fold uint64) {
	key := c.Owner
	if key.Chunk = 0; c.Owner.Chunk == 0 || a.holdings.copies(key) != index.CopySet {
		return
	}
	if h := ns.owners[key]; h != nil {
		for _, o := range h.owners {
			ns.Deployment.Index.Remove(o, a.holdings.names(c.Cut.Hashes, fold), nil, index.CopySet)
		}
	}
}

// blocksOf appends the hashes of the blocks that a hash stands for, the hash itself last: the parts of a block
// that engines have announced in parts, else the blocks of a chunk of a size, as far as all of them are known. block is how many
// registered blocks the engine's own block is, 0 if that is not known: another group may have larger blocks under the same hash.
func (ns *namespace) blocksOf(dst []uint64, h uint64, size, block int, fold uint64) []uint64 {
	from := len(dst)
	for n := 1; n < cmp.Or(block, ns.parts()); n++ {
		part := normalize.PartName(h, n)
		if !ns.Deployment.Index.ResolveHash(ns.Source, part^fold).Own {
			break
		}
		dst = append(dst, part)
	}
	slices.Reverse(dst[from:])
	if len(dst)-from+1 < size {
		return ns.blocksBehind(dst[:from], h, size, fold)
	}
	return append(dst, h)
}

// blocksBehind appends the hashes of the size blocks that end with block h, in the order of the chain. If not all of them are known it
// appends h alone.
func (ns *namespace) blocksBehind(dst []uint64, h uint64, size int, fold uint64) []uint64 {
	from := len(dst)
	if size > 1 {
		all, _ := ns.Deployment.Index.Inspect().NamesBefore(dst[:from:from], ns.Source, h^fold, size-1)
		if len(all)-from == size-1 {
			for i := range all[from:] {
				all[from+i] ^= fold
			}
			dst = all
		}
	}
	return append(dst, h)
}

// blockOf returns how many registered blocks a block of the attention group that an event names is, 0 if that is not known. Of a rank
// with several groups one hash names a block of each, and those may differ in size.
func (ns *namespace) blockOf(specs []normalize.Spec, e *events.Event) int {
	if e.Group < 0 && e.GroupKind == "" {
		return 0
	}
	return ns.blockOfGroup(specs, max(e.Group, 0))
}

// blockOfGroup is blockOf for a group.
func (ns *namespace) blockOfGroup(specs []normalize.Spec, group int) int {
	for i := range specs {
		if specs[i].Group == group {
			return specs[i].Block / ns.Deployment.Key.BlockSize
		}
	}
	return 0
}

// withdrawOf removes a block of a group whose blocks are of a size from the holder of a key, or what the holder has of it singly. It
// reports whether there was one. Single blocks come first: an engine also announces the end of a prompt inside a block, and that
// hash may be the one of a part of a whole block, too.
func (s *holdings) withdrawOf(ns *namespace, key normalize.Owner, h uint64, size int, remaining []int, fold uint64) (had bool) {
	for _, key.Chunk = range []int{0, size} {
		blocks := []uint64{h}
		if key.Chunk == 1 {
			continue
		} else if key.Chunk > 1 {
			blocks = ns.blocksBehind(nil, h, size, fold)
		}
		if holder := ns.owners[key]; holder != nil && len(blocks) == max(key.Chunk, 1) {
			for _, o := range holder.owners {
				had = s.withdrawChunk(ns, o, s.names(blocks, fold), remaining, s.copies(key)) || had
			}
		}
		if had {
			return true
		}
	}
	return false
}

// withdrawChunks is withdraw for a deployment where a hash may stand for several blocks. Chunks of different
// sizes may have blocks in common, where a prompt ends inside a chunk. So a hash that was announced in parts is
// that of a chunk of as many, if there are such chunks; any other is held alone, or ends a chunk of the smallest size
// that has it.
func (s *holdings) withdrawChunks(ns *namespace, e *events.Event, key normalize.Owner) (found int) {
	var blocks []uint64
	var remaining []int
	specs := s.specs[key.Rank]
	block := ns.blockOf(specs, e)
	had, sizes, exactly := make([]bool, len(e.Hashes)), append([]int{0}, ns.chunks[key.Medium]...), []int{0, 0}
	ns.Names.Removed(e, func(fold uint64) bool {
		for i, h := range e.Hashes {
			if had[i] {
				continue
			}
			if e.Remaining != nil {
				remaining = e.Remaining[i : i+1]
			}
			if len(specs) > 1 && block > 0 && key.Medium == tiers.NameDevice {
				if had[i] = s.withdrawOf(ns, key, h, block, remaining, fold); had[i] {
					found++
				}
				continue
			}
			blocks = ns.blocksOf(blocks[:0], h, 0, block, fold)
			if had[i] = s.withdrawListed(ns, key, blocks, fold); had[i] {
				found++
				continue
			}
			parts, may := len(blocks), sizes
			if key.Chunk = parts; parts > 1 && block == 0 && ns.owners[key] != nil {
				exactly[0] = parts
				may = exactly // alone in a snapshot of a release that did not know chunks
			}
			for _, size := range may {
				key.Chunk = size
				holder := ns.owners[key]
				if holder == nil || size > 0 && size < parts {
					continue
				}
				if size > parts {
					blocks = ns.blocksOf(blocks[:0], h, size, block, fold)
				}
				of := blocks
				if size == 0 && !holder.inParts {
					of = blocks[len(blocks)-1:] // another group may have the block in parts, under the same hash
				}
				for _, o := range holder.owners {
					had[i] = s.withdrawChunk(ns, o, s.names(of, fold), remaining, s.copies(key)) || had[i]
				}
				if had[i] {
					found++
					break
				}
			}
		}
		return found < len(e.Hashes)
	})
	return found
}

// withdrawListed removes one of the engine's blocks from a chunk that lists it, and reports whether there was such a chunk. parts are
// the registered blocks that the engine's block consists of.
func (s *holdings) withdrawListed(ns *namespace, key normalize.Owner, parts []uint64, fold uint64) bool {
	key.Listed = true
	for _, key.Chunk = range ns.chunks[key.Medium] {
		if holder := ns.owners[key]; holder != nil {
			for _, o := range holder.owners {
				// Chunks that begin alike have each a copy of the blocks in common.
				if s.withdrawChunk(ns, o, s.names(parts, fold), nil, index.CopyCount) {
					return true
				}
			}
		}
	}
	return false
}

// Chunks of one size may begin alike, where prompts part inside a chunk. So the blocks of an owner with chunks have as many
// copies as its chunks have them, whatever a second announcement of a chunk means (holdings.copies): the last block, which no
// other chunk has, says how often the chunk is held.
//
//	chunks  |-- 1 --|-- 2 --|-- 3 --|-- 4 --|           copies of 1 and 2: two each
//	                        \-- 5 --|-- 6 --|

// withdrawChunk removes blocks from an owner that has the last one, and reports whether it has. remaining is how many copies
// stay, nil if that is not known.
func (s *holdings) withdrawChunk(ns *namespace, o index.Owner, blocks []uint64, remaining []int, policy index.CopyPolicy) bool {
	x, last := ns.Deployment.Index, len(blocks)-1
	if last == 0 {
		res := x.Remove(o, blocks, remaining, policy)
		return res.Removed+res.Copies > 0
	}
	leaving := 1
	switch {
	case remaining != nil && remaining[0] >= 0:
		had := x.Inspect().Copies(nil, o, blocks[last:])[0]
		if leaving = had - remaining[0]; leaving <= 0 {
			return had > 0
		}
	case policy == index.CopySet:
		leaving = math.MaxInt
	}
	return takeCopies(x, o, blocks, leaving) > 0
}

// takeCopies removes copies of a chunk from an owner, at most as many as most says. It returns how many it has removed.
func takeCopies(x *index.Index, o index.Owner, chunk []uint64, most int) (n int) {
	last := len(chunk) - 1
	for more := true; more && n < most; n++ {
		res := x.Remove(o, chunk[last:], nil, index.CopyCount)
		if res.Unknown > 0 {
			break
		}
		x.Remove(o, chunk[:last], nil, index.CopyCount)
		more = res.Copies > 0
	}
	return n
}

// keepSingle leaves one copy of each chunk of a stored event. The event has added one to those that the owner held before, and to
// those that are in it twice.
func (s *holdings) keepSingle(ns *namespace, o index.Owner, c *normalize.Change, fold uint64) {
	size, all := c.Owner.Chunk, s.names(c.Cut.Hashes, fold)
	chunks := make(map[uint64][]uint64) // by the last block
	for i := size; i <= len(all); i += size {
		chunks[all[i-1]] = all[i-size : i]
	}
	last := slices.Collect(maps.Keys(chunks))
	for i, n := range ns.Deployment.Index.Inspect().Copies(nil, o, last) {
		takeCopies(ns.Deployment.Index, o, chunks[last[i]], n-1)
	}
}

// chunkGuess learns how many of the engine's blocks make a chunk on a medium, from the distances between chunks whose
// events do not say it. A connector uses the same number for all attention groups.
type chunkGuess struct {
	size int // greatest common divisor of the distances, in blocks; 0 before the first
	seen int // distances
	said int // blocks of a chunk by an event that lists them, 0 without one
}

// enoughDistances is how many distances decide. Where each hash stands for one block, one of the first
// distances is 1, or no larger number divides them all.
const enoughDistances = 16

// decided reports whether size is that of the chunks.
func (g *chunkGuess) decided() bool { return g.size == 1 || g.seen >= enoughDistances }

// addDistance narrows the guess by a distance between two chunks, in registered blocks. The engine's own block is block of those. If the
// distance ends inside one, it says nothing about chunks, because there a prompt ended.
func (g *chunkGuess) addDistance(registered, block int) {
	if registered%block != 0 {
		return
	}
	g.seen++
	g.size = tiers.Divisor(g.size, registered/block)
}

// guessesChunk reports whether how many blocks the hashes of a change stand for is a guess that may change.
func (a *applier) guessesChunk(c *normalize.Change) bool {
	if c.Local != nil || c.Chunk != 0 {
		return false
	}
	g := a.chunks[c.Medium.Name]
	return g == nil || g.size != 1
}

// guessOn returns the guess of a medium.
func guessOn(a *applier, medium string) *chunkGuess {
	g := a.chunks[medium]
	if g == nil {
		if a.chunks == nil {
			a.chunks = make(map[string]*chunkGuess)
		}
		g = new(chunkGuess)
		a.chunks[medium] = g
	}
	return g
}

// guessChunk returns how many registered blocks each hash of an event without a size stands for. Until it can tell, that is one of the
// engine's own blocks, which is block registered ones. The first chunk of a prompt begins where the prompt does, another one ends behind
// the hash before it in the event, or at a multiple of the size from the beginning.
func (a *applier) guessChunk(ns *namespace, c *normalize.Change, block int, fold uint64) int {
	g := guessOn(a, c.Medium.Name)
	switch {
	case g.said > 0:
		return g.said * block
	case g.size == 1:
		return block
	}
	was := *g
	var before []uint64
	for i, h := range c.Cut.Hashes {
		if i > 0 && was.decided() {
			break // one an event is enough to find a wrong guess
		}
		var root bool
		before, root = ns.Deployment.Index.Inspect().NamesBefore(before[:0], ns.Source, h^fold, normalize.MaxParts)
		switch at := slices.Index(before, c.Cut.Hashes[max(i-1, 0)]^fold); {
		case i > 0 && at >= 0:
			g.addDistance(len(before)-at, block)
		case root && len(before) < normalize.MaxParts:
			g.addDistance(len(before)+1, block)
		}
	}
	if was.decided() && g.size != was.size {
		a.forgetChunks(ns, c.Medium.Name, was.size)
	}
	switch {
	case g.size == 1:
		a.doctor.Findings.Withdraw(doctor.FindingChunks)
	case !g.decided() && g.seen > 1:
		reportChunks(a, "blocks on %s are announced by hash alone and without a size, and lie %d of the engine's blocks apart: each seems "+
			"to stand for a chunk of that many. Once %d distances agree, each counts as such a chunk, and until then as one block; "+
			remedyChunks, c.Medium.Name, g.size, enoughDistances)
	case g.decided() && (!was.decided() || g.size != was.size):
		a.doctor.Findings.Withdraw(doctor.FindingChunks)
		reportChunks(a, "blocks on %s are announced by hash alone and without a size, and are taken for chunks of %d of the engine's "+
			"blocks, which only the distances between them say; "+remedyChunks, c.Medium.Name, g.size)
	}
	if !g.decided() || g.size == 0 {
		return block
	}
	return g.size * block
}

const remedyChunks = "let the connector describe its blocks (self_describing_kv_events of vLLM's OffloadingConnector)"

// reportChunks reports that which blocks a chunk has is a guess, or not known.
func reportChunks(a *applier, format string, args ...any) {
	a.doctor.Findings.Report(doctor.FindingChunks, format, args...)
}

// forgetChunks drops all chunks of size blocks of the engine on a medium, because that size was a wrong guess.
func (a *applier) forgetChunks(ns *namespace, medium string, size int) {
	for key, h := range ns.owners {
		chunk := size * max(ns.blockOfGroup(a.holdings.specs[key.Rank], key.Group), 1)
		if key.Medium == medium && key.Chunk == chunk && !key.Listed {
			ns.clear(h)
		}
	}
}
