package ingest

import (
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// storeBlocks indexes stored blocks. It completes the context of the change, and returns why none of them is
// in the index, "" if some are.
func (a *applier) storeBlocks(c *normalize.Change) (res index.StoreResult, refused events.Reason) {
	device := c.Medium.Tier == tiers.Device
	ns := a.holdings.namespaceIn(c.Context.Deployment)
	if ns == nil || a.holdings.noRoomFor(ns, c.Owner) {
		a.countSkipped(events.OwnerLimit, c.Event.Count())
		return res, events.OwnerLimit
	}
	a.nameAdapter(ns, c.Event)
	if c.Refused != "" {
		a.refuse(c.Refused, c.Event.Count())
		if device {
			add(&a.shared.counts.stored.invalid, c.Event.Count())
		}
		return res, c.Refused
	}
	if a.shared.limits.Load().forbidsTokens(c.Event.Tokens) {
		a.refuse(events.BadToken, 1)
		return res, events.BadToken
	}
	if a.isOutdated(ns, c) {
		a.countSkipped(events.OldAdapter, c.Event.Count())
		return res, events.OldAdapter
	}
	if c.Parts > 1 {
		c.Cut.LoraName = c.Event.LoraName
		a.shared.catalog.LearnParts(c.Context.Deployment, c.Parts)
	}
	at, err := ns.Names.Resolve(c, ns.EngineBlock)
	if err != nil {
		a.countSkipped(events.ContextLimit, len(c.Event.Hashes))
		return res, events.ContextLimit
	}
	at.Undecided = at.Undecided && !a.holdings.filling // the engine has merged what it knows of a block
	if c.Canonical && !ns.behindKnown(c.Cut, at.Fold) {
		c.Local = nil // the hashes are the keys, wherever in a prompt the blocks lie
	}
	if !ns.mayHaveChunks(c.Owner.Medium, c.Owner.Chunk) {
		a.countSkipped(events.BlockSizeMismatch, c.Event.Count())
		return res, events.BlockSizeMismatch
	}
	if repeatsHit(a, ns, c, at.Fold) {
		return res, ""
	}
	a.repeated = false
	if res = a.putAll(ns, c, at); noteRepeat(a, c, a.repeated) {
		res = a.putAll(ns, c, at)
	}
	c.Context.Variant = a.noteStored(ns, c, &at, &res)
	if device {
		a.confirmExpected(ns, c, &res)
	}
	if device && !a.holdings.filling {
		a.shared.counts.countStored(c.Event, &res)
	}
	return res, ""
}

// putAll stores the blocks of a change, however it names them.
func (a *applier) putAll(ns *namespace, c *normalize.Change, at names.Placing) index.StoreResult {
	switch {
	case c.Local != nil:
		return a.put(ns, c, at)
	case a.reg.IsPool():
		return a.storeInPool(ns, c, at)
	}
	return a.putHashes(ns, c, at)
}

// behindKnown reports whether the blocks of a stored event begin prompts, or are behind a block that
// the source knows. Then their tokens give them the same keys as their canonical hashes, and dumps
// contain their local hashes.
func (ns *namespace) behindKnown(e *events.Event, fold uint64) bool {
	if !e.HasParent {
		return e.BaseBlock <= 0
	}
	return ns.Deployment.Index.ResolveHash(ns.Source, e.Parent^fold).Own
}

// put stores the blocks of a change.
func (a *applier) put(ns *namespace, c *normalize.Change, at names.Placing) index.StoreResult {
	e, hashes := c.Cut, c.Cut.Hashes
	if c.Local != nil {
		ns.UseLookAheads(catalog.LookAhead(e.Ahead))
		if c.Medium.Tier == tiers.Device && !c.Owner.Owned && (ns.EngineBlock == 0 || max(c.Parts, 1)%ns.EngineBlock != 0) {
			ns.NoteEngineBlock(max(c.Parts, 1))
		}
	} else {
		ns.UseAnyLookAhead()
	}
	id := at.Identity
	for !ns.Names.Table.Pin(id) { // it had no block, and has left
		id, _ = ns.Names.Table.Enter(id.Variant)
		if id == nil {
			return index.StoreResult{Refused: len(hashes)}
		}
	}
	defer ns.Names.Table.Unpin()
	number := id.Number
	if c.Local == nil && at.Fold != id.Constant {
		number = 0 // the hashes say it, if anything does
	}
	if c.Owner.Listed {
		g, block := guessOn(a, c.Medium.Name), max(ns.blockOf(a.holdings.specs[c.Owner.Rank], c.Event), 1)
		g.said = max(g.said, c.Owner.Chunk/block) // what it cannot describe, it keeps in chunks of that size, too
	}
	owner, policy := a.holdings.holder(ns, c.Owner, c.Medium).owners[0], a.holdings.copies(c.Owner)
	engine, single := a.holdings.names(hashes, at.Fold), policy == index.CopySet && c.Owner.Chunk > 1
	if c.Owner.Chunk > 1 && (single || c.Local == nil) {
		engine = slices.Clone(engine) // a store may permute its hashes
	}
	if single {
		policy = index.CopyCount // of the blocks: chunks may have some in common
	}
	a.stored = index.Store{
		Owner:        owner,
		Identity:     number,
		Says:         says(e),
		Parent:       e.Parent ^ at.Fold,
		HasParent:    e.HasParent,
		Rootless:     !e.HasParent && (e.BaseBlock > 0 || c.Local == nil && a.reg.IsPool()), // a master says 0 of any
		Engine:       engine,
		Local:        c.Local,
		ByName:       at.ByName,
		Begins:       at.Begins,
		Undecided:    at.Undecided,
		AlsoWaiting:  at.Fold,
		Parts:        c.Parts,
		ClientHashes: a.clientHashesOf(ns, c),
		Copies:       policy,
	}
	if c.Parts > 1 {
		a.stored.Awaited = func(w index.Awaited) { a.effects.Awaited = append(a.effects.Awaited, awaited{ns.Deployment, w}) }
	}
	res := ns.Deployment.Index.Store(&a.stored)
	a.repeated = a.repeated || res.Copies > 0 && holdsTwice(a, ns, owner, c, at.Fold)
	if single && res.Copies > 0 {
		a.holdings.keepSingle(ns, owner, c, at.Fold)
	}
	return res
}

// holdsTwice reports whether a stored event repeats blocks that the owner already had. Chunks that begin alike share their first blocks,
// so for chunks it looks at the last block alone.
func holdsTwice(a *applier, ns *namespace, o index.Owner, c *normalize.Change, fold uint64) bool {
	size := c.Owner.Chunk
	if size <= 1 {
		return true
	}
	if !judgesResets(a.holdings, c.Owner) {
		return false
	}
	var last []uint64
	for i := size - 1; i < len(c.Cut.Hashes); i += size {
		last = append(last, c.Cut.Hashes[i]^fold)
	}
	return slices.ContainsFunc(ns.Deployment.Index.Inspect().Copies(nil, o, last), func(n int) bool { return n > 1 })
}

// says returns what a stored event says of the adapter and salt of its blocks.
func says(e *events.Event) (s index.Says) {
	if e.LoraName != nil {
		s |= index.SaysAdapter
	}
	if e.Salt != nil {
		s |= index.SaysSalt
	}
	return s
}

// storeInPool stores blocks without tokens of a pool. The hashes are those of engines, and some
// may be registered with an adapter or a salt: see names.Table.Fold.
func (a *applier) storeInPool(ns *namespace, c *normalize.Change, at names.Placing) (sum index.StoreResult) {
	e := *c.Cut
	for all := e.Hashes; len(all) > 0; all = all[len(e.Hashes):] {
		e.Hashes, at.Fold = all, ns.Names.PoolFold(c.Cut, all[0])
		for i := range all[1:] {
			if ns.Names.PoolFold(c.Cut, all[i+1]) != at.Fold {
				e.Hashes = all[:i+1]
				break
			}
		}
		part := *c
		part.Cut = &e
		res := a.putHashes(ns, &part, at)
		addResult(&sum, &res)
	}
	return sum
}

// addResult adds what the index did with further blocks that came by their hashes alone.
func addResult(sum, res *index.StoreResult) {
	if sum.Placed = sum.Placed || res.Placed; res.Placed {
		sum.Identity = res.Identity
	}
	sum.Added += res.Added
	sum.Copies += res.Copies
	sum.HashOnly += res.HashOnly
	sum.Resolved += res.Resolved
	sum.Lost += res.Lost
	sum.Refused += res.Refused
}

// noteStored notes what the index did with stored blocks, and returns whose they are.
func (a *applier) noteStored(ns *namespace, c *normalize.Change, at *names.Placing, res *index.StoreResult) scope.Variant {
	a.countSkipped(events.OrphanLimit, res.Shed)
	a.countSkipped(events.OverBudget, res.Refused)
	a.noteLost(ns, res.Lost)
	if res.HashOnly > 0 && c.Local == nil || res.Undecided > 0 {
		ns.Deployment.AwaitTokens()
	}
	a.countSkipped(events.UndecidedIdentity, res.Undecided)
	id := at.Identity
	if res.Placed {
		if own := ns.Names.Table.Of(res.Identity); own != nil {
			id = own
		}
		if at.Assumed && !res.Begun && id == at.Identity && res.ByName == 0 {
			a.noteAssumed(c.Medium, len(c.Cut.Hashes))
		}
	}
	if ns.Names.Stored(id) {
		a.announce(ns, id.Lora)
	}
	a.noteContests(ns)
	ns.Deployment.LearnClientHashes(a.clientHashes, a.stored.Local, id, !c.Cut.HasParent && c.Cut.BaseBlock <= 0)
	return id.Variant
}

// announce notes that the source has stored blocks of an adapter, under which its instance then has a
// row.
func (a *applier) announce(ns *namespace, lora string) {
	if lora == "" || lora == a.reg.Lora || a.reg.IsPool() || ns.Deployment.Key != a.holdings.deploymentKey() {
		return
	}
	a.shared.catalog.Announce(a.member, ns.Deployment, lora)
}

// clientHashesOf returns what the index asks for the client hashes of a change's blocks, nil if they
// are their local hashes whatever the identity.
func (a *applier) clientHashesOf(ns *namespace, c *normalize.Change) func(index.Identity) []uint64 {
	a.clientHashes = nil
	if c.Local == nil || len(c.Cut.Tokens) == 0 || !a.shared.catalog.KeepsClientHashes() || ns.Names.Table.Len() == 0 &&
		!ns.Deployment.TranslatesClientHashes(scope.Variant{}) {
		return nil
	}
	return func(n index.Identity) []uint64 {
		id := ns.Names.Table.Of(n)
		if id == nil || !ns.Deployment.TranslatesClientHashes(id.Variant) {
			return nil
		}
		if cap(a.clientBuffer) > keptHashes {
			a.clientBuffer = nil
		}
		seed := hash.Scheme{Seed: catalog.ClientSeed(id.Variant)}
		a.clientBuffer = normalize.Locals(a.clientBuffer[:0], seed, c.Cut, ns.Deployment.Key.BlockSize)
		a.clientHashes = a.clientBuffer
		return a.clientHashes
	}
}

// removeBlocks takes the blocks of a removed event from every deployment that has them, and returns how
// many of them none had. Blocks of an old version of an adapter have left before.
func (a *applier) removeBlocks(e *events.Event, key normalize.Owner) int {
	if a.versions.retired != nil {
		if e = a.versions.withoutRetired(key.Rank, e); len(e.Hashes) == 0 {
			return 0
		}
	}
	found := a.holdings.withdraw(e, key)
	noteFound(a.holdings, key, found)
	unknown := len(e.Hashes) - found
	a.countSkipped(events.UnknownHash, unknown)
	for _, ns := range a.holdings.namespaces {
		if ns.Deployment.Index.ContestedHashes() > 0 {
			ns.Names.Removed(e, func(fold uint64) bool {
				ns.Deployment.Index.DecideContests(a.holdings.names(e.Hashes, fold))
				return true
			})
		}
	}
	return unknown
}

// noteLost counts blocks whose hash was the name of one that index.ghost_bytes had no room for.
func (a *applier) noteLost(ns *namespace, blocks int) {
	if blocks == 0 {
		return
	}
	a.countSkipped(events.LostName, blocks)
	a.doctor.Findings.Report(doctor.FindingLostNames,
		"blocks came by hashes of blocks that had left and that index.ghost_bytes had no room for: answers that may be too short say "+
			"truncated until those blocks leave; set index.ghost_bytes to %d MiB or more",
		(ns.Deployment.Index.Inspect().GhostsWanted()+1<<20-1)>>20)
}

// noteAssumed counts blocks below the device that nothing but the registration says an adapter and
// salt of, while the source has others.
func (a *applier) noteAssumed(medium tiers.Medium, blocks int) {
	a.countSkipped(events.AssumedIdentity, blocks)
	if a.assumed += blocks; a.assumed >= manyAssumed {
		a.doctor.Findings.Report(doctor.FindingAssumed,
			"%d blocks on %s came without adapter and salt, and neither their hashes, nor their parents, nor their tokens say which of "+
				"those of the source they have: they count for the registered ones, so that some hits there may be false; let the "+
				"publisher of that medium name adapters and salts, or raise index.ghost_bytes if blocks leave the device before it "+
				"announces them",
			a.assumed, medium.Name)
	}
}

// manyAssumed is how many assumed blocks are a finding.
const manyAssumed = 64
