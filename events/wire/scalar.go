package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"example.com/conductor/events"
)

// openList reads the header of a list of at most limit elements; nil is an empty
// list.
func (c *cursor) openList(limit int) (int, events.Reason) {
	switch k, n := c.readHeader(); {
	case k == kNil:
		return 0, ""
	case k != kArray:
		return 0, events.BadEvent
	case n > uint64(limit):
		return 0, events.TooLarge
	default:
		return int(n), ""
	}
}

// readHashBody projects a hash to u64: integers by two's complement, bytes (bin, or
// str of old producers) by their last eight, big-endian, shorter ones padded
// with zeros on the left.
func (c *cursor) readHashBody(k kind, n uint64) (uint64, bool) {
	switch k {
	case kUint, kInt:
		return n, true
	case kBin, kStr:
		if n == 0 {
			return 0, false
		}
		p := c.readBytes(n)
		if len(p) >= 8 {
			return binary.BigEndian.Uint64(p[len(p)-8:]), true
		}
		var h uint64
		for _, c := range p {
			h = h<<8 | uint64(c)
		}
		return h, true
	}
	return 0, false
}

// readHashList reads a list of hashes.
func (d *decoder) readHashList() ([]uint64, events.Reason) {
	n, why := d.in.openList(d.lim.MaxHashes)
	if d.lists++; why != "" || n == 0 {
		return nil, why
	}
	list := d.hashes.takeElements(n, d.siblings, d.in.bytesLeft())
	b, i := d.in.b, d.in.i
	d.hashFrom = i
	for j := range list {
		if i+9 <= len(b) && (b[i] == 0xcf || b[i] == 0xd3) { // nearly all are
			list[j] = binary.BigEndian.Uint64(b[i+1:])
			i += 9
			continue
		}
		d.in.i = i
		h, ok := d.in.readHashBody(d.in.readHeader())
		if !ok {
			return nil, events.BadEvent
		}
		list[j] = h
		i = d.in.i
	}
	d.in.i, d.hashTo = i, i
	return list, ""
}

// readCounts reads a list of natural numbers.
func (d *decoder) readCounts() ([]int, events.Reason) {
	n, why := d.in.openList(d.lim.MaxHashes)
	if why != "" || n == 0 {
		return nil, why
	}
	list := make([]int, n)
	for j := range list {
		k, v := d.in.readHeader()
		if k != kUint || v > math.MaxInt32 {
			return nil, events.BadEvent
		}
		list[j] = int(v)
	}
	return list, ""
}

// readNatural reads a number from 0 to 2^31-1; nil yields absent.
func (c *cursor) readNatural(absent int) (int, events.Reason) {
	switch k, n := c.readHeader(); {
	case k == kNil:
		return absent, ""
	case k == kUint && n <= math.MaxInt32:
		return int(n), ""
	}
	return absent, events.BadEvent
}

// readTextBody returns the bytes of a str, nil for nil. They alias the payload. Names
// end up in answers and metric labels, so they have to be UTF-8.
func (c *cursor) readTextBody(k kind, n uint64) ([]byte, events.Reason) {
	switch k {
	case kNil:
		return nil, ""
	case kStr:
		if p := c.readBytes(n); utf8.Valid(p) {
			return p, ""
		}
	}
	return nil, events.BadEvent
}

// slot numbers the names of an event that tend to repeat within a batch.
type slot uint8

const (
	slotLora slot = iota
	slotSalt
	slotModel
	slotTenant
	slotBackend
	slots
)

// readName reads a str or nil into a pointer, shared with the last event that had
// the same text.
func (d *decoder) readName(s slot) (*string, events.Reason) {
	p, why := d.in.readTextBody(d.in.readHeader())
	if p == nil {
		return nil, why
	}
	if len(p) > maxName && (s == slotModel || s == slotTenant || s == slotBackend) {
		return nil, events.TooLarge
	}
	return d.names.shareName(s, p), ""
}

// maxName is how many bytes the names of models, tenants and backends may have: four times
// those of registrations. Names of adapters and salts count where they are kept.
const maxName = 1024

// readGroupKind reads the kind of an attention group. No kind that counts has more than 64 bytes.
func (c *cursor) readGroupKind() (string, events.Reason) {
	p, why := c.readTextBody(c.readHeader())
	return internWord(p[:min(len(p), 64)]), why
}

// nameCache has the last name of each kind, so that the events of a batch share one string.
type nameCache [slots]*string

// shareName returns p as a string, the one before it if that has the same text.
func (n *nameCache) shareName(s slot, p []byte) *string {
	if last := n[s]; last != nil && *last == string(p) {
		return last
	}
	text := string(p)
	n[s] = &text
	return &text
}

// readWord reads a str or nil into a string, without allocating for the words
// publishers use.
func (c *cursor) readWord() (string, events.Reason) {
	p, why := c.readTextBody(c.readHeader())
	return internWord(p), why
}

func internWord(p []byte) string {
	switch string(p) {
	case "GPU":
		return "GPU"
	case "CPU":
		return "CPU"
	case "cpu":
		return "cpu"
	case "CPU_PINNED":
		return "CPU_PINNED"
	case "disk":
		return "disk"
	case "STORAGE":
		return "STORAGE"
	case "full_attention":
		return "full_attention"
	case "mla_attention":
		return "mla_attention"
	case "sliding_window":
		return "sliding_window"
	case "mamba":
		return "mamba"
	}
	return string(p)
}
