package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// placement finds the contexts of the blocks of one source, and lets those wait whose
// context not known yet:
//
//	change --variantOf--> context --place--> by tokens, by hash, or waiting --put--> index
//
// It belongs to the turn of the source.
type placement struct {
	holdings
	doctor *doctor.Doctor

	asked    inquiry            // what contexts know of the hashes of the event at hand
	stored   index.Store        // what put stores last
	adapters map[uint64]*string // names of adapters by lora_id, see adapter.go
	notice   notice             // what others have to know of the step at hand

	// Buffers.
	waited, joined     []uint64 // of noteResolved and put
	clientHashes, keys []uint64 // of clientHashesOf and place
}

// behindKnown reports whether the blocks of a stored change begin prompts, or are behind a
// block that the source knows. Then their tokens give them the same keys as their hashes,
// and dumps contain their local hashes.
func (s *placement) behindKnown(c *normalize.Change) bool {
	if !c.Cut.HasParent {
		return c.Cut.BaseBlock <= 0
	}
	ns := s.byContext[c.Context]
	return ns != nil && s.knows(ns, c.Cut, parentHash)
}

// place puts the blocks of a stored change into the contexts they belong to.
func (s *placement) place(c *normalize.Change) (sum index.StoreResult) {
	at, e, local := c.Context, c.Cut, c.Local
	if e.Envelope && !s.reg.pool() || local != nil && (s.reg.pool() || c.Medium.Tier == tiers.Device) {
		return s.put(s.namespaceIn(at), c, e.Hashes, local, nil)
	}
	// Without tokens each engine hash belongs to the context that knows it, and so it
	// does below the device: connectors repeat tokens without adapter, salt, images and
	// look-ahead. Stretches of one context go together.
	fits := func(k scope.Variant) bool {
		return scope.Agrees(e.LoraName, k.Lora) && scope.Agrees(e.Salt, k.Salt) && s.shares(k.Lora)
	}
	likely := s.byContext[at]
	find := func(block int) (place, bool) {
		if local != nil {
			return s.meantIn(at, e, block)
		}
		return s.findPlace(e, at.Deployment, block, likely, fits)
	}
	for i := 0; i < len(e.Hashes); {
		spot, known := find(i)
		if known {
			likely = spot.ns
		}
		from := i
		i++
		var res index.StoreResult
		switch {
		case !known && local != nil:
			for ; i < len(e.Hashes); i++ {
				if _, known := find(i); known {
					break
				}
			}
			part := stretch(c, from, i)
			res = s.put(s.namespaceIn(at), &part, part.Cut.Hashes, part.Local, nil)
		case !known:
			res = s.storeWaiting(s.namespaceIn(at), c, e.Hashes[from])
		case spot.named:
			if cap(s.keys) > localsKept {
				s.keys = nil
			}
			s.keys = append(s.keys[:0], spot.key)
			used := spot.lookAheads
			for ; i < len(e.Hashes) && spot.ns.parts() == 0; i++ {
				next, known := find(i)
				if !known || !next.named || next.ns != spot.ns || next.recalled != spot.recalled {
					break
				}
				s.keys, used = append(s.keys, next.key), used|next.lookAheads
			}
			if spot.recalled && s.tokensGive(s.keys, spot.ns.context, c, from) {
				part := stretch(c, from, i)
				res = s.put(spot.ns, &part, part.Cut.Hashes, part.Local, s.keys)
				break
			}
			policy := s.copiesOf(c)
			spot.ns.useLookAheads(s.contexts, used)
			res = s.putNamed(spot.ns, e.Hashes[from:i], s.keys, c.Owner, c.Medium, policy)
			s.putParts(spot.ns, e.Hashes[from], c.Owner, c.Medium, policy)
			if res.HashOnly > 0 { // contested since the inquiry
				s.contexts.addWaiter(s.owner, spot.ns.context)
				s.moveResolved(spot.ns.context, e.Hashes[from:i])
			}
		default:
			for ; i < len(e.Hashes); i++ {
				next, known := find(i)
				if !known || next.named || next.ns != spot.ns {
					break
				}
			}
			res = s.put(spot.ns, c, e.Hashes[from:i], nil, nil)
			switch { // the last holder may have left a block since the inquiry
			case res.HashOnly == 0 || s.reg.pool():
			case local != nil:
				again := s.placeAgain(spot.ns, c, from, i)
				res.Shed += again.Shed
				res.Refused += again.Refused
			default:
				s.contexts.addWaiter(s.owner, spot.ns.context)
				s.moveResolved(spot.ns.context, e.Hashes[from:i])
			}
		}
		sum.Added += res.Added
		sum.Copies += res.Copies
		sum.Orphaned += res.Orphaned
		sum.Shed += res.Shed
		sum.Refused += res.Refused
	}
	return sum
}

