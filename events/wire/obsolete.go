package wire

import (
	"bytes"
	"strconv"

	"example.com/conductor/events"
)

// The Mooncake master's events of before the standard are arrays in a batch of two
// elements:
//
//	BlockStoreEvent
//	  1 key
//	  2 replicas       [["memory" or "disk" or "local_disk", where], ...]
//	  3 model_name     "" is none
//	  4 block_size     0 is unknown
//	  5 block_hash     as text, a number or a list of either; "" is none
//	  6 parent         likewise one, "" or nil is the root
//	  7 token_ids
//	BlockUpdateEvent   a key and the replicas it has now
//	RemoveAllEvent
//
// Numbers as text are decimal, or hex after 0x. Several hashes in one text are
// separated by commas or space. An update says which replicas are left and not which
// have gone, so it is of no use and counted as unknown.

// decodeObsoleteEvent reads an event with a tag that engines do not use.
func (d *decoder) decodeObsoleteEvent(ev *events.Event, f *form, tag []byte, n int) (events.Kind, events.Reason) {
	switch string(tag) {
	case "BlockStoreEvent":
		return events.Stored, d.decodeStoreEvent(ev, f, n)
	case "RemoveAllEvent":
		return events.Cleared, d.in.skipElements(n - 1)
	}
	return unknownKind, events.UnknownType
}

func (d *decoder) decodeStoreEvent(ev *events.Event, f *form, n int) (why events.Reason) {
	if n < 8 {
		return events.BadEvent
	}
	for i := 1; i < n && why == ""; i++ {
		switch i {
		case 1:
			var p []byte
			p, why = d.in.readTextBody(d.in.readHeader())
			ev.ObjectKey = string(p)
		case 2:
			ev.Medium, why = d.readReplicas()
		case 3:
			if ev.Model, why = d.readName(slotModel); ev.Model != nil && *ev.Model == "" {
				ev.Model = nil
			}
		case 4:
			ev.BlockSize, why = d.in.readNatural(0)
		case 5:
			f.block.list, why = d.readWrittenHashes()
			f.block.given = len(f.block.list) > 0
		case 6:
			var parent []uint64
			if parent, why = d.readWrittenHashes(); len(parent) > 0 {
				f.parent = parentField{parent[0], true}
			}
			if len(parent) > 1 {
				why = events.BadEvent
			}
		case 7:
			ev.Tokens, ev.Bigram, why = d.readTokens()
		default:
			why = d.in.skipValue()
		}
	}
	return why
}

// readReplicas returns the fastest medium among an object's replicas. Without any that
// is known it is the host: the store has nothing on a device.
func (d *decoder) readReplicas() (medium string, why events.Reason) {
	n, why := d.in.openList(d.lim.MaxHashes)
	if why != "" {
		return "", why
	}
	medium = "cpu"
	disk, host := false, false
	for range n {
		k, parts := d.in.readHeader()
		if k != kArray {
			return "", events.BadEvent
		}
		for i := range parts {
			p, why := d.in.readTextBody(d.in.readHeader())
			if why != "" {
				return "", why
			}
			if i == 0 {
				host = host || string(p) == "memory"
				disk = disk || string(p) == "disk" || string(p) == "local_disk"
			}
		}
	}
	if disk && !host {
		medium = "disk"
	}
	return medium, ""
}

// readWrittenHashes reads hashes that are a list, one, none, or text.
func (d *decoder) readWrittenHashes() ([]uint64, events.Reason) {
	at := d.in.i
	k, n := d.in.readHeader()
	count := uint64(1)
	switch k {
	case kNil:
		return nil, ""
	case kArray:
		count = n
	default:
		d.in.i = at
	}
	if count > uint64(d.lim.MaxHashes) {
		return nil, events.TooLarge
	}
	var list []uint64
	for range count {
		k, n := d.in.readHeader()
		if k != kStr {
			h, ok := d.in.readHashBody(k, n)
			if !ok {
				return nil, events.BadEvent
			}
			list = append(list, h)
			continue
		}
		separates := func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' }
		for _, word := range bytes.FieldsFunc(d.in.readBytes(n), separates) {
			h, ok := writtenHash(word)
			if !ok {
				return nil, events.BadEvent
			}
			list = append(list, h)
		}
	}
	if len(list) > d.lim.MaxHashes {
		return nil, events.TooLarge
	}
	return list, ""
}

// writtenHash reads a decimal number, or the last 64 bits of one in hex.
func writtenHash(p []byte) (uint64, bool) {
	base := 10
	if digits, ok := bytes.CutPrefix(p, []byte("0x")); ok {
		p, base = digits, 16
		for ; len(p) > 16; p = p[1:] {
			if _, ok := hexDigit(p[0]); !ok {
				return 0, false
			}
		}
	}
	h, err := strconv.ParseUint(string(p), base, 64)
	return h, err == nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}
