package wire

import "example.com/conductor/events"

// mapped reads an event of n key-value pairs: vLLM since 0.23, SGLang since
// September 2026, TensorRT-LLM streaming, and the standardized events. Keys come
// in any order, unknown ones are ignored, the last of a repeated key wins.
//
// A value of the wrong type is only a fault once the event's type is known to be
// one of ours, so that a newer engine's event counts as such whatever its fields
// look like.
func (d *decoder) mapped(ev *events.Event, n int) events.Reason {
	var f form
	for range n {
		k, size := d.head()
		if k != kStr {
			return events.BadEvent
		}
		key := d.take(size)
		at := d.i
		if why := d.engineKey(ev, &f, key); why != "" {
			if d.err != nil {
				return why
			}
			f.fault = why
			d.i = at
			d.skip(1)
		}
	}
	return d.finish(ev, &f)
}

// engineKey reads the value of a key that inference engines write.
func (d *decoder) engineKey(ev *events.Event, f *form, key []byte) (why events.Reason) {
	switch string(key) {
	case "type":
		f.kind, why = d.tag(engineKind)
	case "block_hashes":
		why = d.hashField(&f.block)
	case "parent_block_hash":
		why = d.parentField(&f.parent)
	case "token_ids":
		if ev.Tokens, ev.Bigram, f.tokens = d.tokenList(); f.tokens != events.BadToken {
			f.tokens, why = "", f.tokens
		}
	case "lookahead_token_ids":
		why = d.aheadField(f)
	case "block_size":
		ev.BlockSize, why = d.natural(0)
	case "lora_id":
		why = d.adapterField(&f.adapter)
	case "medium":
		ev.Medium, why = d.word()
	case "lora_name":
		ev.LoraName, why = d.name(slotLora)
	case "extra_keys":
		why = d.extraKeys(f)
	case "block_mm_infos", "mm_keys":
		why = d.itemInfos(f)
	case "group_idx":
		ev.Group, why = d.natural(-1)
	case "kv_cache_spec_kind":
		ev.GroupKind, why = d.groupKind()
	case "kv_cache_spec_sliding_window":
		ev.Window, why = d.window()
	case "locality":
		f.foreign, why = d.elsewhere(f.foreign)
	case "ownership":
		ev.Owned, why = d.owned()
	case "cache_salt":
		f.cacheSalt, why = d.salt()
	case "metadata":
		why = d.metadataField(f)
	case "remaining_copy_counts":
		ev.Remaining, why = d.countList()
	default:
		why = d.standardKey(ev, f, key)
	}
	return why
}

// tag reads a str that names a kind; nil counts as absent.
func (d *decoder) tag(kindOf func([]byte) events.Kind) (events.Kind, events.Reason) {
	k, n := d.head()
	switch k {
	case kNil:
		return 0, ""
	case kStr:
		return kindOf(d.take(n)), ""
	}
	return 0, events.BadEvent
}
