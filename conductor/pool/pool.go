// Package pool knows which blocks a store holds, from the objects that it announces.
//
// A store announces objects, not blocks. The key of an object, or a hash next to the key,
// names the block that the object is a part of. A block is in the pool while all its
// objects are.
//
//	event --bind--> object -> binding          by endpoint, backend, tenant, object key, tier
//	                  |
//	                  v
//	               Shards --a block is whole, or no more--> Changes
//
// The objects are the truth about the pool: a removal takes what was bound, whatever the
// removal says next to the key. Objects expire by block: an engine that puts one object
// of a block has found or put the others as well.
//
// A Pool is not for concurrent use. It knows no index: the caller stores the blocks that
// appear, and removes those that vanish. An event costs a few map lookups and one
// allocation for an object that is new.
package pool

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/objectkey"
	"example.com/conductor/tiers"
)

// Options configures a Pool.
type Options struct {
	Registered   scope.Context
	Completeness objectkey.Completeness // which objects make a block count
	Limit        int64                  // bytes for objects; DefaultLimit when 0
	// Counts reports whether blocks of an attention group are indexed. The Pool asks once
	// per group, until Regroup.
	Counts   func(scope.Group) bool
	Findings *doctor.Findings // of the source
}

const (
	// DefaultLimit holds some two million objects.
	DefaultLimit = 512 << 20
	// MaxMedia bounds the media of a pool. No publisher has more than a handful.
	MaxMedia = 64

	// maxOrigins bounds the origins of the objects of a pool. Salts are in them, and each
	// user may have a salt.
	maxOrigins = 1 << 14
	// maxGroups bounds the groups whose answer of Counts is kept.
	maxGroups = 256
	// maxKept bounds the buffer of changes between calls: 96 KiB.
	maxKept = 4096
	// bindingBytes is what a binding takes in its map, about.
	bindingBytes = 64
)

// Pool is what a store is known to hold.
type Pool struct {
	opts    Options
	secret  uint64 // seeds the prints, which clients must not be able to aim at
	shards  *objectkey.Shards
	objects map[xxh3.Uint128]binding
	numbers map[origin]objectkey.Pool
	origins []origin         // by objectkey.Pool
	bound   []int            // objects, by objectkey.Pool
	left    []objectkey.Pool // numbers whose origin may have no object; the next call frees them
	free    []objectkey.Pool // numbers of no origin
	media   []tiers.Medium   // by objectkey.Tier
	counts  map[scope.Group]bool
	muted   bool // reports of shards are of no interest
	changes []Change
	id      []byte // buffer of print
}

// origin is what the events of an object say of where it belongs. Adapter and salt are
// known only where published; else the hash tells.
type origin struct {
	context          scope.Context
	backend          string
	hasLora, hasSalt bool
}

// binding is where an object belongs.
type binding struct {
	origin objectkey.Pool
	tier   objectkey.Tier
	bare   bool             // the key does not tell the block, which is all there is of it
	old    bool             // of a bare one: not announced since the last age
	group  int32            // as Kind.Group
	block  objectkey.Number // of one that is not bare
	hash   uint64           // of a bare one
}

// Change is a block that appears in the pool or vanishes from it.
type Change struct {
	Hash     uint64
	Vanishes bool
	// Object is true if objects hold the block. A block without objects was announced by
	// its hash, or came from a peer: it vanishes when its first object appears.
	Object bool
	tier   objectkey.Tier
	origin objectkey.Pool
}

// Result is the effect of one event. Changes are valid until the next call.
type Result struct {
	Changes []Change
	Dropped events.Reason // "" unless the event had no effect
	Seen    bool          // the event stored a new object, or removed one
	Medium  tiers.Medium  // valid if Seen

	// Unbound is true if the event removes an object that is not bound. Changes then holds
	// its block, which may be held without objects. ByHashes is true if the hashes of the
	// event may name the block if that is not held.
	Unbound, ByHashes bool
}

