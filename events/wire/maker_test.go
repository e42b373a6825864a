package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"example.com/conductor/events"
)

// maker draws events and writes each in one of the publishers' shapes.
type maker struct{ t *rapid.T }

func (m maker) coin(label string) bool { return rapid.Bool().Draw(m.t, label) }

func (m maker) pick(n int, label string) int { return rapid.IntRange(0, n-1).Draw(m.t, label) }

// integer returns v as one of the Go types that hold it, so that an encoder
// without compact integers uses every width.
func (m maker) integer(v int64) any {
	forms := []any{v}
	if v >= math.MinInt8 && v <= math.MaxInt8 {
		forms = append(forms, int8(v))
	}
	if v >= math.MinInt16 && v <= math.MaxInt16 {
		forms = append(forms, int16(v))
	}
	if v >= math.MinInt32 && v <= math.MaxInt32 {
		forms = append(forms, int32(v))
	}
	if v >= 0 {
		forms = append(forms, uint64(v))
		if v <= math.MaxUint8 {
			forms = append(forms, uint8(v))
		}
		if v <= math.MaxUint16 {
			forms = append(forms, uint16(v))
		}
		if v <= math.MaxUint32 {
			forms = append(forms, uint32(v))
		}
	}
	return forms[m.pick(len(forms), "width")]
}

// hash returns a hash and one of its spellings.
func (m maker) hash() (uint64, any) {
	h := rapid.Uint64().Draw(m.t, "hash")
	full := binary.BigEndian.AppendUint64(rapid.SliceOfN(rapid.Byte(), 24, 24).Draw(m.t, "digest"), h)
	switch m.pick(6, "spelling") {
	case 0:
		return h, h
	case 1:
		return h, m.integer(int64(h))
	case 2:
		return h, full
	case 3:
		return h, full[16:]
	case 4:
		return h, string(full[24:])
	default:
		return h & 0xffffff, full[29:]
	}
}

func (m maker) name(label string) string {
	return rapid.StringN(1, 8, 40).Draw(m.t, label)
}

func (m maker) optional(label string) *string {
	if m.coin(label + "?") {
		return nil
	}
	s := m.name(label)
	return &s
}

func orNil(p *string) any {
	if p == nil {
		return nil
	}
	return *p
}

// junk returns a value of any shape, at most depth levels deep.
func (m maker) junk(depth int) any {
	switch n := m.pick(9, "junk"); {
	case n == 0:
		return nil
	case n == 1:
		return m.coin("bool")
	case n == 2:
		return rapid.Float64().Draw(m.t, "float")
	case n == 3:
		return float32(m.pick(99, "float32"))
	case n == 4:
		return m.integer(rapid.Int64().Draw(m.t, "int"))
	case n == 5:
		return rapid.SliceOf(rapid.Byte()).Draw(m.t, "bytes")
	case n == 6 || depth == 0:
		return rapid.String().Draw(m.t, "text")
	case n == 7:
		o := obj{} // not nil, which the encoder writes as nil
		for range m.pick(4, "pairs") {
			o = append(o, m.junk(0), m.junk(depth-1))
		}
		return o
	default:
		a := arr{}
		for range m.pick(4, "elements") {
			a = append(a, m.junk(depth-1))
		}
		return a
	}
}

// fields are an event's values as an encoder gets them.
type fields struct{ hashes, parent, tokens, blockSize, medium, lora, group any }

// event returns an event and a shape of it.
func (m maker) event() (events.Event, any) {
	ev := events.Event{Group: -1, BaseBlock: -1, Kind: events.Stored + events.Kind(m.pick(4, "kind"))}
	if ev.Kind == events.Cleared {
		return ev, []any{
			arr{"AllBlocksCleared"}, obj{"type", "AllBlocksCleared"}, obj{m.unknownKey(), m.junk(3), "type", "AllBlocksCleared"},
		}[m.pick(3, "shape")]
	}
	var f fields
	hashes := arr{}
	for range rapid.IntRange(0, 5).Draw(m.t, "blocks") {
		h, v := m.hash()
		ev.Hashes = append(ev.Hashes, h)
		hashes = append(hashes, v)
	}
	f.hashes = hashes
	if m.coin("medium?") {
		ev.Medium = []string{"GPU", "CPU_PINNED", "tape"}[m.pick(3, "medium")]
		f.medium = ev.Medium
	}
	if m.coin("group?") {
		ev.Group = m.pick(300, "group")
		f.group = m.integer(int64(ev.Group))
	}
	if ev.Kind == events.Moved {
		return m.move(ev, f)
	}
	if ev.Kind == events.Stored {
		m.store(&ev, &f)
	}
	switch m.pick(3, "shape") {
	case 0:
		return ev, m.array(&ev, f)
	case 1:
		return ev, m.object(&ev, f)
	}
	return m.standard(ev, f)
}

