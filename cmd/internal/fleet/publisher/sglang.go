package publisher

import "kvconductor/cmd/internal/fleet/engine"

// SGLang writes signed hashes and repeats the whole description of a block for
// every tier. Releases before September 2026 write arrays, later ones maps. With EAGLE
// the tokens are pairs.
type SGLang struct {
	Map bool
}

func (SGLang) media() Media { return Media{"GPU", "CPU_PINNED", "DISK"} }

func (w SGLang) event(e *encoder, ev *engine.Event) {
	if w.Map {
		w.asMap(e, ev)
		return
	}
	switch ev.Kind {
	case engine.Stored:
		e.array(7)
		e.str("BlockStored")
		e.hashes(signed, ev.Hashes)
		e.parent(signed, ev)
		w.tokens(e, ev)
		e.size(ev)
		e.nil() // lora_id, always
		e.str(w.media().name(ev.Tier))
	case engine.Removed:
		e.array(3)
		e.str("BlockRemoved")
		e.hashes(signed, ev.Hashes)
		e.str(w.media().name(ev.Tier))
	case engine.Cleared:
		e.array(1)
		e.str("AllBlocksCleared")
	}
}

func (SGLang) tokens(e *encoder, ev *engine.Event) {
	if len(ev.Ahead) > 0 {
		e.pairs(ev)
		return
	}
	e.tokens(ev.Tokens)
}

func (w SGLang) asMap(e *encoder, ev *engine.Event) {
	switch ev.Kind {
	case engine.Stored:
		e.fields(7)
		e.str("type")
		e.str("BlockStored")
		e.str("block_hashes")
		e.hashes(signed, ev.Hashes)
		e.str("parent_block_hash")
		e.parent(signed, ev)
		e.str("token_ids")
		w.tokens(e, ev)
		e.str("block_size")
		e.size(ev)
		e.str("lora_id")
		e.nil()
		e.str("medium")
		e.str(w.media().name(ev.Tier))
	case engine.Removed:
		e.fields(3)
		e.str("type")
		e.str("BlockRemoved")
		e.str("block_hashes")
		e.hashes(signed, ev.Hashes)
		e.str("medium")
		e.str(w.media().name(ev.Tier))
	case engine.Cleared:
		e.fields(1)
		e.str("type")
		e.str("AllBlocksCleared")
	}
}
