package conductor

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"kvconductor/conductor/doctor"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/objectkey"
	"kvconductor/tiers"
)

// A pool announces objects, not blocks: what block an object is a part of, its key
// says, or a hash beside it. A block is in the pool while all its objects are.
//
//	event --bind--> object -> binding          by endpoint, backend, tenant, object key, tier
//	                  |
//	                  v
//	               Shards --a block is whole, or no more--> appear, vanish --> place, remove
//
// The objects are the truth about the pool: what is removed is what was bound, whatever
// the removal says beside the key. Objects expire by block: an engine that puts one object
// of a block has found or put the others as well.

// shelf is what a pool is known to hold. It belongs to the source's turn.
type shelf struct {
	source  *source
	secret  uint64 // seeds the prints, which clients must not be able to aim at
	shards  *objectkey.Shards
	objects map[xxh3.Uint128]binding
	scopes  map[origin]objectkey.Pool
	names   []origin         // by objectkey.Pool
	bound   []int            // objects, by objectkey.Pool
	id      []byte           // buffer of print
	free    []objectkey.Pool // numbers of scopes without objects
	media   []tiers.Medium
	muted   bool             // reports of shards are of no interest
	main    map[groupOf]bool // whether blocks of a group count: see counts
}

// origin is what the events of an object say of where it belongs. Adapter and salt are
// known only where published; else the hash tells.
type origin struct {
	deployment       scope.Deployment
	backend          string
	lora, salt       string
	hasLora, hasSalt bool
}

// binding is where an object belongs.
type binding struct {
	scope objectkey.Pool
	tier  objectkey.Tier
	bare  bool             // the key does not tell the block, which is all there is of it
	old   bool             // of a bare one: not announced since the last age
	group int32            // as Kind.Group
	block objectkey.Number // of one that is not bare
	hash  uint64           // of a bare one
}

// bindingBytes is what a binding takes in its map, about.
const bindingBytes = 64

func newShelf(s *source) *shelf {
	p := &shelf{source: s, secret: rand.Uint64()}
	p.reset()
	return p
}

func (p *shelf) reset() {
	p.shards = objectkey.NewShards(p.source.conductor.opts.Completeness, p.limit(), p.turn)
	p.objects, p.main = make(map[xxh3.Uint128]binding), make(map[groupOf]bool)
	p.scopes, p.names, p.bound, p.free, p.media = make(map[origin]objectkey.Pool), nil, nil, nil, nil
}

// DefaultPoolBytes holds some two million objects.
const DefaultPoolBytes = 512 << 20

func (p *shelf) limit() int64 {
	if n := p.source.conductor.opts.PoolBytes; n > 0 {
		return n
	}
	return DefaultPoolBytes
}

// bytes is what the objects take, about.
func (p *shelf) bytes() int64 { return p.shards.Bytes() + int64(len(p.objects))*bindingBytes }