// placeAgain places blocks from to end of a change with tokens if they wait by hashes that
// other sources have forgotten since the inquiry. Their new copies wait in ns. It returns what
// was shed and refused.
func (s *placement) placeAgain(ns *namespace, c *normalize.Change, from, end int) (again index.StoreResult) {
	x, o, hashes := ns.context.index, s.holder(ns, c.Owner, c.Medium).current, c.Cut.Hashes
	for from < end {
		to := from
		for to < end && x.Holds(o, hashes[to]) {
			to++
		}
		if to > from {
			x.Remove(o, hashes[from:to], nil, s.copies(c.Owner))
			s.asked.event = nil
			part := stretch(c, from, to)
			res := s.place(&part)
			again.Shed += res.Shed
			again.Refused += res.Refused
		}
		from = to + 1
	}
	return again
}

// stretch returns the change of blocks from to end of a stored change with tokens.
func stretch(c *normalize.Change, from, end int) normalize.Change {
	part, e, size := *c, c.Cut, c.Context.Deployment.BlockSize
	if from == 0 && end == len(e.Hashes) {
		return part
	}
	cut := *e
	cut.Hashes, part.Local = e.Hashes[from:end], c.Local[from:end]
	cut.Tokens = e.Tokens[from*size : end*size+e.Ahead]
	if e.Items != nil {
		cut.Items = e.Items[from:end]
	}
	if from > 0 {
		cut.Parent, cut.HasParent, cut.BaseBlock = e.Hashes[from-1], true, -1
	}
	part.Cut = &cut
	return part
}

// storeWaiting stores a block under a hash that no engine has announced with tokens.
func (s *placement) storeWaiting(ns *namespace, c *normalize.Change, engine uint64) index.StoreResult {
	x := ns.context
	s.contexts.addWaiter(s.owner, x)
	res := s.put(ns, c, []uint64{engine}, nil, nil)
	if _, known := s.contexts.meaningOf(x.deployment.key, engine, s.homeContext().Variant, func(scope.Variant) bool { return true }, searched(c.Cut)); known {
		s.moveResolved(x, []uint64{engine})
	}
	return res
}

// tokensGive reports whether the tokens of a change's blocks from one on give the blocks these keys.
// Then the tokens say all that the hashes do, and place the blocks in a chain.
func (s *placement) tokensGive(keys []uint64, x *indexContext, c *normalize.Change, from int) bool {
	local, parent := c.Local[from:], index.Known{}
	if from > 0 || c.Cut.HasParent {
		if parent, _ = s.known(x, c.Cut, from-1); !parent.Named {
			return false
		}
	} else {
		if c.Cut.BaseBlock > 0 || local[0] != keys[0] {
			return false
		}
		parent.Key, keys, local = keys[0], keys[1:], local[1:]
	}
	for i, key := range keys {
		if parent.Key = x.scheme.Next(parent.Key, local[i]); parent.Key != key {
			return false
		}
	}
	return true
}