// move returns an event that moves blocks, and a shape of it.
func (m maker) move(ev events.Event, f fields) (events.Event, any) {
	var from any
	if m.coin("from?") {
		ev.From = []string{"GPU", "DISK", "tape"}[m.pick(3, "from")]
		from = ev.From
	}
	if m.coin("array?") {
		list := arr{"BlockTransferred", f.hashes, from, f.medium}
		if f.group != nil || m.coin("longer?") {
			list = append(list, f.group)
		}
		return ev, list
	}
	pairs := [][2]any{{"type", "BlockTransferred"}, {"block_hashes", f.hashes}, {"from_medium", from}, {"to_medium", f.medium},
		{m.unknownKey(), m.junk(3)}}
	if f.group != nil {
		pairs = append(pairs, [2]any{"group_idx", f.group})
	}
	return ev, m.shuffled(pairs)
}

// store draws what only stores have.
func (m maker) store(ev *events.Event, f *fields) {
	if m.coin("parent?") {
		ev.Parent, f.parent = m.hash()
		ev.HasParent = true
	}
	ev.BlockSize = m.pick(300, "block size")
	f.blockSize = m.integer(int64(ev.BlockSize))
	ids := rapid.SliceOfN(rapid.Int64Range(math.MinInt32, math.MaxUint32), 0, 12).Draw(m.t, "tokens")
	list := arr{}
	switch m.pick(4, "token form") {
	case 0:
		f.tokens = nil
		ids = nil
	case 1:
		for _, id := range ids {
			list = append(list, m.integer(id))
		}
		f.tokens = list
	case 2:
		for i := range max(len(ids)-1, 0) {
			list = append(list, arr{m.integer(ids[i]), m.integer(ids[i+1])})
			ev.Bigram, ev.Ahead = true, 1
		}
		if !ev.Bigram {
			ids = nil
		}
		f.tokens = list
	case 3:
		for _, id := range ids {
			list = append(list, m.integer(id))
		}
		f.tokens = append(list, "<image>")
		ids = nil
	}
	for _, id := range ids {
		ev.Tokens = append(ev.Tokens, uint32(id))
	}
	ev.LoraName = m.optional("lora")
	f.lora = orNil(ev.LoraName)
}

// array writes the positional form, cut at any length publishers used; the
// cut-off fields are taken from ev.
func (m maker) array(ev *events.Event, f fields) any {
	if ev.Kind == events.Removed {
		a := arr{"BlockRemoved", f.hashes, f.medium, f.group, "mamba", 128, nil, m.junk(2)}[:2+m.pick(7, "length")]
		if len(a) > 4 {
			ev.GroupKind = "mamba"
		}
		if len(a) > 5 {
			ev.Window = 128
		}
		if len(a) < 4 {
			ev.Group = -1
		}
		if len(a) < 3 {
			ev.Medium = ""
		}
		return a
	}
	ev.GroupKind = "mamba"
	id, adapter := m.adapter()
	a := arr{"BlockStored", f.hashes, f.parent, f.tokens, f.blockSize, adapter, f.medium, f.lora, nil, f.group, "mamba", 128, nil,
		m.junk(2)}
	a = a[:5+m.pick(10, "length")]
	if len(a) < 11 {
		ev.GroupKind = ""
	}
	if len(a) > 11 {
		ev.Window = 128
	}
	if len(a) < 10 {
		ev.Group = -1
	}
	if len(a) < 8 {
		ev.LoraName = nil
	}
	if len(a) < 7 {
		ev.Medium = ""
	}
	if len(a) >= 8 && m.coin("metadata?") {
		salt := m.name("salt")
		a[7] = obj{"session_id", m.junk(1), "cache_salt", salt}
		ev.LoraName, ev.Salt = nil, &salt
	}
	if len(a) > 5 {
		ev.LoraID = id
	}
	return a
}

// adapter draws a lora_id of any type, and the number it is, 0 for none.
func (m maker) adapter() (uint64, any) {
	switch m.pick(4, "adapter") {
	case 0:
		return 0, nil
	case 1:
		return 0, m.name("adapter")
	}
	id := m.pick(9, "number") - 4
	return uint64(max(id, 0)), m.integer(int64(id))
}

