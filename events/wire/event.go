package wire

import "example.com/conductor/events"

// decoder reads one payload.
type decoder struct {
	in       cursor
	lim      Limits
	siblings int // events after the current one

	memory *memory
	hashes slab[uint64]
	tokens slab[uint32]
	names  nameCache
	rank   *int // last event's rank, to share

	previous         previous
	lists            int // of hashes that the event at hand has
	ambiguousBefore  int // ambiguous when it began
	hashFrom, hashTo int // where the bytes of a list's only hash begin and end

	offsets   bool // Batch.Offsets
	ambiguous int  // Batch.Ambiguous
}

const (
	// unknownKind marks a tag no publisher known here uses.
	unknownKind events.Kind = 0xff
	// tierCleared is a clear that names its medium, Dynamo's.
	tierCleared events.Kind = 0xfe
)

// kindOfTag maps the tag of engine events.
func kindOfTag(tag []byte) events.Kind {
	switch string(tag) {
	case "BlockStored":
		return events.Stored
	case "BlockRemoved":
		return events.Removed
	case "AllBlocksCleared":
		return events.Cleared
	case "TierBlocksCleared":
		return tierCleared
	case "BlockTransferred":
		return events.Moved
	}
	return unknownKind
}

// form collects what can only be settled once all of an event is read: which
// of two keys wins, and what depends on the kind.
type form struct {
	kind     events.Kind // by tag; 0 while none was seen
	standard events.Kind // by event_type; 0 while none was seen
	fault    events.Reason
	tokens   events.Reason // why a store with these tokens is dropped

	block, seq   hashField
	parent, link parentField // parent_block_hash, parent_hash
	from, to     mediumField // of moved blocks

	cacheSalt, metaSalt, addSalt *string
	adapter                      adapterID
	extra                        int  // offset of a list of extra keys, 0 if none
	short                        bool // the array ends with the extra keys, as in vLLM 0.17 to 0.19
	infos                        int  // likewise of multimodal infos
	ahead                        int  // likewise of look-ahead tokens
	label                        int  // group_id where it names a cache group, plus 1
	foreign                      bool // the block is elsewhere
}

// hashField is a hash list that may be absent.
type hashField struct {
	list  []uint64
	given bool
}

// parentField is a parent hash that may be absent or nil.
type parentField struct {
	hash  uint64
	given bool
}

// mediumField is a medium that has to be there, though it may be nil.
type mediumField struct {
	name  string
	given bool
}

// adapterID is a lora_id that may be absent or nil. Its id is 0 if the value is no
// positive integer.
type adapterID struct {
	id    uint64
	given bool
}

// decodeEvent reads one element of the event list into ev, whose Group and BaseBlock
// are -1 and whose other fields are zero. On a non-empty reason ev is garbage;
// the cursor is behind the element in any case, unless d.err is set.
func (d *decoder) decodeEvent(ev *events.Event) events.Reason {
	start := d.in.i
	d.in.deep = false
	why := events.BadEvent
	switch k, n := d.in.readHeader(); k {
	case kArray:
		why = d.decodeArrayEvent(ev, int(n))
	case kMap:
		why = d.decodeMapEvent(ev, int(n))
		d.offsets = d.offsets || why == ""
	}
	if why != "" && d.in.err == nil {
		d.in.i = start
		d.in.skipValues(1)
	}
	return why
}

// readLocality reads a locality: a block that is not LOCAL is on storage that is no
// more this engine's than anybody's.
func (c *cursor) readLocality(foreign bool) (bool, events.Reason) {
	p, why := c.readTextBody(c.readHeader())
	return foreign || len(p) > 0 && string(p) != "LOCAL", why
}

// cacheRunner is the ownership of the KV Cache Runner.
const cacheRunner = "kvcr"

// readOwnership reads an ownership and reports whether it names the KV Cache Runner. Any
// other name is that of a tier of the engine's own.
func (c *cursor) readOwnership() (bool, events.Reason) {
	p, why := c.readTextBody(c.readHeader())
	return string(p) == cacheRunner, why
}

// readWindow reads a sliding window in tokens. It is a hint: any other value is as none.
func (c *cursor) readWindow() (int, events.Reason) {
	at := c.i
	n, why := c.readNatural(0)
	if why != "" && c.err == nil {
		c.i = at
		return 0, c.skipValue()
	}
	return n, why
}

// skipValue steps over one value.
func (c *cursor) skipValue() events.Reason {
	c.skipValues(1)
	if c.deep {
		return events.TooLarge
	}
	return ""
}

// readHashField reads a list of hashes that may be nil.
func (d *decoder) readHashField(f *hashField) events.Reason {
	list, why := d.readHashList()
	*f = hashField{list, why == ""}
	return why
}