// New returns an empty Pool.
func New(opts Options) *Pool {
	if opts.Limit <= 0 {
		opts.Limit = DefaultLimit
	}
	p := &Pool{opts: opts, secret: rand.Uint64()}
	p.Reset()
	return p
}

// Reset forgets all objects. It reports no changes.
func (p *Pool) Reset() {
	*p = Pool{
		opts: p.opts, secret: p.secret,
		objects: make(map[xxh3.Uint128]binding), numbers: make(map[origin]objectkey.Pool), counts: make(map[scope.Group]bool),
	}
	p.shards = objectkey.NewShards(p.opts.Completeness, p.opts.Limit, p.reportBlock)
}

// Incomplete returns how many blocks lack objects. A block counts on each medium where it does.
func (p *Pool) Incomplete() int { return p.shards.Incomplete() }

// Objects returns the number of objects.
func (p *Pool) Objects() int { return len(p.objects) }

// Bytes returns about how many bytes the objects take.
func (p *Pool) Bytes() int64 { return p.shards.Bytes() + int64(len(p.objects))*bindingBytes }

// Part is how many objects of a block the store has on one medium.
type Part struct {
	Medium     tiers.Medium
	Have, Want int // Want is how many objects any block of the kind has had
}

// Parts returns how many objects of the blocks with a hash are in the pool. It walks all objects.
func (p *Pool) Parts(hash uint64) (all []Part) {
	p.shards.EachWithHash(hash, func(b objectkey.Block, have, want int) {
		all = append(all, Part{p.media[b.Tier], have, want})
	})
	return all
}

// beginCall prepares for a call of an exported method: it frees the origins that nothing of the call before is bound to, and
// forgets its changes.
func (p *Pool) beginCall() {
	for _, n := range p.left {
		if o := p.origins[n]; p.bound[n] == 0 && o != (origin{}) {
			delete(p.numbers, o)
			p.origins[n] = origin{}
			p.free = append(p.free, n)
		}
	}
	p.left = p.left[:0]
	if p.changes = p.changes[:0]; cap(p.changes) > maxKept {
		p.changes = nil
	}
}

// objectID identifies an object of the source: by what its key says, so that one shard of a
// block has one binding, or else by the text of its key. Only a bare object's key is
// Plain.
func (p *Pool) objectID(e *events.Event, key *objectkey.Key, tenant string, tier objectkey.Tier) xxh3.Uint128 {
	id := append(p.id[:0], byte(tier))
	for _, text := range [...]string{tenant, backendOf(e)} {
		id = binary.AppendUvarint(id, uint64(len(text)))
		id = append(id, text...)
	}
	if key.Publisher == objectkey.Plain {
		id = append(append(id, byte(objectkey.Plain)), e.ObjectKey...)
	} else {
		id = key.AppendID(id)
	}
	p.id = id
	return xxh3.Hash128Seed(id, p.secret)
}

func backendOf(e *events.Event) string {
	if e.Backend == nil {
		return ""
	}
	return *e.Backend
}

// Store binds the object of a stored event.
func (p *Pool) Store(e *events.Event) Result {
	p.beginCall()
	key, bare, why := readObject(e)
	if why != "" {
		return Result{Dropped: why}
	}
	from := p.originOf(e, &key)
	tier, ok := p.tierOf(e.Medium)
	if !ok {
		return Result{Dropped: events.BadEvent}
	}
	n, known := p.numberOf(from)
	if !known {
		return Result{Dropped: events.OverBudget}
	}
	p.left = append(p.left, n)
	print := p.objectID(e, &key, from.context.Deployment.Tenant, tier)
	was, bound := p.objects[print]
	if bound && !bare {
		key.SetGroup(was.group)
	}
	at := binding{origin: n, tier: tier, bare: bare, group: key.Group}
	if bare {
		at.hash = key.Hash
	}
	if bound {
		at.old, at.block = was.old, was.block
		if was != at {
			return Result{Dropped: events.ObjectConflict}
		}
		p.renewObject(print, at, &key)
		return Result{Changes: p.changes}
	}
	fits := p.Bytes()+bindingBytes <= p.opts.Limit
	if fits && !bare {
		at.block, fits = p.shards.Add(n, tier, &key)
	}
	if !fits {
		return Result{Dropped: events.OverBudget}
	}
	p.objects[print] = at
	p.bound[n]++
	if p.countsGroup(from.context.Deployment, key.Group) {
		if bare {
			p.addChange(Change{Hash: at.hash, Object: true, tier: tier, origin: n})
		}
		p.addChange(Change{Hash: key.Hash, Vanishes: true, tier: tier, origin: n})
	}
	return Result{Changes: p.changes, Seen: true, Medium: p.media[tier]}
}

