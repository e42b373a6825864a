package publisher

import (
	"fmt"

	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/truth"
)

// fullAttention is the kind of the one cache group the engines have.
const fullAttention = "full_attention"

// VLLMMap is vLLM from 0.24 on: events are maps, hashes unsigned integers, and
// keys whose value is nil are left out where the schema has a default. 0.33 adds the
// look-ahead.
type VLLMMap struct{}

// event writes the common keys and those that apply: extra keys on the device only, no
// kind in placeholders, a locality on disk, a look-ahead if the engine has one.
func (VLLMMap) event(ev *engine.Event, blockSize int) any {
	form, media := unsigned, Media{"GPU", "CPU", "STORAGE"}
	switch ev.Kind {
	case engine.Removed:
		return fields{"type", "BlockRemoved", "block_hashes", hashes{form, ev.Hashes}, "medium", media.name(ev.Tier), "group_idx", 0}
	case engine.Cleared:
		return fields{"type", "AllBlocksCleared"}
	}
	e := fields{"type", "BlockStored", "block_hashes", hashes{form, ev.Hashes}, "parent_block_hash", parent{form, ev},
		"token_ids", append(tokens{}, ev.Tokens...), "block_size", blockSize, "lora_id", nil, "medium", media.name(ev.Tier), "lora_name",
		nil}
	if ev.Tier == truth.Device {
		e = append(e, "extra_keys", make([]any, len(ev.Hashes)))
	}
	e = append(e, "group_idx", 0)
	if len(ev.Tokens) > 0 {
		e = append(e, "kv_cache_spec_kind", fullAttention)
	}
	if ev.Tier == truth.Disk {
		e = append(e, "locality", "LOCAL")
	}
	if ev.Session {
		e = append(e, "session_id", "session")
	}
	if len(ev.Ahead) > 0 {
		e = append(e, "lookahead_token_ids", windows(ev))
	}
	return e
}

// VLLMArray is vLLM before 0.24: events are arrays whose length grew with the
// releases. 7 has a medium, 8 the adapter's name, 9 extra keys, 10 a group, 12
// the group's kind.
type VLLMArray struct {
	Length int
	// Digests publishes whole digests instead of integers.
	Digests bool
	// Media are the tier names; empty is GPU, CPU and FS.
	Media Media
}

func (w VLLMArray) media() Media {
	if w.Media == (Media{}) {
		return Media{"GPU", "CPU", "FS"}
	}
	return w.Media
}

func (w VLLMArray) form() hashForm {
	if w.Digests {
		return whole
	}
	return unsigned
}

func (w VLLMArray) event(ev *engine.Event, blockSize int) any {
	switch ev.Kind {
	case engine.Removed:
		e := []any{"BlockRemoved", hashes{w.form(), ev.Hashes}, w.media().name(ev.Tier)}
		if w.Length >= 10 {
			e = append(e, 0) // group_idx
		}
		return e
	case engine.Cleared:
		return []any{"AllBlocksCleared"}
	}
	switch w.Length {
	case 7, 8, 9, 10, 12:
	default:
		panic(fmt.Sprintf("BUG: no release wrote BlockStored with a medium and %d elements", w.Length))
	}
	if len(ev.Ahead) > 0 {
		panic("BUG: no release that wrote arrays had a look-ahead")
	}
	var extra, kind any
	if ev.Tier == truth.Device {
		extra = make([]any, len(ev.Hashes))
	}
	if len(ev.Tokens) > 0 {
		kind = fullAttention
	}
	// Without names: adapter's id and name, group, sliding window.
	e := []any{"BlockStored", hashes{w.form(), ev.Hashes}, parent{w.form(), ev}, append(tokens{}, ev.Tokens...), blockSize, nil,
		w.media().name(ev.Tier), nil, extra, 0, kind, nil}
	return e[:w.Length]
}
