package publisher

import "example.com/conductor/lab/sim/engine"

// SGLang writes signed hashes and repeats the whole description of a block for
// every tier. Releases before September 2026 write arrays, later ones maps. With EAGLE
// the tokens are pairs.
type SGLang struct {
	Map bool
}

func (w SGLang) event(ev *engine.Event, blockSize int) any {
	e := w.fields(ev, blockSize)
	if w.Map {
		return e
	}
	return e.values()
}

func (SGLang) fields(ev *engine.Event, blockSize int) fields {
	form, media := signed, Media{"GPU", "CPU_PINNED", "DISK"}
	switch ev.Kind {
	case engine.Removed:
		return fields{"type", "BlockRemoved", "block_hashes", hashes{form, ev.Hashes}, "medium", media.name(ev.Tier)}
	case engine.Cleared:
		return fields{"type", "AllBlocksCleared"}
	}
	var described any = append(tokens{}, ev.Tokens...)
	if len(ev.Ahead) > 0 {
		described = pairs(ev)
	}
	return fields{"type", "BlockStored", "block_hashes", hashes{form, ev.Hashes}, "parent_block_hash", parent{form, ev},
		"token_ids", described, "block_size", blockSize, "lora_id", nil, "medium", media.name(ev.Tier)}
}