// Remove removes the object of a removed event, by what it was bound to when it was stored.
func (p *Pool) Remove(e *events.Event) Result {
	p.beginCall()
	key, _, why := readObject(e)
	from := p.originOf(e, &key)
	tier, ok := p.tierOf(e.Medium)
	if !ok {
		return Result{Dropped: events.BadEvent}
	}
	r := Result{Seen: true, Medium: p.media[tier]}
	print := p.objectID(e, &key, from.context.Deployment.Tenant, tier)
	at, bound := p.objects[print]
	switch {
	case !bound && why == "" && !p.countsGroup(from.context.Deployment, key.Group):
		return r // nothing of it was indexed, and its hash is that of another group's block
	case !bound:
		// What a peer knew came without its objects.
		n, known := p.numberOf(from)
		if known {
			p.left = append(p.left, n)
		}
		if why == "" && known {
			p.addChange(Change{Hash: key.Hash, Vanishes: true, tier: tier, origin: n})
		}
		r.Unbound = true
		r.ByHashes = len(e.Hashes) > 0 && (why == events.UnknownObject || why == "" && e.Hashes[0] != key.Hash) // announced with tokens
	case !p.origins[at.origin].agrees(e) || at.bare && len(e.Hashes) > 0 && e.Hashes[0] != at.hash:
		r.Dropped = events.ObjectConflict
	case at.bare:
		p.reportVanished(at)
		p.unbindObject(print, at)
	default:
		key.SetGroup(at.group)
		p.shards.Remove(at.origin, at.tier, &key)
		p.unbindObject(print, at)
	}
	r.Changes = p.changes
	return r
}

// reportVanished adds the change of a bare object that leaves.
func (p *Pool) reportVanished(at binding) {
	if p.countsGroup(p.origins[at.origin].context.Deployment, at.group) {
		p.addChange(Change{Hash: at.hash, Vanishes: true, Object: true, tier: at.tier, origin: at.origin})
	}
}

func (p *Pool) addChange(c Change) { p.changes = append(p.changes, c) }

// unbindObject forgets an object. Its block has heard of that before.
func (p *Pool) unbindObject(print xxh3.Uint128, at binding) {
	delete(p.objects, print)
	if p.bound[at.origin]--; p.bound[at.origin] == 0 {
		p.left = append(p.left, at.origin)
	}
}

// renewObject marks a bound object as announced again, so that Age keeps it.
func (p *Pool) renewObject(print xxh3.Uint128, at binding, key *objectkey.Key) {
	switch {
	case !at.bare:
		p.shards.Add(at.origin, at.tier, key) // has it, so this takes no room
	case at.old:
		at.old = false
		p.objects[print] = at
	}
}

// Age forgets the objects on the media that ages names, if no object of their block was
// announced since the Age before. The changes are valid until the next call.
func (p *Pool) Age(ages func(medium string) bool) []Change {
	p.beginCall()
	aging := make([]bool, len(p.media))
	for i := range p.media {
		aging[i] = ages(p.media[i].Name)
	}
	p.shards.ForgetStale(func(t objectkey.Tier) bool { return aging[t] })
	for print, at := range p.objects {
		switch {
		case !aging[at.tier], !at.bare && p.shards.KnowsBlock(at.block):
			continue
		case at.bare && !at.old:
			at.old = true
			p.objects[print] = at
			continue
		case at.bare:
			p.reportVanished(at)
		}
		p.unbindObject(print, at)
	}
	return p.changes
}

