package engine

import (
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// Kind is the kind of an Event.
type Kind uint8

const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// String returns the name used in test output.
func (k Kind) String() string {
	return [...]string{"none", "stored", "removed", "cleared"}[k]
}

// Event is one event before any publisher's encoding.
type Event struct {
	Kind   Kind
	Tier   truth.Tier
	Hashes []digest.Digest // the engine's own, in chain order when Stored
	// Parent is the hash before Hashes[0]; none for the first block of a prompt
	// and for placeholders.
	Parent    digest.Digest
	HasParent bool
	// Tokens of all blocks of a Stored event; empty for a placeholder.
	Tokens []uint32
	// Session says that a Stored event names a request's session: of its blocks those
	// that are there are no further copies.
	Session bool
	// Ahead is the look-ahead of the blocks, Tree.Ahead tokens each, where there are Tokens.
	Ahead []uint32
}

// Longest events: vLLM has been seen to remove 256 blocks in one batch, and no
// single store is larger than one prefill chunk of usual size.
const (
	maxRemoved = 256
	maxStored  = 512
)

// batch collects the events of one step. Neighbours that continue each other
// become one event. The memory is used again by the next step.
type batch struct {
	tree       *truth.Tree
	maxRemoved int // hashes of one removal
	events     []Event
}

func (o *batch) reset() { o.events = o.events[:0] }

// last returns the newest event if it is of this kind and tier.
func (o *batch) last(k Kind, tier truth.Tier) *Event {
	if n := len(o.events); n > 0 && o.events[n-1].Kind == k && o.events[n-1].Tier == tier {
		return &o.events[n-1]
	}
	return nil
}

// add returns a new event whose slices keep the memory of an earlier step.
func (o *batch) add(k Kind, tier truth.Tier) *Event {
	n := len(o.events)
	if n < cap(o.events) {
		o.events = o.events[:n+1]
	} else {
		o.events = append(o.events, Event{})
	}
	ev := &o.events[n]
	*ev = Event{Kind: k, Tier: tier, Hashes: ev.Hashes[:0], Tokens: ev.Tokens[:0], Ahead: ev.Ahead[:0]}
	return ev
}

func (o *batch) stored(tier truth.Tier, b *block, placeholder bool) {
	if placeholder {
		ev := o.add(Stored, tier)
		ev.Hashes = append(ev.Hashes, b.hash)
		return
	}
	o.chain(tier, b, false)
}

// reported announces a block of the device again.
func (o *batch) reported(b *block) { o.chain(truth.Device, b, true) }

// chain appends a block to the newest store if it continues that, else to a new one. A
// report goes on with blocks that are new, not with further copies.
func (o *batch) chain(tier truth.Tier, b *block, session bool) {
	ev := o.last(Stored, tier)
	if ev == nil || b.first || len(ev.Hashes) >= maxStored || ev.Hashes[len(ev.Hashes)-1] != b.parent ||
		ev.Session != session && (session || b.twin != nil) {
		ev = o.add(Stored, tier)
		ev.Session, ev.HasParent = session, !b.first
		if ev.HasParent {
			ev.Parent = b.parent
		}
	}
	ev.Hashes = append(ev.Hashes, b.hash)
	ev.Tokens = append(ev.Tokens, o.tree.Tokens(b.id)...)
	ev.Ahead = append(ev.Ahead, o.tree.AheadTokens(b.id)...)
}

func (o *batch) removed(tier truth.Tier, b *block) {
	ev := o.last(Removed, tier)
	if ev == nil || len(ev.Hashes) >= o.maxRemoved {
		ev = o.add(Removed, tier)
	}
	ev.Hashes = append(ev.Hashes, b.hash)
}

func (o *batch) cleared() { o.add(Cleared, 0) }