// print identifies an object of the source: by what its key says, so that one shard of a
// block has one binding, or else by the text of its key. Only a bare object's key is
// Plain.
func (p *shelf) print(e *events.Event, key *objectkey.Key, tenant string, tier objectkey.Tier) xxh3.Uint128 {
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

// store binds the object of an event.
func (p *shelf) store(e *events.Event) {
	s := p.source
	key, bare, why := readObject(e)
	if why != "" {
		s.drop(why, 1)
		return
	}
	sc := p.scopeOf(e, &key)
	tier, ok := p.tier(e.Medium)
	if !ok {
		s.drop(events.BadEvent, 1)
		return
	}
	n, known := p.number(sc)
	if !known {
		s.drop(events.OverBudget, 1)
		return
	}
	defer p.leave(n)
	print := p.print(e, &key, sc.deployment.Tenant, tier)
	was, bound := p.objects[print]
	if bound && !bare {
		key.SetGroup(was.group)
	}
	at := binding{scope: n, tier: tier, bare: bare, group: key.Group}
	if bare {
		at.hash = key.Hash
	}
	if bound {
		at.old, at.block = was.old, was.block
		if was != at {
			s.drop(events.ObjectConflict, 1)
			return
		}
		p.renew(print, at, &key)
		return
	}
	fits := p.bytes()+bindingBytes <= p.limit()
	if fits && !bare {
		at.block, fits = p.shards.Add(at.scope, at.tier, &key)
	}
	if !fits {
		s.drop(events.OverBudget, 1)
		return
	}
	p.objects[print] = at
	p.bound[n]++
	s.doctor.Observe(&doctor.Observation{Event: e, Medium: p.media[tier], Count: 1})
	if p.counts(sc.deployment, key.Group) {
		if bare {
			p.appear(at.scope, at.tier, at.hash)
		}
		p.disown(n, tier, key.Hash)
	}
}

// remove follows the binding of the object of an event.
func (p *shelf) remove(e *events.Event) {
	s := p.source
	key, _, why := readObject(e)
	sc := p.scopeOf(e, &key)
	tier, ok := p.tier(e.Medium)
	if !ok {
		s.drop(events.BadEvent, 1)
		return
	}
	s.doctor.Observe(&doctor.Observation{Event: e, Medium: p.media[tier], Count: 1})
	print := p.print(e, &key, sc.deployment.Tenant, tier)
	at, bound := p.objects[print]
	if !bound {
		if why == "" && !p.counts(sc.deployment, key.Group) {
			return // nothing of it was indexed, and its hash is that of another group's block
		}
		// What a peer knew came without its objects.
		n, known := p.number(sc)
		if known {
			defer p.leave(n)
		}
		switch {
		case why == "" && known && p.disown(n, tier, key.Hash) > 0:
		case len(e.Hashes) > 0 && (why == events.UnknownObject || why == "" && e.Hashes[0] != key.Hash):
			s.change(e, int32(s.reg.Rank)) // announced with tokens, under its hashes
		default:
			s.drop(events.UnknownHash, 1)
		}
		return
	}
	if !p.names[at.scope].agrees(e) || at.bare && len(e.Hashes) > 0 && e.Hashes[0] != at.hash {
		s.drop(events.ObjectConflict, 1)
		return
	}
	if !at.bare {
		key.SetGroup(at.group)
		p.shards.Remove(at.scope, at.tier, &key)
	} else if p.counts(p.names[at.scope].deployment, at.group) {
		p.vanish(at.scope, at.tier, at.hash)
	}
	p.unbind(print, at)
}

// unbind forgets an object whose block knows already.
func (p *shelf) unbind(print xxh3.Uint128, at binding) {
	delete(p.objects, print)
	p.bound[at.scope]--
	p.leave(at.scope)
}

// renew notes that a bound object was announced again.
func (p *shelf) renew(print xxh3.Uint128, at binding, key *objectkey.Key) {
	switch {
	case !at.bare:
		p.shards.Add(at.scope, at.tier, key) // has it, so this takes no room
	case at.old:
		at.old = false
		p.objects[print] = at
	}
}

// age forgets the objects on the media that ages names, if no object of their block was
// announced since the age before.
func (p *shelf) age(ages func(medium string) bool) {
	aging := make([]bool, len(p.media))
	for i := range p.media {
		aging[i] = ages(p.media[i].Name)
	}
	p.shards.Age(func(t objectkey.Tier) bool { return aging[t] })
	for print, at := range p.objects {
		switch {
		case !aging[at.tier], !at.bare && p.shards.Known(at.block):
			continue
		case at.bare && !at.old:
			at.old = true
			p.objects[print] = at
			continue
		case at.bare && p.counts(p.names[at.scope].deployment, at.group):
			p.vanish(at.scope, at.tier, at.hash)
		}
		p.unbind(print, at)
	}
}

// clear forgets the objects that a cleared event takes away; their blocks go with the
// holders.
func (p *shelf) clear(e *events.Event, medium string) {
	goes := func(n objectkey.Pool, tier objectkey.Tier) bool {
		return p.names[n].agrees(e) && scope.Agrees(e.Backend, p.names[n].backend) && (medium == "" || p.media[tier].Name == medium)
	}
	p.muted = true
	p.shards.Clear(goes)
	p.muted = false
	for print, at := range p.objects {
		if goes(at.scope, at.tier) {
			p.unbind(print, at)
		}
	}
}

// agrees reports whether nothing an event says contradicts the scope.
func (sc *origin) agrees(e *events.Event) bool {
	return scope.Agrees(e.Tenant, sc.deployment.Tenant) && scope.Agrees(e.Model, sc.deployment.Model) &&
		(e.BlockSize == 0 || e.BlockSize == sc.deployment.BlockSize) &&
		(!sc.hasLora || scope.Agrees(e.LoraName, sc.lora)) && (!sc.hasSalt || scope.Agrees(e.Salt, sc.salt))
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
			return objectkey.Named(digits, h), true, ""
		case !key.Has(digits):
			return key, false, events.ObjectConflict
		}
		return key, false, ""
	}
	switch {
	case err == nil && key.Publisher != objectkey.Plain:
		return key, false, ""
	case len(e.Hashes) == 1:
		return objectkey.Named(e.ObjectKey, e.Hashes[0]), true, ""
	case err == nil:
		return key, true, ""
	}
	return key, false, events.UnknownObject
}