// Clear forgets the objects that a cleared event takes away. Their blocks go with the
// holders, so Clear reports no changes. medium is a canonical name, "" for all media.
func (p *Pool) Clear(e *events.Event, medium string) {
	p.beginCall()
	goes := func(n objectkey.Pool, tier objectkey.Tier) bool {
		return p.origins[n].agrees(e) && scope.Agrees(e.Backend, p.origins[n].backend) && (medium == "" || p.media[tier].Name == medium)
	}
	p.muted = true
	p.shards.RemoveWhere(goes)
	p.muted = false
	for print, at := range p.objects {
		if goes(at.origin, at.tier) {
			p.unbindObject(print, at)
		}
	}
}

// agrees reports whether nothing an event says contradicts the origin.
func (o *origin) agrees(e *events.Event) bool {
	return scope.Agrees(e.Tenant, o.context.Deployment.Tenant) && scope.Agrees(e.Model, o.context.Deployment.Model) &&
		(e.BlockSize == 0 || e.BlockSize == o.context.Deployment.BlockSize) &&
		(!o.hasLora || scope.Agrees(e.LoraName, o.context.Variant.Lora)) && (!o.hasSalt || scope.Agrees(e.Salt, o.context.Variant.Salt))
}

// readObject reads which block an object is a part of. bare says that its key does not
// tell: then the object is all there is of the block.
func readObject(e *events.Event) (key objectkey.Key, bare bool, why events.Reason) {
	defer func() { key.SetGroup(int32(e.Group)) }()
	key, err := objectkey.Parse(e.ObjectKey)
	if err == objectkey.ErrAside {
		return key, false, events.AsideObject
	}
	if e.ConnectorHash != "" {
		digits, h, bad := objectkey.Digest(e.ConnectorHash)
		switch {
		case bad != nil, len(e.Hashes) > 0 && e.Hashes[0] != h:
			return key, false, events.ObjectConflict
		case err != nil || key.Publisher == objectkey.Plain:
			return objectkey.NamedKey(digits, h), true, ""
		case !key.HasDigest(digits):
			return key, false, events.ObjectConflict
		}
		return key, false, ""
	}
	switch {
	case err == nil && key.Publisher != objectkey.Plain:
		return key, false, ""
	case len(e.Hashes) == 1:
		return objectkey.NamedKey(e.ObjectKey, e.Hashes[0]), true, ""
	case err == nil:
		return key, true, ""
	}
	return key, false, events.UnknownObject
}

// originOf returns where an object belongs. The model that a key names is its model:
// equal tokens of two models have equal hashes.
func (p *Pool) originOf(e *events.Event, key *objectkey.Key) origin {
	o := origin{
		context: p.opts.Registered.Named(e), backend: backendOf(e),
		hasLora: e.LoraName != nil && *e.LoraName != "", hasSalt: e.Salt != nil && *e.Salt != "",
	}
	if dk := &o.context.Deployment; e.Model == nil && key.Model != "" && !key.NamesModel(dk.Model) {
		p.opts.Findings.Report(doctor.FindingContext,
			"objects are of model %q, registered is %q: they count for the model of their keys; register the name the engines use as "+
				"their model path",
			key.Model, dk.Model)
		dk.Model = key.Model
	}
	return o
}

// numberOf returns the number of an origin, which it has until nothing is bound to it. It returns false if there are too many
// origins.
func (p *Pool) numberOf(o origin) (objectkey.Pool, bool) {
	n, known := p.numbers[o]
	switch free := len(p.free); {
	case known:
		return n, true
	case free > 0:
		n = p.free[free-1]
		p.free = p.free[:free-1]
		p.origins[n] = o
	case len(p.origins) == maxOrigins:
		return 0, false
	default:
		n = objectkey.Pool(len(p.origins))
		p.origins, p.bound = append(p.origins, o), append(p.bound, 0)
	}
	p.numbers[o] = n
	return n, true
}