// put stores blocks of a change in one context. With tokens, their keys may be known.
func (s *placement) put(ns *namespace, c *normalize.Change, hashes, local, keys []uint64) index.StoreResult {
	e := c.Cut
	if local == nil {
		ns.useAnyLookAhead(s.contexts)
	} else {
		ns.useLookAheads(s.contexts, oneLookAhead(e.Ahead))
	}
	if local == nil && ns.parts() > 0 {
		hashes, _ = s.withParts(ns, hashes, nil)
	}
	clientHashes := s.clientHashesOf(ns.context, e, local)
	s.stored = index.Store{
		Owner:        s.holder(ns, c.Owner, c.Medium).current,
		Parent:       e.Parent,
		HasParent:    e.HasParent,
		Rootless:     !e.HasParent && (e.BaseBlock > 0 || local == nil && s.reg.pool()), // a master says 0 of any
		Engine:       hashes,
		Local:        local,
		ClientHashes: clientHashes,
		Copies:       s.copiesOf(c),
		Joined:       &s.joined,
	}
	if keys != nil { // they tell the place even if the parent has left since
		s.stored.Key, s.stored.HasKey = keys[0], true
	}
	res := ns.context.index.Store(&s.stored)
	ns.context.learn(clientHashes, local, !e.HasParent && e.BaseBlock <= 0)
	if local != nil {
		s.noteResolved(ns.context, hashes)
	}
	s.noteContests(ns.context)
	if len(s.joined) > 0 {
		s.noteResolved(ns.context, s.joined)
		s.joined = s.joined[:0]
	}
	s.contexts.recallForgotten(ns.context)
	if len(s.namespaces) > 1 && local != nil {
		s.adopt(ns, hashes, e.Envelope)
	}
	return res
}

// variantOf returns the adapter and salt of a stored event's blocks. An event that
// names a salt says all. Else what the event does not name is its parent's, or that of
// the context its first hash is known in, or the registration's. Engines hash adapter
// and salt; standardized hashes contain neither, so those events inherit a salt alone.
// It reports false if the context is a guess.
func (s *placement) variantOf(e *events.Event, dk scope.Deployment, medium tiers.Medium) (ck scope.Variant, sure bool) {
	ck = scope.Variant{Lora: s.reg.Lora, Salt: s.reg.Salt}
	if e.LoraName != nil {
		ck.Lora = *e.LoraName
	}
	if e.Salt != nil {
		ck.Salt = *e.Salt
		return ck, true
	}
	if !s.alone(scope.Context{Deployment: dk, Variant: ck}) {
		if ns := s.byContext[scope.Context{Deployment: dk, Variant: ck}]; e.HasParent && ns != nil && s.knows(ns, e, parentHash) {
			return ck, true
		}
		if e.HasParent {
			if ns := s.namespaceKnowing(e, dk, parentHash, nil); ns != nil && (!e.Envelope || ns.context.key.Lora == ck.Lora) {
				return ns.context.key, true
			}
		}
		if !e.Envelope {
			if ns := s.namespaceKnowing(e, dk, 0, nil); ns != nil {
				return ns.context.key, true
			}
		}
	}
	if e.Envelope || medium.Tier == tiers.Device || s.reg.pool() {
		return ck, true
	}
	return s.meantContext(e, dk, ck)
}

// namespaceKnowing returns the namespace in which the hash of a block of the event, or of its parent,
// has a prefix, nil when there is none. Of several that know it, likely comes first, then the
// one that the source entered first. Adapter and salt that the event names must agree.
func (s *placement) namespaceKnowing(e *events.Event, dk scope.Deployment, block int, likely *namespace) *namespace {
	if likely != nil && likely.mayHold(e, dk) && s.knows(likely, e, block) {
		return likely
	}
	for _, ns := range s.namespaces {
		if ns != likely && ns.mayHold(e, dk) && s.knows(ns, e, block) {
			return ns
		}
	}
	return nil
}

// mayHold reports whether blocks of a stored event of a deployment may be in a namespace.
func (ns *namespace) mayHold(e *events.Event, dk scope.Deployment) bool {
	x := ns.context
	return x.deployment.key == dk && scope.Agrees(e.LoraName, x.key.Lora) && scope.Agrees(e.Salt, x.key.Salt)
}

// localsKept bounds the buffer a source keeps for local hashes: 32 KiB.
const localsKept = 4096

// clientHashesOf returns the client hash of every block, nil if all equal local. It is valid
// until the next call.
func (s *placement) clientHashesOf(x *indexContext, e *events.Event, local []uint64) []uint64 {
	if local == nil || !x.translates {
		return nil
	}
	if cap(s.clientHashes) > localsKept {
		s.clientHashes = nil
	}
	size := x.deployment.key.BlockSize
	s.clientHashes = normalize.Locals(s.clientHashes[:0], hash.Scheme{Seed: dynamoSeed(x.key)}, e, size)
	return s.clientHashes
}
