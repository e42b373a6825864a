package publisher

import (
	"fmt"

	"kvconductor/cmd/internal/fleet/engine"
	"kvconductor/cmd/internal/fleet/truth"
)

// fullAttention is the kind of the one cache group the engines have.
const fullAttention = "full_attention"

// VLLMMap is vLLM from 0.24 on: events are maps, hashes unsigned integers, and
// keys whose value is nil are left out where the schema has a default. 0.33 adds the
// look-ahead.
type VLLMMap struct{}

func (VLLMMap) media() Media { return Media{"GPU", "CPU", "STORAGE"} }

func (w VLLMMap) event(e *encoder, ev *engine.Event) {
	switch ev.Kind {
	case engine.Stored:
		w.stored(e, ev)
	case engine.Removed:
		e.fields(4)
		e.str("type")
		e.str("BlockRemoved")
		e.str("block_hashes")
		e.hashes(unsigned, ev.Hashes)
		e.str("medium")
		e.str(w.media().name(ev.Tier))
		e.str("group_idx")
		e.int(0)
	case engine.Cleared:
		e.fields(1)
		e.str("type")
		e.str("AllBlocksCleared")
	}
}

// stored writes the eight keys that are always there, then what applies: extra
// keys on the device only, no kind in placeholders, a locality on disk, a look-ahead
// where the engine has one.
func (w VLLMMap) stored(e *encoder, ev *engine.Event) {
	device, disk, described := ev.Tier == truth.Device, ev.Tier == truth.Disk, len(ev.Tokens) > 0
	ahead := len(ev.Ahead) > 0
	n := 9
	for _, present := range []bool{device, described, disk, ev.Session, ahead} {
		if present {
			n++
		}
	}
	e.fields(n)
	e.str("type")
	e.str("BlockStored")
	e.str("block_hashes")
	e.hashes(unsigned, ev.Hashes)
	e.str("parent_block_hash")
	e.parent(unsigned, ev)
	e.str("token_ids")
	e.tokens(ev.Tokens)
	e.str("block_size")
	e.size(ev)
	e.str("lora_id")
	e.nil()
	e.str("medium")
	e.str(w.media().name(ev.Tier))
	e.str("lora_name")
	e.nil()
	if device {
		e.str("extra_keys")
		e.nils(len(ev.Hashes))
	}
	e.str("group_idx")
	e.int(0)
	if described {
		e.str("kv_cache_spec_kind")
		e.str(fullAttention)
	}
	if disk {
		e.str("locality")
		e.str("LOCAL")
	}
	if ev.Session {
		e.str("session_id")
		e.str("session")
	}
	if ahead {
		e.str("lookahead_token_ids")
		e.windows(ev)
	}
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

func (w VLLMArray) event(e *encoder, ev *engine.Event) {
	switch ev.Kind {
	case engine.Stored:
		w.stored(e, ev)
	case engine.Removed:
		n := 3
		if w.Length >= 10 {
			n = 4
		}
		e.array(n)
		e.str("BlockRemoved")
		e.hashes(w.form(), ev.Hashes)
		e.str(w.media().name(ev.Tier))
		if n == 4 {
			e.int(0)
		}
	case engine.Cleared:
		e.array(1)
		e.str("AllBlocksCleared")
	}
}

func (w VLLMArray) stored(e *encoder, ev *engine.Event) {
	switch w.Length {
	case 7, 8, 9, 10, 12:
	default:
		panic(fmt.Sprintf("BUG: no release wrote BlockStored with a medium and %d elements", w.Length))
	}
	if len(ev.Ahead) > 0 {
		panic("BUG: no release that wrote arrays had a look-ahead")
	}
	e.array(w.Length)
	e.str("BlockStored")
	e.hashes(w.form(), ev.Hashes)
	e.parent(w.form(), ev)
	e.tokens(ev.Tokens)
	e.size(ev)
	e.nil() // lora_id
	e.str(w.media().name(ev.Tier))
	if w.Length >= 8 {
		e.nil() // lora_name
	}
	if w.Length >= 9 {
		if ev.Tier == truth.Device {
			e.nils(len(ev.Hashes))
		} else {
			e.nil()
		}
	}
	if w.Length >= 10 {
		e.int(0) // group_idx
	}
	if w.Length >= 12 {
		if len(ev.Tokens) > 0 {
			e.str(fullAttention)
		} else {
			e.nil()
		}
		e.nil() // sliding window
	}
}
