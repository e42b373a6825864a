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

// kindOfEventType maps event_type.
func kindOfEventType(tag []byte) events.Kind {
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

// readStandardKey reads the value of a key of the standard, or ignores it.
func (d *decoder) readStandardKey(ev *events.Event, f *form, key []byte) (why events.Reason) {
	switch string(key) {
	case "event_type":
		f.standard, why = d.in.readKindTag(kindOfEventType)
	case "seq_hashes":
		why = d.readHashField(&f.seq)
	case "parent_hash":
		why = f.link.readParent(&d.in)
	case "base_block_idx":
		ev.BaseBlock, why = d.in.readNatural(-1)
	case "event_id":
		ev.ID, why = d.in.readEventID()
	case "model_name":
		ev.Model, why = d.readName(slotModel)
	case "tenant_id":
		ev.Tenant, why = d.readName(slotTenant)
	case "backend_id":
		ev.Backend, why = d.readName(slotBackend)
	case "additional_salt":
		f.addSalt, why = d.readName(slotSalt)
	case "dp_rank":
		ev.Rank, why = d.readRank()
	case "object_key":
		var p []byte
		p, why = d.in.readTextBody(d.in.readHeader())
		ev.ObjectKey = string(p)
	case "connector_block_hash":
		var p []byte
		p, why = d.in.readTextBody(d.in.readHeader())
		ev.ConnectorHash = string(p)
	case "timestamp":
		why = d.in.skipNumber()
	case "cache_prefix":
		_, why = d.in.readTextBody(d.in.readHeader())
	case "tp_rank", "head_or_tp_rank", "pcp_rank", "dcp_rank", "pp_rank", "layer_id":
		why = d.in.skipPosition()
	case "group_id":
		f.label, why = d.in.readGroupLabel()
	default:
		why = d.in.skipValue()
	}
	return why
}

// readEventID reads an event_id; nil is 0.
func (c *cursor) readEventID() (uint64, events.Reason) {
	k, n := c.readHeader()
	if k != kUint && k != kNil {
		return 0, events.BadEvent
	}
	return n, ""
}

// skipNumber steps over a number or nil.
func (c *cursor) skipNumber() events.Reason {
	switch k, _ := c.readHeader(); k {
	case kUint, kInt, kFloat, kNil:
		return ""
	}
	return events.BadEvent
}

// skipPosition steps over a rank or a layer: a whole number, also as text, or nil.
func (c *cursor) skipPosition() events.Reason {
	k, n := c.readHeader()
	switch k {
	case kUint, kInt, kNil:
		return ""
	case kStr:
		if _, err := strconv.Atoi(string(c.readBytes(n))); err == nil {
			return ""
		}
	}
	return events.BadEvent
}

// readRank reads a data-parallel rank; nil and negative numbers mean none.
func (d *decoder) readRank() (*int, events.Reason) {
	switch k, n := d.in.readHeader(); {
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

// readGroupLabel reads the master's group_id. It names a group of objects, and a
// cache group only where it is a plain number, alone or after "group:"; then the
// result is that number plus one, else 0.
func (c *cursor) readGroupLabel() (int, events.Reason) {
	k, n := c.readHeader()
	if k == kUint && n < math.MaxInt32 {
		return int(n) + 1, ""
	}
	p, why := c.readTextBody(k, n)
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