// readParent reads a hash or nil.
func (f *parentField) readParent(c *cursor) events.Reason {
	k, n := c.readHeader()
	*f = parentField{}
	if k == kNil {
		return ""
	}
	h, ok := c.readHashBody(k, n)
	if !ok {
		return events.BadEvent
	}
	*f = parentField{h, true}
	return ""
}

// readMedium reads a medium or nil.
func (f *mediumField) readMedium(c *cursor) (why events.Reason) {
	f.name, why = c.readWord()
	f.given = why == ""
	return why
}

// readAdapter reads a lora_id of any type or nil.
func (f *adapterID) readAdapter(c *cursor) events.Reason {
	at := c.i
	k, n := c.readHeader()
	*f = adapterID{given: k != kNil}
	switch k {
	case kUint:
		f.id = n
	case kNil:
	default:
		c.i = at
		return c.skipValue()
	}
	return ""
}

// resolveKind names the kind. Both tags may be there (the Mooncake master's legacy
// keys); then they have to agree.
func (f *form) resolveKind() (events.Kind, events.Reason) {
	switch {
	case f.kind == 0 && f.standard == 0:
		return 0, events.BadEvent
	case f.kind == unknownKind || f.standard == unknownKind:
		return 0, events.UnknownType
	case f.kind == 0:
		return f.standard, ""
	case f.standard != 0 && f.standard != f.kind:
		return 0, events.BadEvent
	}
	return f.kind, ""
}

// finishEvent moves what the form collected into ev.
func (d *decoder) finishEvent(ev *events.Event, f *form) events.Reason {
	var why events.Reason
	if ev.Kind, why = f.resolveKind(); why != "" {
		return why
	}
	if f.fault != "" {
		return f.fault
	}
	ev.Envelope = f.standard != 0
	if f.foreign && !ev.Envelope && ev.Kind != events.Cleared {
		return events.Foreign
	}
	ev.Owned = ev.Owned && !ev.Envelope
	if ev.Group < 0 && f.label > 0 {
		ev.Group = f.label - 1
	}
	switch {
	case f.cacheSalt != nil:
		ev.Salt = f.cacheSalt
	case f.metaSalt != nil:
		ev.Salt = f.metaSalt
	default:
		ev.Salt = f.addSalt
	}

	if ev.Kind == tierCleared {
		if ev.Medium == "" {
			return events.BadEvent // all would go
		}
		ev.Kind = events.Cleared
	}
	if ev.Kind == events.Cleared {
		ev.Tokens, ev.Ahead, ev.Bigram, ev.Remaining = nil, 0, false, nil
		return ""
	}
	if !f.block.given && !f.seq.given && ev.ObjectKey == "" {
		return events.BadEvent
	}
	hashes, spare := f.block.list, f.seq.list
	parent, other := f.parent, f.link
	if ev.Envelope {
		hashes, spare = spare, hashes
		parent, other = other, parent
	}
	if ev.Hashes = hashes; len(hashes) == 0 {
		ev.Hashes = spare
	}

	if ev.Kind == events.Moved {
		if !f.block.given || !f.from.given || !f.to.given {
			return events.BadEvent
		}
		ev.From, ev.Medium, ev.ObjectKey, ev.ConnectorHash = f.from.name, f.to.name, "", ""
		ev.Tokens, ev.Ahead, ev.Bigram, ev.Remaining, ev.BlockSize = nil, 0, false, nil, 0
		return ""
	}
	if ev.Kind == events.Removed {
		ev.Tokens, ev.Ahead, ev.Bigram = nil, 0, false
		if ev.Remaining != nil && len(ev.Remaining) != len(ev.Hashes) {
			return events.BadEvent
		}
		return ""
	}
	ev.Remaining = nil
	if f.tokens != "" {
		return f.tokens
	}
	if !parent.given {
		parent = other
	}
	ev.Parent, ev.HasParent = parent.hash, parent.given
	if ev.Bigram {
		ev.Ahead = 1
	}
	if f.ahead > 0 {
		end := d.in.i
		why = d.applyLookAhead(ev, f.ahead)
		d.in.i = end
		if why != "" {
			return why
		}
	}
	if ev.LoraName == nil && f.adapter.given && f.extra > 0 {
		end := d.in.i
		ev.LoraName, why = d.findExtraAdapter(f.extra)
		d.in.i = end
		if why != "" {
			return why
		}
	}
	if !ev.Envelope {
		ev.LoraID = f.adapter.id
	}
	if ev.Salt == nil && f.extra > 0 && (!ev.HasParent || ev.Parent == 0) && ev.BaseBlock <= 0 {
		end := d.in.i
		if ev.Salt, why = d.findExtraSalt(f, ev.LoraName); why != "" {
			return why
		}
		d.in.i = end
	}
	if ev.Tokens != nil && (f.extra > 0 || f.infos > 0) {
		end := d.in.i
		ev.Items, why = d.collectItems(f, ev)
		d.in.i = end
	}
	return why
}
