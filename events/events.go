// Package events defines what leaves this room: ordered, validated,
// engine-neutral batches of KV-cache events.
//
//	socket --frames--> events/zmq --> events/stream --payload--> events/wire
//	                                       |                        |
//	                                       +<------- Batch ---------+
//	                                       v
//	                                   conductor
//
// The sub-packages do the work: events/wire turns one msgpack payload into a
// Batch, events/zmq owns sockets, events/stream owns sequence, gap, replay and
// restart of one source. This package holds only the values they exchange.
package events

import "iter"

// Kind says what happened to the blocks of an Event.
type Kind uint8

const (
	Stored  Kind = iota + 1 // blocks became present on a medium
	Removed                 // blocks left a medium
	Cleared                 // everything of the publisher (or of one medium) is gone
	Moved                   // blocks went from one medium to another
)

// String returns the lower-case name used in logs and metrics.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	case Moved:
		return "moved"
	}
	return "unknown"
}

// MaxAhead is the longest look-ahead, in tokens. vLLM's is 1, with multi-token
// prediction modules their number: so far 8 at the most.
const MaxAhead = 63

// Event is one engine-neutral KV-cache event, or several of one batch that differ in their blocks alone and
// follow each other.
//
// Shapes: len(Hashes) = number of blocks. Tokens is either nil (absent, not all
// integers) or the flat token list as published; it pairs with Hashes only when
// it has exactly BlockSize elements a block, and Ahead more.
type Event struct {
	Kind Kind

	// Hashes are the publisher's own block hashes projected to u64: integers by
	// two's complement, byte strings by their last 8 bytes big-endian.
	Hashes []uint64
	// Joined is the number of events that are merged into this one, less one. If it is not 0, each of Hashes came
	// in an event of its own, in this order.
	Joined int
	// Parent is the publisher's hash of the block before Hashes[0]; valid when
	// HasParent. A missing parent means the root, or "unknown" when BaseBlock > 0. Some publishers name
	// parent 0 instead of none.
	Parent    uint64
	HasParent bool
	// Tokens are the token ids of all blocks, flattened; nil when the event has
	// none or has elements that are no u32.
	Tokens []uint32
	// Ahead is the look-ahead: how many tokens behind each block its hash covers as
	// well, 0 to MaxAhead. Tokens then ends in the Ahead tokens behind the last block.
	Ahead int
	// Bigram is true when token_ids came as overlapping pairs (EAGLE of SGLang), which
	// is a look-ahead of one token.
	Bigram bool
	// Items are, per block, the numbers of all that it has besides tokens, ascending:
	// multimodal items, embeddings, extra keys of other forms. The tokens in their place
	// do not tell them apart. nil where no block has any.
	Items [][]uint64
	// BlockSize is tokens per block as published, 0 when unknown.
	BlockSize int
	// BaseBlock is the depth of Hashes[0] in its chain, -1 when not published.
	BaseBlock int

	// Medium is the raw string on the wire, "" when nil or absent. Blocks that are moved arrive on it.
	Medium string
	// From is the medium that moved blocks leave, likewise.
	From string
	// Group is the KV-cache group index, -1 when not published.
	Group int
	// GroupKind is kv_cache_spec_kind, "" when not published.
	GroupKind string
	// Window is kv_cache_spec_sliding_window in tokens, 0 when not published.
	Window int
	// Remaining holds, per hash of a Removed event, how many copies stay behind
	// (remaining_copy_counts); nil when not published.
	Remaining []int

	// LoraName is the adapter name; nil when absent or nil on the wire.
	LoraName *string
	// LoraID is the number of the adapter of a Stored event, 0 for none. The engine process counts what it
	// loads from 1, so an adapter that is loaded again under its name has a higher one.
	LoraID uint64
	// Salt is the cache salt the event itself carries: cache_salt,
	// additional_salt, or the bare string of block 0's extra keys.
	Salt *string

	// The rest is the standardized envelope; nil means "take the registration's".
	Model     *string
	Tenant    *string
	Backend   *string
	Rank      *int
	ObjectKey string
	// ConnectorHash is the block's whole digest in hex digits, as the Mooncake master
	// reads it from the object key; "" when not published.
	ConnectorHash string
	// Envelope is true for standardized events (event_type present), whose
	// BlockSize names a context instead of describing the payload.
	Envelope bool
	// Owned is true for an engine's event about copies that its cache runner holds
	// next to the engine's own (ownership "kvcr"). A Cleared event is then about them alone.
	Owned bool
	// ID is event_id of a standardized event, 0 when not published.
	ID uint64
}

// Count returns how many events of the publisher e stands for.
func (e *Event) Count() int { return 1 + e.Joined }

// Split yields the events of the publisher that e stands for. What it yields is valid until the next one.
func (e *Event) Split() iter.Seq[*Event] {
	return func(yield func(*Event) bool) {
		if e.Joined == 0 {
			yield(e)
			return
		}
		one := *e
		one.Joined = 0
		for i := range e.Hashes {
			one.Hashes = e.Hashes[i : i+1 : i+1]
			if len(e.Tokens) > 0 {
				one.Tokens = e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize : (i+1)*e.BlockSize]
			}
			if e.HasParent && i > 0 {
				one.Parent = e.Hashes[i-1]
			}
			if !yield(&one) {
				return
			}
		}
	}
}