// tierOf returns the number of a medium. It returns false if the source has too many media.
func (p *Pool) tierOf(raw string) (objectkey.Tier, bool) {
	m := tiers.ParseMedium(raw)
	for i := range p.media {
		if p.media[i].Name == m.Name {
			return objectkey.Tier(i), true
		}
	}
	if len(p.media) > MaxMedia {
		return 0, false
	}
	if m.Tier == tiers.Other {
		p.opts.Findings.ReportMedium(raw)
	}
	p.media = append(p.media, m)
	return objectkey.Tier(len(p.media) - 1), true
}

// reportBlock adds the change of a block that has become whole, or is not whole any more. The shards call it.
func (p *Pool) reportBlock(b objectkey.Block, whole bool) {
	if !p.muted && p.countsGroup(p.origins[b.Pool].context.Deployment, b.Kind.Group) {
		p.addChange(Change{Hash: b.Hash, Vanishes: !whole, Object: true, tier: b.Tier, origin: b.Pool})
	}
}

// Context returns the context in which a block is expected, and its medium.
func (p *Pool) Context(c *Change) (scope.Context, tiers.Medium) {
	return p.origins[c.origin].context, p.media[c.tier]
}

// Event returns a change as a standardized event of one block. It shares strings with the
// Pool: it is valid until the next call.
func (p *Pool) Event(c *Change) events.Event {
	o := &p.origins[c.origin]
	e := events.Event{
		Kind: events.Stored, Hashes: []uint64{c.Hash}, Envelope: true, Group: -1, BaseBlock: 1,
		Tenant: &o.context.Deployment.Tenant, Model: &o.context.Deployment.Model, BlockSize: o.context.Deployment.BlockSize,
		Backend: &o.backend,
	}
	if c.Vanishes {
		e.Kind = events.Removed
	}
	if o.hasLora {
		e.LoraName = &o.context.Variant.Lora
	}
	if o.hasSalt {
		e.Salt = &o.context.Variant.Salt
	}
	return e
}

// Objects of a hybrid model are of one attention group each. Only engines announce which
// groups count, maybe after the objects have come. Until then group 0 counts, as with
// engines. All objects are bound; blocks of a group enter and leave the index with what
// engines announce.

// CountsGroup reports whether blocks of a group are indexed. The answer about a group
// stays until Regroup.
func (p *Pool) countsGroup(d scope.Deployment, group int32) bool {
	at := scope.Group{Deployment: d, Index: max(int(group), 0)}
	main, known := p.counts[at]
	if !known {
		main = p.opts.Counts(at)
		if len(p.counts) < maxGroups {
			p.counts[at] = main
		}
	}
	return main
}

// Regroup asks again whether the blocks of a group count. The changes are valid until the
// next call.
func (p *Pool) Regroup(at scope.Group) []Change {
	p.beginCall()
	was, known := p.counts[at]
	main := p.opts.Counts(at)
	if !known || main == was {
		return nil
	}
	p.counts[at] = main
	in := func(n objectkey.Pool, group int32) bool {
		return max(int(group), 0) == at.Index && p.origins[n].context.Deployment == at.Deployment
	}
	p.shards.EachWhole(func(b objectkey.Block) {
		if in(b.Pool, b.Kind.Group) {
			p.addChange(Change{Hash: b.Hash, Vanishes: !main, Object: true, tier: b.Tier, origin: b.Pool})
		}
	})
	for _, o := range p.objects {
		if o.bare && in(o.origin, o.group) {
			p.addChange(Change{Hash: o.hash, Vanishes: !main, Object: true, tier: o.tier, origin: o.origin})
		}
	}
	return p.changes
}
