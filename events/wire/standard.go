package wire

import (
	"bytes"
	"math"
	"strconv"

	"example.com/conductor/events"
)

// Standardized events (Mooncake RFC #1527) are maps with event_type and an
// envelope that names the context of the blocks; nil means "as registered". The
// Mooncake master writes the same with an object key, and unless told otherwise
// repeats hashes and parent under the engines' names: seq_hashes and parent_hash
// win there. Its three generations differ in which envelope fields are nil and in
// what they tell of the object key: the third adds the engine's hash in it, which is
// kept, and the rest, which is only held to its types.

// standardKind maps event_type.
func standardKind(tag []byte) events.Kind {
	switch string(tag) {
	case "stored":
		return events.Stored
	case "removed":
		return events.Removed
	case "cleared":
		return events.Cleared
	}
	return unknownKind
}

// standardKey reads the value of a key of the standard, or ignores it.
func (d *decoder) standardKey(ev *events.Event, f *form, key []byte) (why events.Reason) {
	switch string(key) {
	case "event_type":
		f.standard, why = d.tag(standardKind)
	case "seq_hashes":
		why = d.hashField(&f.seq)
	case "parent_hash":
		why = d.parentField(&f.link)
	case "base_block_idx":
		ev.BaseBlock, why = d.natural(-1)
	case "event_id":
		ev.ID, why = d.id()
	case "model_name":
		ev.Model, why = d.name(slotModel)
	case "tenant_id":
		ev.Tenant, why = d.name(slotTenant)
	case "backend_id":
		ev.Backend, why = d.name(slotBackend)
	case "additional_salt":
		f.addSalt, why = d.name(slotSalt)
	case "dp_rank":
		ev.Rank, why = d.rankField()
	case "object_key":
		var p []byte
		p, why = d.textOf(d.head())
		ev.ObjectKey = string(p)
	case "connector_block_hash":
		var p []byte
		p, why = d.textOf(d.head())
		ev.ConnectorHash = string(p)
	case "timestamp":
		why = d.number()
	case "cache_prefix":
		_, why = d.textOf(d.head())
	case "tp_rank", "head_or_tp_rank", "pcp_rank", "dcp_rank", "pp_rank", "layer_id":
		why = d.position()
	case "group_id":
		f.label, why = d.groupLabel()
	default:
		why = d.ignore()
	}
	return why
}

// id reads an event_id; nil is 0.
func (d *decoder) id() (uint64, events.Reason) {
	k, n := d.head()
	if k != kUint && k != kNil {
		return 0, events.BadEvent
	}
	return n, ""
}

// number steps over a number or nil.
func (d *decoder) number() events.Reason {
	switch k, _ := d.head(); k {
	case kUint, kInt, kFloat, kNil:
		return ""
	}
	return events.BadEvent
}

// position steps over a rank or a layer: a whole number, also as text, or nil.
func (d *decoder) position() events.Reason {
	k, n := d.head()
	switch k {
	case kUint, kInt, kNil:
		return ""
	case kStr:
		if _, err := strconv.Atoi(string(d.take(n))); err == nil {
			return ""
		}
	}
	return events.BadEvent
}

// rankField reads a data-parallel rank; nil and negative numbers mean none.
func (d *decoder) rankField() (*int, events.Reason) {
	switch k, n := d.head(); {
	case k == kNil || k == kInt:
		return nil, ""
	case k == kUint && n <= math.MaxInt32:
		if d.rank == nil || *d.rank != int(n) {
			v := int(n)
			d.rank = &v
		}
		return d.rank, ""
	}
	return nil, events.BadEvent
}

// groupLabel reads the master's group_id. It names a group of objects, and a
// cache group only where it is a plain number, alone or after "group:"; then the
// result is that number plus one, else 0.
func (d *decoder) groupLabel() (int, events.Reason) {
	k, n := d.head()
	if k == kUint && n < math.MaxInt32 {
		return int(n) + 1, ""
	}
	p, why := d.textOf(k, n)
	p = bytes.TrimPrefix(p, []byte("group:"))
	if len(p) == 0 || len(p) > 9 || p[0] == '+' || p[0] == '-' {
		return 0, why
	}
	v, err := strconv.Atoi(string(p))
	if err != nil {
		return 0, why
	}
	return v + 1, why
}
