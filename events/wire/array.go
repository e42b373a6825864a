package wire

import (
	"bytes"

	"example.com/conductor/events"
	"example.com/conductor/tiers"
)

// Events as arrays, the tag first. Every publisher appends fields as it grows
// and only position and type distinguish them:
//
//	BlockStored
//	  1 block_hashes   required, as are 2 to 4
//	  2 parent_block_hash
//	  3 token_ids
//	  4 block_size
//	  5 lora_id        the number of an adapter in its process, from 1
//	  6 medium         vLLM 0.10.2; SGLang since February 2026
//	  7 lora_name      vLLM 0.14; or a map, SGLang's metadata; or an array,
//	                   Dynamo's components
//	  8 extra_keys     vLLM 0.17
//	  9 group_idx      vLLM 0.20; here or later an array of Dynamo's
//	                   multimodal infos, which moves the rest up by one
//	 10 kv_cache_spec_kind
//	 11 kv_cache_spec_sliding_window
//	 12 locality       Dynamo's tail; an early one has the kind at 9
//	BlockRemoved
//	  1 block_hashes   required
//	  2 medium
//	  3 group_idx, and so on as 9 to 12 above
//	AllBlocksCleared
//	  1 medium         ATOM; ownership, Dynamo; any other text says something else
//	TierBlocksCleared
//	  1 medium         required
//	BlockTransferred   ATOM's
//	  1 block_hashes   required, as are 2 and 3
//	  2 from_medium
//	  3 to_medium
//	  4 group_idx
//
// An element behind the medium whose type its field never has is what a later or
// another build appended: it is stepped over.
//
// What the Mooncake master sent before is in obsolete.go.

// decodeArrayEvent reads an event of n elements.
func (d *decoder) decodeArrayEvent(ev *events.Event, n int) events.Reason {
	if n == 0 {
		return events.BadEvent
	}
	k, size := d.in.readHeader()
	if k != kStr {
		return events.BadEvent
	}
	var f form
	tag := d.in.readBytes(size)
	f.kind = kindOfTag(tag)
	var why events.Reason
	switch f.kind {
	case events.Stored:
		why = d.decodeStoredArray(ev, &f, n)
	case events.Removed:
		why = d.decodeRemovedArray(ev, &f, n)
	case events.Moved:
		why = d.decodeMovedArray(ev, &f, n)
	case events.Cleared:
		if n > 1 && d.in.peekKind() == kStr {
			n--
			if ev.Medium, why = d.in.readWord(); tiers.ParseMedium(ev.Medium).Tier == tiers.Other {
				ev.Owned = ev.Medium == cacheRunner
				ev.Medium = ""
			}
		}
		if why == "" {
			why = d.in.skipElements(n - 1)
		}
	case tierCleared:
		if n < 2 {
			return events.BadEvent
		}
		if ev.Medium, why = d.in.readWord(); why == "" {
			why = d.in.skipElements(n - 2)
		}
	default:
		f.kind, why = d.decodeObsoleteEvent(ev, &f, tag, n)
	}
	if why != "" {
		return why
	}
	return d.finishEvent(ev, &f)
}

func (d *decoder) decodeStoredArray(ev *events.Event, f *form, n int) events.Reason {
	if n < 5 {
		return events.BadEvent
	}
	at := 1
	for i := 1; i < n; i++ {
		if at >= 9 && at <= 12 && d.in.bytesLeft() > 0 && isArray(d.in.b[d.in.i]) {
			if why := f.readItemInfos(&d.in); why != "" {
				return why
			}
			continue
		}
		if at == 9 && d.in.bytesLeft() > 0 && isStr(d.in.b[d.in.i]) {
			at = 10
		}
		var why events.Reason
		if at > 6 && !fieldAccepts(at, d.in.peekKind()) {
			why = d.in.skipValue()
		} else {
			why = d.readStoredField(ev, f, at)
		}
		if why != "" {
			return why
		}
		at++
	}
	f.short = at == 9
	d.offsets = d.offsets || at > 9
	return ""
}

// fieldAccepts reports whether the field at a position behind the medium can have a value
// of a kind.
func fieldAccepts(at int, k kind) bool {
	switch {
	case k == kNil, k == kNone:
		return true
	case at == 7:
		return k == kStr || k == kMap || k == kArray
	case at == 8:
		return k == kArray
	case at == 9:
		return k == kUint
	case at == 10, at == 12:
		return k == kStr
	}
	return true
}

func (d *decoder) readStoredField(ev *events.Event, f *form, at int) (why events.Reason) {
	switch at {
	case 1:
		why = d.readHashField(&f.block)
	case 2:
		why = f.parent.readParent(&d.in)
	case 3:
		ev.Tokens, ev.Bigram, why = d.readTokens()
	case 4:
		ev.BlockSize, why = d.in.readNatural(0)
	case 5:
		why = f.adapter.readAdapter(&d.in)
	case 6:
		ev.Medium, why = d.in.readWord()
	case 7:
		why = d.readSeventhField(ev, f)
	case 8:
		why = f.readExtraKeys(&d.in)
	case 9:
		ev.Group, why = d.in.readNatural(-1)
	case 10:
		ev.GroupKind, why = d.in.readGroupKind()
	case 11:
		ev.Window, why = d.in.readWindow()
	case 12:
		// Any other word than REMOTE may be what a build without localities appended.
		var p []byte
		p, why = d.in.readTextBody(d.in.readHeader())
		f.foreign = bytes.EqualFold(p, []byte("REMOTE"))
	default:
		why = d.in.skipValue()
	}
	return why
}

// readSeventhField reads the slot that three publishers use in three ways.
func (d *decoder) readSeventhField(ev *events.Event, f *form) events.Reason {
	at := d.in.i
	k, n := d.in.readHeader()
	switch k {
	case kMap:
		return d.readMetadataPairs(f, int(n))
	case kArray:
		d.in.i = at
		return d.in.skipValue()
	}
	p, why := d.in.readTextBody(k, n)
	if p != nil {
		ev.LoraName = d.names.shareName(slotLora, p)
	}
	return why
}

func (d *decoder) decodeRemovedArray(ev *events.Event, f *form, n int) (why events.Reason) {
	if n < 2 {
		return events.BadEvent
	}
	why = d.readHashField(&f.block)
	d.offsets = d.offsets || n > 3
	for i := 2; i < n && why == ""; i++ {
		// A removal takes blocks away whatever else it says: a field of
		// another type here is something else.
		at, field := d.in.i, i+6
		if i == 2 {
			field = 6
		}
		if d.readStoredField(ev, f, field) != "" && d.in.err == nil {
			d.in.i = at
			why = d.in.skipValue()
		}
	}
	return why
}

func (d *decoder) decodeMovedArray(ev *events.Event, f *form, n int) (why events.Reason) {
	if n < 4 {
		return events.BadEvent
	}
	if why = d.readHashField(&f.block); why == "" {
		why = f.from.readMedium(&d.in)
	}
	if why == "" {
		why = f.to.readMedium(&d.in)
	}
	if n -= 4; why == "" && n > 0 && fieldAccepts(9, d.in.peekKind()) {
		n--
		ev.Group, why = d.in.readNatural(-1)
	}
	if why != "" {
		return why
	}
	return d.in.skipElements(n)
}

// skipElements steps over the n elements, if any, that later builds appended.
func (c *cursor) skipElements(n int) events.Reason {
	for range n {
		if why := c.skipValue(); why != "" {
			return why
		}
	}
	return ""
}