// scopeOf returns where an object belongs. The model that a key names is its model:
// equal tokens of two models have equal hashes.
func (p *shelf) scopeOf(e *events.Event, key *objectkey.Key) origin {
	s := p.source
	sc := origin{deployment: s.deploymentKey().Named(e), backend: backendOf(e), lora: s.reg.Lora, salt: s.reg.Salt}
	if e.LoraName != nil {
		sc.lora, sc.hasLora = *e.LoraName, *e.LoraName != ""
	}
	if e.Salt != nil {
		sc.salt, sc.hasSalt = *e.Salt, *e.Salt != ""
	}
	if e.Model == nil && key.Model != "" && !key.Names(sc.deployment.Model) {
		s.doctor.Report(doctor.FindingContext, "objects are of model %q, registered is %q: they count for the model of their keys; register the name the engines use as their model path",
			key.Model, sc.deployment.Model)
		sc.deployment.Model = key.Model
	}
	return sc
}

// maxScopes bounds the scopes a pool has objects in. Salts are in them, of which there
// may be as many as users.
const maxScopes = 1 << 14

// number returns the number of a scope until it is left, false where it would be one
// too many.
func (p *shelf) number(sc origin) (objectkey.Pool, bool) {
	n, known := p.scopes[sc]
	switch free := len(p.free); {
	case known:
		return n, true
	case free > 0:
		n = p.free[free-1]
		p.free = p.free[:free-1]
		p.names[n] = sc
	case len(p.names) == maxScopes:
		return 0, false
	default:
		n = objectkey.Pool(len(p.names))
		p.names, p.bound = append(p.names, sc), append(p.bound, 0)
	}
	p.scopes[sc] = n
	return n, true
}

// leave forgets a scope if no object is bound in it.
func (p *shelf) leave(n objectkey.Pool) {
	if p.bound[n] == 0 {
		delete(p.scopes, p.names[n])
		p.names[n] = origin{}
		p.free = append(p.free, n)
	}
}

// tier returns the number of a medium; there are few.
func (p *shelf) tier(raw string) (objectkey.Tier, bool) {
	m := tiers.Parse(raw)
	for i := range p.media {
		if p.media[i].Name == m.Name {
			return objectkey.Tier(i), true
		}
	}
	if len(p.media) > maxMedia {
		return 0, false
	}
	if m.Tier == tiers.Other {
		p.source.doctor.Report(doctor.FindingMedium, "medium %q is unknown: its blocks count as a tier of their own below all others", raw)
	}
	p.media = append(p.media, m)
	return objectkey.Tier(len(p.media) - 1), true
}

// maxMedia bounds the media of a pool and of a ttl: no publisher has more than a handful.
const maxMedia = 64

// turn hears from the shards that a block has become whole, or is no more.
func (p *shelf) turn(b objectkey.Block, whole bool) {
	switch {
	case p.muted, !p.counts(p.names[b.Pool].deployment, b.Kind.Group):
	case whole:
		p.appear(b.Pool, b.Tier, b.Hash)
	default:
		p.vanish(b.Pool, b.Tier, b.Hash)
	}
}

// event is what a scope says of its blocks.
func (sc *origin) event(hash uint64) events.Event {
	e := events.Event{
		Hashes: []uint64{hash}, Envelope: true, Group: -1, BaseBlock: 1,
		Tenant: &sc.deployment.Tenant, Model: &sc.deployment.Model, BlockSize: sc.deployment.BlockSize, Backend: &sc.backend,
	}
	if sc.hasLora {
		e.LoraName = &sc.lora
	}
	if sc.hasSalt {
		e.Salt = &sc.salt
	}
	return e
}

func (p *shelf) owner(n objectkey.Pool, t objectkey.Tier) ownerKey {
	return ownerKey{rank: int32(p.source.reg.Rank), medium: p.media[t].Name, backend: p.names[n].backend, objects: true}
}

// appear indexes a block. Engines that hash in several ways have each their own objects
// of a block, which the index counts as copies.
func (p *shelf) appear(n objectkey.Pool, t objectkey.Tier, hash uint64) {
	sc := &p.names[n]
	e := sc.event(hash)
	at := scope.Context{Deployment: sc.deployment, Variant: scope.Variant{Lora: sc.lora, Salt: sc.salt}}
	p.source.place(at, &e, nil, p.owner(n, t), p.media[t])
}

// vanish takes a block out of the index.
func (p *shelf) vanish(n objectkey.Pool, t objectkey.Tier, hash uint64) {
	e := p.names[n].event(hash)
	e.Kind = events.Removed
	p.source.withdraws(&e, p.owner(n, t))
}

// disown takes a block away that is held without an object, and returns whether it was:
// what a peer knew, or what was announced before it had a key. From now on the object
// tells whether the block is there.
func (p *shelf) disown(n objectkey.Pool, t objectkey.Tier, hash uint64) int {
	owner := p.owner(n, t)
	owner.objects = false
	e := p.names[n].event(hash)
	e.Kind = events.Removed
	return p.source.withdraws(&e, owner)
}