// Apart returns an event that moves blocks as two: one that stores them where they arrive, and one that removes them from
// where they were. Applied in this order, they leave a block its place in an index though nobody else holds it.
func (e *Event) Apart() (stored, removed Event) {
	stored, removed = *e, *e
	stored.Kind, stored.From = Stored, ""
	removed.Kind, removed.Medium, removed.From = Removed, e.From, ""
	return stored, removed
}

// PublisherID names one lifetime of a publisher, as a UUID. Zero is none.
type PublisherID [16]byte

// MaxUnknown is how many types Batch.Unknown has at the most, each of 64 bytes or less.
const MaxUnknown = 8

// Batch is what one message carried.
type Batch struct {
	// Memory is what the decoder that made the batch can use again once the events
	// are no longer needed; nil if nothing. Only that decoder knows it.
	Memory any

	// Time is the publisher's wall clock in seconds; informational only.
	Time float64
	// Rank is the publisher's data-parallel rank, -1 when nil or absent.
	Rank int
	// Events in array order, some joined. Events that could not be decoded are missing here
	// and counted in Dropped.
	Events []Event
	// Dropped counts what was skipped, by reason; nil when nothing was.
	Dropped map[Reason]int
	// Note describes the first event of a known type, or of none, that was skipped for
	// its shape, "" when none was.
	Note string
	// Unknown has the types of events that were skipped because nothing is known of
	// them, each once, at most MaxUnknown; nil when there were none.
	Unknown []string
	// Offsets is true if an event has a form whose image identifiers carry an offset.
	// The engine is then neither vLLM 0.17 nor 0.18.
	Offsets bool
	// Ambiguous counts events whose salt vLLM 0.17 and 0.18 may have meant as an image.
	Ambiguous int
	// Astray is true if the batch was not read, because its topic is not the source's, nor in the form of any source's.
	Astray bool
}

// Count returns how many events of the publisher the batch has, without those in Dropped.
func (b *Batch) Count() (n int) {
	for i := range b.Events {
		n += b.Events[i].Count()
	}
	return n
}

// CountDropped counts n skipped things under a reason.
func (b *Batch) CountDropped(r Reason, n int) {
	if b.Dropped == nil {
		b.Dropped = make(map[Reason]int)
	}
	b.Dropped[r] += n
}

// Reason names why something was dropped. The strings are metric labels.
type Reason string

const (
	// Of a message; its sequence number is treated as a gap.
	BadFrames  Reason = "bad_frames"  // frame count or sequence width
	BadPayload Reason = "bad_payload" // not one complete msgpack batch
	TooLarge   Reason = "too_large"   // a limit of the decoder or the socket; also of one event, by a limit per event
	// Of a message over another connection than the one that its source follows.
	ForeignConnection Reason = "foreign_connection"
	// Of a message while several publishers send over one connection.
	Storm Reason = "restart_storm"
	// ForeignReplay is of replies that contradict live batches, OddNumber of replies whose number the publisher cannot have reached.
	ForeignReplay Reason = "foreign_replay"
	OddNumber     Reason = "odd_number"

	// Of one event; its siblings are kept.
	BadEvent    Reason = "bad_event"    // a shape no publisher uses
	UnknownType Reason = "unknown_type" // a tag from a newer engine
	Foreign     Reason = "foreign"      // about a block elsewhere than with the engine that tells of it

	// Of one event, found by the application.
	ForeignTenant     Reason = "foreign_tenant" // names a tenant that the source may not announce for
	BlockSizeMismatch Reason = "block_size_mismatch"
	BadToken          Reason = "bad_token"           // a token id beyond limits.max_token_id, or another number
	PartialBlock      Reason = "partial_block"       // smaller than the registered size
	TooManyLookAheads Reason = "too_many_lookaheads" // of one source in one epoch
	OtherGroup        Reason = "other_group"
	GroupUnknown      Reason = "group_unknown"
	OrphanLimit       Reason = "orphan_limit"
	OverBudget        Reason = "over_budget"   // blocks, by index.max_bytes
	ContextLimit      Reason = "context_limit" // blocks of an adapter or a salt beyond limits.max_contexts
	OwnerLimit        Reason = "owner_limit"   // of a rank, group, medium, backend, model or block size beyond what a source may have
	OldAdapter        Reason = "old_adapter"   // of a version of an adapter that the engine has replaced
	UnknownHash       Reason = "unknown_hash"
	// Not dropped: a hash that another source announces with other tokens.
	ContestedHash Reason = "contested_hash"
	// Not dropped: blocks below the device that nothing but the registration gives an adapter and salt.
	AssumedIdentity Reason = "assumed_identity"
	// Not dropped: blocks below the device that wait until the device has said whose they are.
	UndecidedIdentity Reason = "undecided_identity"
	// Not dropped: blocks whose hash was the name of one that index.ghost_bytes had no room for.
	LostName       Reason = "lost_name"
	UnknownObject  Reason = "unknown_object"  // a key in no known form, and no hash
	AsideObject    Reason = "aside_object"    // no part of a block of the main KV cache
	ObjectConflict Reason = "object_conflict" // says something else than its key, or than before
	RepeatedEvent  Reason = "repeated_event"  // its number is not above the last one of its stream

	// Of one event that is applied all the same.
	AmbiguousExtraKey Reason = "ambiguous_extra_key" // its salt may be an image of vLLM 0.17 or 0.18

	// Never arrived: numbers that a stream of standardized events left out.
	MissingEvents Reason = "missing_events"
)