// object writes the engines' map form.
func (m maker) object(ev *events.Event, f fields) any {
	pairs := [][2]any{{m.unknownKey(), m.junk(3)}, {"block_hashes", f.hashes}, {"medium", f.medium}, {"group_idx", f.group}}
	if m.coin("owned?") {
		ev.Owned = true
		pairs = append(pairs, [2]any{"ownership", "kvcr"})
	}
	if ev.Kind == events.Stored {
		pairs = append(pairs, [2]any{"type", "BlockStored"}, [2]any{"parent_block_hash", f.parent}, [2]any{"token_ids", f.tokens},
			[2]any{"block_size", f.blockSize}, [2]any{"lora_name", f.lora})
		id, adapter := m.adapter()
		pairs = append(pairs, [2]any{"lora_id", adapter})
		ev.LoraID = id
		if m.coin("salt?") {
			salt := m.name("salt")
			ev.Salt = &salt
			pairs = append(pairs, [2]any{"cache_salt", salt})
		}
		if m.coin("session?") {
			pairs = append(pairs, [2]any{"session_id", m.name("session")})
		}
		if m.coin("items?") {
			pairs = append(pairs, m.items(ev))
		}
	} else {
		pairs = append(pairs, [2]any{"type", "BlockRemoved"})
		if m.coin("remaining?") && len(ev.Hashes) > 0 {
			counts := arr{}
			for range ev.Hashes {
				n := m.pick(300, "count")
				ev.Remaining = append(ev.Remaining, n)
				counts = append(counts, n)
			}
			pairs = append(pairs, [2]any{"remaining_copy_counts", counts})
		}
	}
	return m.shuffled(pairs)
}

// items draws the items of every block, and the field that tells of them.
func (m maker) items(ev *events.Event) [2]any {
	infos, keys := arr{}, arr{}
	all, listed, some := make([][]uint64, len(ev.Hashes)), m.coin("infos?"), false
	for i := range ev.Hashes {
		objects, list := arr{}, arr{}
		for range m.pick(3, "items") {
			n := rapid.Uint64().Draw(m.t, "item")
			digest := fmt.Sprintf("%016x%048x", n, m.pick(9, "rest"))
			all[i], some = append(all[i], n), true
			objects = append(objects, obj{"offsets", m.junk(1), "mm_hash", n})
			list = append(list, arr{digest, m.integer(int64(m.pick(99, "offset") - 50))})
		}
		if m.coin("embeddings?") && !listed {
			p := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(m.t, "embeddings")
			all[i], some = append(all[i], xxh3.Hash(append([]byte{0xc4, 32}, p...))), true
			list = append(list, p)
		}
		slices.Sort(all[i])
		infos, keys = append(infos, obj{"mm_objects", objects}), append(keys, list)
	}
	if some && ev.Tokens != nil {
		ev.Items = all
	}
	if listed {
		return [2]any{"block_mm_infos", infos}
	}
	return [2]any{"extra_keys", keys}
}

// standard writes a standardized event.
func (m maker) standard(ev events.Event, f fields) (events.Event, any) {
	ev.Envelope = true
	ev.ID = rapid.Uint64().Draw(m.t, "id")
	ev.Model, ev.Tenant, ev.Backend, ev.Salt = m.optional("model"), m.optional("tenant"), m.optional("backend"), m.optional("salt")
	ev.Group = -1
	pairs := [][2]any{{m.unknownKey(), m.junk(3)}, {"event_type", ev.Kind.String()}, {"event_id", ev.ID}, {"seq_hashes", f.hashes},
		{"medium", f.medium},
		{"model_name", orNil(ev.Model)}, {"tenant_id", orNil(ev.Tenant)}, {"backend_id", orNil(ev.Backend)},
		{"additional_salt", orNil(ev.Salt)}}
	if m.coin("rank?") {
		rank := m.pick(9, "rank")
		ev.Rank = &rank
		pairs = append(pairs, [2]any{"dp_rank", rank})
	}
	if m.coin("base?") {
		ev.BaseBlock = m.pick(300, "base")
		pairs = append(pairs, [2]any{"base_block_idx", m.integer(int64(ev.BaseBlock))})
	}
	if ev.Kind == events.Stored {
		pairs = append(pairs, [2]any{"parent_hash", f.parent}, [2]any{"token_ids", f.tokens}, [2]any{"block_size", f.blockSize},
			[2]any{"lora_name", f.lora})
		if m.coin("legacy?") && len(ev.Hashes) > 0 {
			pairs = append(pairs, [2]any{"type", "BlockStored"}, [2]any{"block_hashes", arr{1}})
		}
	}
	return ev, m.shuffled(pairs)
}

func (m maker) unknownKey() string { return "x_" + rapid.StringN(0, 40, 300).Draw(m.t, "key") }

func (m maker) shuffled(pairs [][2]any) obj {
	var o obj
	for _, p := range rapid.Permutation(pairs).Draw(m.t, "order") {
		o = append(o, p[0], p[1])
	}
	return o
}
