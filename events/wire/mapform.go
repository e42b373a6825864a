package wire

import "example.com/conductor/events"

// decodeMapEvent reads an event of n key-value pairs: vLLM since 0.23, SGLang since
// September 2026, TensorRT-LLM streaming, and the standardized events. Keys come
// in any order, unknown ones are ignored, the last of a repeated key wins.
//
// A value of the wrong type is only a fault once the event's type is known to be
// one of ours, so that a newer engine's event counts as such whatever its fields
// look like.
func (d *decoder) decodeMapEvent(ev *events.Event, n int) events.Reason {
	var f form
	for range n {
		k, size := d.in.readHeader()
		if k != kStr {
			return events.BadEvent
		}
		key := d.in.readBytes(size)
		at := d.in.i
		if why := d.readEngineKey(ev, &f, key); why != "" {
			if d.in.err != nil {
				return why
			}
			f.fault = why
			d.in.i = at
			d.in.skipValues(1)
		}
	}
	return d.finishEvent(ev, &f)
}

// readEngineKey reads the value of a key that inference engines write.
func (d *decoder) readEngineKey(ev *events.Event, f *form, key []byte) (why events.Reason) {
	switch string(key) {
	case "type":
		f.kind, why = d.in.readKindTag(kindOfTag)
	case "block_hashes":
		why = d.readHashField(&f.block)
	case "parent_block_hash":
		why = f.parent.readParent(&d.in)
	case "token_ids":
		if ev.Tokens, ev.Bigram, f.tokens = d.readTokens(); f.tokens != events.BadToken {
			f.tokens, why = "", f.tokens
		}
	case "lookahead_token_ids":
		why = f.readAhead(&d.in)
	case "block_size":
		ev.BlockSize, why = d.in.readNatural(0)
	case "lora_id":
		why = f.adapter.readAdapter(&d.in)
	case "medium":
		ev.Medium, why = d.in.readWord()
	case "from_medium":
		why = f.from.readMedium(&d.in)
	case "to_medium":
		why = f.to.readMedium(&d.in)
	case "lora_name":
		ev.LoraName, why = d.readName(slotLora)
	case "extra_keys":
		why = f.readExtraKeys(&d.in)
	case "block_mm_infos", "mm_keys":
		why = f.readItemInfos(&d.in)
	case "group_idx":
		ev.Group, why = d.in.readNatural(-1)
	case "kv_cache_spec_kind":
		ev.GroupKind, why = d.in.readGroupKind()
	case "kv_cache_spec_sliding_window":
		ev.Window, why = d.in.readWindow()
	case "locality":
		f.foreign, why = d.in.readLocality(f.foreign)
	case "ownership":
		ev.Owned, why = d.in.readOwnership()
	case "cache_salt":
		f.cacheSalt, why = d.readSalt()
	case "metadata":
		why = d.readMetadata(f)
	case "remaining_copy_counts":
		ev.Remaining, why = d.readCounts()
	default:
		why = d.readStandardKey(ev, f, key)
	}
	return why
}

// readKindTag reads a str that names a kind; nil counts as absent.
func (c *cursor) readKindTag(kindOf func([]byte) events.Kind) (events.Kind, events.Reason) {
	k, n := c.readHeader()
	switch k {
	case kNil:
		return 0, ""
	case kStr:
		return kindOf(c.readBytes(n)), ""
	}
	return 0, events.BadEvent
}
