package names

import (
	"slices"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Speaker is how one source names blocks in one deployment. Its source's turn guards it.
type Speaker struct {
	Table      *Table // of the deployment; all its speakers share it
	src        index.Source
	registered scope.Variant
	kind       Kind
	fold       uint64 // constant of registered

	recent    []*Identity              // of stored blocks, the newest first
	uncovered map[uint64]scope.Variant // what events name and their hashes leave out, by constant
	tells     bool                     // the source has named an adapter or salt below the device
	tellsSalt bool                     // it has named a salt there
	begins    []uint64                 // buffer of Placing.Begins

	mostUncovered int // entries of uncovered at which to look for those that have gone
}

// maxRecent is how many recent identities a source keeps. A block that names none is looked for under each of them, which
// costs a probe of the index each.
const maxRecent = 32

// Kind is how a source hashes.
type Kind uint8

const (
	Engine   Kind = iota // adapter and salt are in its hashes
	Salting              // only the salt is, as in those of SGLang
	Pool                 // the hashes are those of engines
	Standard             // as Engine, but standardized events may come: their hashes leave both out
)

// LeftOut returns what hashes leave out of an adapter and salt that events name, for a source that is
// registered with others.
func (k Kind) leftOut(registered, named scope.Variant) scope.Variant {
	if k == Salting {
		return scope.Variant{Lora: named.Lora, Salt: registered.Salt}
	}
	return registered
}

// NewSpeaker returns the speaker of a source that is registered with an adapter and salt.
func (t *Table) NewSpeaker(src index.Source, registered scope.Variant, kind Kind) *Speaker {
	n := &Speaker{Table: t, src: src, registered: registered, kind: kind}
	if n.fold = t.Constant(registered); kind != Pool && n.fold != 0 {
		t.Fold(registered)
	}
	return n
}

// Placing says how the index is to store blocks.
type Placing struct {
	Identity *Identity // of a chain that begins with the blocks, unless the index knows better
	Fold     uint64    // makes names of the event's hashes
	// ByName says that a hash that means a block counts more than the block's tokens.
	ByName bool
	// Begins are the constants of the identities that rule 4 is about.
	Begins []uint64
	// Undecided says that the blocks wait under their hashes if neither rule 1 nor 2 decides.
	Undecided bool
	// Assumed says that only the registration decides if none of rules 1, 2 and 4 does, although the
	// source has other identities.
	Assumed bool
}

// Resolve says to whom the blocks of a stored event belong, by the first rule that decides:
//
//  1. a hash of the event is the name of a block, maybe one that has left: it is that block;
//  2. its parent is the name of a block that the event does not contradict: it lies behind it;
//  3. it names the adapter and the salt;
//  4. its tokens begin prompts of exactly one identity that the source has stored lately;
//  5. the registration says the rest.
//
// The index applies rules 1, 2 and 4, the first only where Placing.ByName is set. On the device an event
// names all it has, so what it does not name is the registration's: rule 4 is for events about lower
// tiers.
//
// vLLM names no salt below the device, whether or not a block has one. Its events there name an attention group, and have
// blocks of the size that it has on its device, deviceParts registered blocks, 0 if that is not known. If neither rule 1 nor 2
// decides, they are Undecided: prompts with different salts may begin with the same tokens, so only an event about the device
// can tell. Blocks of other sizes are chunks of a connector with hashes of its own, which the device never names.
//
// Resolve returns ErrFull if the identity is new and there is no room for it.
func (n *Speaker) Resolve(c *normalize.Change, deviceParts int) (at Placing, err error) {
	e, below := c.Cut, c.Medium.Tier != tiers.Device
	v := n.variantOf(e)
	if e.Envelope && n.kind != Pool {
		return n.resolveStandard(e, v)
	}
	at.Fold, at.ByName = n.fold, c.Local == nil || below && n.kind != Pool
	if out := n.kind.leftOut(n.registered, v); out != n.registered {
		at.Fold = n.leaveOut(out)
	}
	if below && (e.Salt != nil && *e.Salt != "" || e.LoraName != nil && *e.LoraName != "") {
		n.tells = true
	}
	if below && e.Salt != nil && *e.Salt != "" {
		n.tellsSalt = true
	}
	if at.ByName && c.Local != nil && e.Salt == nil && !e.HasParent && e.BaseBlock <= 0 {
		at.Undecided = !n.tellsSalt && n.kind != Salting && e.Group >= 0 && (deviceParts == 0 || deviceParts == max(c.Parts, 1))
		if !at.Undecided && n.Table.Len() > 0 {
			n.guess(&at, e, v)
		}
	}
	at.Identity, err = n.Table.Enter(v)
	return at, err
}

// guess completes a Placing for rule 4.
func (n *Speaker) guess(at *Placing, e *events.Event, v scope.Variant) {
	n.begins = n.begins[:0]
	for _, id := range n.recent {
		if scope.Agrees(e.LoraName, id.Lora) {
			n.begins = append(n.begins, id.Constant)
		}
		at.Assumed = at.Assumed || !n.tells && id.Variant != v
	}
	at.Begins = n.begins
}

// variantOf returns the adapter and salt of an event: those that it names, else those of the registration.
func (n *Speaker) variantOf(e *events.Event) scope.Variant {
	v := n.registered
	if e.LoraName != nil {
		v.Lora = *e.LoraName
	}
	if e.Salt != nil {
		v.Salt = *e.Salt
	}
	return v
}

// Known returns the identity under which the first block of an event, or its parent, is known by its hash. It returns nil if
// neither is.
func (n *Speaker) Known(e *events.Event) *Identity {
	if k := n.Table.x.ResolveHash(n.src, e.Hashes[0]^n.fold); k.Named {
		return n.Table.Of(k.Identity)
	}
	if e.HasParent {
		if k := n.Table.x.ResolveHash(n.src, e.Parent^n.fold); k.Named {
			return n.Table.Of(k.Identity)
		}
	}
	return nil
}

// HoldsAs reports whether some owners of the source hold a block of an adapter by no other hash than one of an event, or
// than that of its parent.
func (n *Speaker) HoldsAs(lora string, owners []index.Owner, e *events.Event) bool {
	holds := func(hash uint64) bool {
		number, only := n.Table.x.Inspect().OnlyName(n.src, owners, hash^n.fold)
		id := n.Table.Of(number)
		return only && id != nil && id.Lora == lora
	}
	return e.HasParent && holds(e.Parent) || slices.ContainsFunc(e.Hashes, holds)
}

// HashOf returns the hash by which the engine's events call the block with this name in the index.
func (n *Speaker) HashOf(name uint64) uint64 { return name ^ n.fold }

// resolveStandard is Resolve for a standardized event. Its hashes cover neither adapter nor salt, so
// they do not tell whose the blocks are: a salt is inherited from the parent alone.
func (n *Speaker) resolveStandard(e *events.Event, v scope.Variant) (at Placing, err error) {
	if e.Salt == nil && e.HasParent && n.Table.Len() > 0 && !n.Table.x.ResolveHash(n.src, e.Parent^n.Table.Constant(v)).Own {
		for _, id := range n.recent {
			if id.Lora == v.Lora && n.Table.x.ResolveHash(n.src, e.Parent^id.Constant).Own {
				v.Salt = id.Salt
				break
			}
		}
	}
	if at.Identity, err = n.Table.Enter(v); err != nil {
		return at, err
	}
	at.Fold = n.leaveOut(v)
	return at, nil
}

// leaveOut returns the constant of what hashes leave out, and notes it for removals.
func (n *Speaker) leaveOut(v scope.Variant) uint64 {
	constant := n.Table.Constant(v)
	if _, known := n.uncovered[constant]; known {
		return constant
	}
	if len(n.uncovered) >= n.mostUncovered {
		n.forgetUncovered()
	}
	n.uncovered[constant] = v
	return constant
}

// fewUncovered is how many entries of uncovered are kept whether or not the table has them.
const fewUncovered = 64

// forgetUncovered drops the entries of uncovered that no identity of the table has any more, because none of their blocks is
// left.
func (n *Speaker) forgetUncovered() {
	living := make(map[scope.Variant]bool)
	for _, id := range n.Table.All() {
		living[id.Variant] = true
		living[n.kind.leftOut(n.registered, id.Variant)] = true
	}
	kept := make(map[uint64]scope.Variant)
	for constant, v := range n.uncovered {
		if living[v] {
			kept[constant] = v
		}
	}
	n.uncovered, n.mostUncovered = kept, max(fewUncovered, 2*len(kept))
}

// Follow takes over what another speaker of the same blocks has noted. It may have been registered with
// another adapter and salt.
func (n *Speaker) Follow(old *Speaker) {
	n.recent, n.tells, n.tellsSalt = old.recent, old.tells, old.tellsSalt
	n.uncovered, n.mostUncovered = old.uncovered, old.mostUncovered
	if old.fold != n.fold {
		n.leaveOut(old.registered)
	}
}

// Has records that the source has blocks of an identity, from a snapshot or a replica. It returns the constant that makes
// names of its hashes there.
func (n *Speaker) Has(id *Identity) uint64 {
	n.Stored(id)
	if n.kind == Standard {
		return n.leaveOut(id.Variant)
	}
	if out := n.kind.leftOut(n.registered, id.Variant); out != n.registered {
		return n.leaveOut(out)
	}
	return n.fold
}

// Stored records the identity of blocks that the source has stored. It reports whether the blocks before had another one.
func (n *Speaker) Stored(id *Identity) bool {
	i := slices.Index(n.recent, id)
	switch {
	case i == 0:
		return false
	case i < 0 && len(n.recent) < maxRecent:
		n.recent = append(n.recent, nil)
		i = len(n.recent) - 1
	case i < 0:
		i = maxRecent - 1
	}
	copy(n.recent[1:], n.recent[:i])
	n.recent[0] = id
	return true
}

// Recent returns the identities of blocks that the source has stored lately, the newest first.
func (n *Speaker) Recent() []*Identity { return n.recent }

// Of a removed event, and of blocks without tokens in a pool, it may be open which constant makes
// names of the hashes.

// Removed calls f with each constant that may make names of the hashes of a removed event, until f
// returns false.
func (n *Speaker) Removed(e *events.Event, f func(fold uint64) bool) {
	switch {
	case n.kind == Pool:
		for _, one := range *n.Table.folds.Load() {
			if one.constant != n.fold && !f(one.constant) {
				return
			}
		}
		if f(n.fold) && (e.LoraName != nil || e.Salt != nil) {
			f(n.Table.Constant(n.variantOf(e)))
		}
		return
	case !e.Envelope:
		if !f(n.fold) || n.fold != 0 && !f(0) { // from the dump of a peer that knows no adapters and salts
			return
		}
	case e.Salt != nil && e.LoraName != nil, len(n.uncovered) == 0:
		f(n.Table.Constant(n.variantOf(e)))
		return
	}
	for constant, v := range n.uncovered {
		if v.Within(e) && !f(constant) {
			return
		}
	}
}

// NamesOnce reports whether Removed calls its function once for a removed event of an engine.
func (n *Speaker) NamesOnce(e *events.Event) bool {
	if n.kind == Pool {
		return n.fold == 0 && len(*n.Table.folds.Load()) == 1 && e.LoraName == nil && e.Salt == nil
	}
	return n.fold == 0 && !e.Envelope && len(n.uncovered) == 0
}

// PoolFold returns the constant with which an engine has announced a hash of a pool. If none has, it is
// the constant of what the event names, else the pool's own.
func (n *Speaker) PoolFold(e *events.Event, hash uint64) uint64 {
	folds, named := *n.Table.folds.Load(), n.fold
	if e.LoraName != nil || e.Salt != nil {
		named = n.Table.Constant(n.variantOf(e))
	}
	if n.fold == 0 && named == 0 && len(folds) == 1 {
		return 0
	}
	if n.Table.x.ResolveHash(index.NoSource, hash^n.fold).Named {
		return n.fold
	}
	for _, one := range folds {
		if n.Table.x.ResolveHash(index.NoSource, hash^one.constant).Named {
			return one.constant
		}
	}
	return named
}

// FoldOf returns the constant that makes names of hashes under an adapter and salt, for a source that is
// registered with others.
func (t *Table) FoldOf(registered scope.Variant, kind Kind, of scope.Variant) uint64 {
	if kind == Standard {
		return t.Constant(of)
	}
	return t.Constant(kind.leftOut(registered, of))
}
