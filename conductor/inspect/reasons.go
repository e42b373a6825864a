package inspect

// Reason says in one word why a block is missing.
type Reason string

// Reasons, in the order of their use to an operator.
const (
	Removed         Reason = "removed"           // an event removed the block
	Refused         Reason = "refused"           // a memory bound or a limit kept the block out
	ShardsMissing   Reason = "shards_missing"    // the pool lacks objects of the block
	ChunkInPart     Reason = "chunk_in_part"     // the prompt shares only a part of a chunk
	AttentionGroup  Reason = "attention_group"   // a group of the engine's layers cannot go on there
	DrafterBlock    Reason = "drafter_block"     // a drafter has the last block computed again
	ParentUnknown   Reason = "parent_unknown"    // blocks of the prompt wait for their parent
	OtherTenant     Reason = "other_tenant"      // held for another tenant
	OtherModel      Reason = "other_model"       // held for another model
	OtherBlockSize  Reason = "other_block_size"  // held in blocks of another size
	OtherAdapter    Reason = "other_adapter"     // held under another adapter
	OtherSalt       Reason = "other_salt"        // held under another salt
	Cleared         Reason = "cleared"           // the publisher cleared the medium
	Expired         Reason = "expired"           // blocks of the medium outlived their ttl
	SourcePartial   Reason = "source_partial"    // the history of the source is incomplete
	SourceStale     Reason = "source_stale"      // the source has no connection
	SourceBehind    Reason = "source_behind"     // batches wait to be applied
	TokensUnknown   Reason = "tokens_unknown"    // blocks wait for their tokens
	GroupNotIndexed Reason = "group_not_indexed" // blocks of encoders' groups and of unknown ones are not indexed
	PromptEnds      Reason = "prompt_ends"       // the block needs tokens behind the prompt
	NoEvents        Reason = "no_events"         // the engine publishes no events
	NeverAnnounced  Reason = "never_announced"   // no event has announced the block
	NotRegistered   Reason = "not_registered"    // of a deployment: no instance has a row
	NotDiscovered   Reason = "not_discovered"    // of a deployment: an engine has not told where it publishes
	UnsaltedHidden  Reason = "unsalted_hidden"   // of a deployment: blocks without a salt are hidden
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{Removed, Refused, ShardsMissing, ChunkInPart, AttentionGroup, DrafterBlock, ParentUnknown,
		OtherTenant, OtherModel, OtherBlockSize, OtherAdapter, OtherSalt, Cleared, Expired,
		SourcePartial, SourceStale, SourceBehind, TokensUnknown, GroupNotIndexed, PromptEnds, NoEvents, NeverAnnounced, NotRegistered,
		NotDiscovered, UnsaltedHidden}
}

// Cause is one reason why a block is missing.
type Cause struct {
	Reason  Reason
	Certain bool    // false: the reason fits, and the block may be missing for another one
	Seq     *uint64 // batch that took the block
	Text    string  // sentences
}
