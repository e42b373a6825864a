package wire

import (
	"bytes"
	"encoding/binary"
	"slices"

	"example.com/conductor/events"
)

// Who sends events of an engine on needs them as they were sent: batches are cut into their events, and put together again
// as other batches, with events that take back what others stored, all in the engine's own form.

// Frame is a batch around its events: the time, the rank, and of a batch in the form of a map whatever else it has.
// Fields behind the rank of an array name one batch, as the publisher id does, and are left out.
type Frame struct {
	before, after []byte
	maps          bool // the first event is a map, not an array
}

// CutBatch returns the events of a batch that decodes, as they were sent, and a copy of the frame around them. The
// events alias the payload. ok is false if the batch cannot be put together again.
func CutBatch(payload []byte) (f Frame, all [][]byte, ok bool) {
	c := cursor{b: payload, maxDepth: depthCap}
	k, fields, first := c.findField("events", 1)
	at := c.i
	all = c.cutElements()
	behind := c.i
	if k == kMap {
		f.before, f.after = bytes.Clone(payload[:at]), bytes.Clone(payload[behind:])
	} else {
		f.before = append(appendArray(nil, int(min(fields, 3))), payload[first:at]...)
		if fields > 2 {
			c.skipValues(1)
			f.after = bytes.Clone(payload[behind:c.i])
		}
	}
	if c.err != nil {
		return Frame{}, nil, false
	}
	f.maps = len(all) > 0 && (&cursor{b: all[0]}).peekKind() == kMap
	return f, all, true
}

// Wrap returns a batch of encoded events. The zero Frame has time 0 and no rank.
func (f Frame) Wrap(all ...[]byte) []byte {
	before := f.before
	if before == nil {
		before = binary.BigEndian.AppendUint64([]byte{0x92, 0xcb}, 0)
	}
	parts := slices.Concat([][]byte{before, appendArray(nil, len(all))}, all, [][]byte{f.after})
	return slices.Concat(parts...)
}

// EncodeClear returns an event that clears a medium, in the form of the events that the frame was around. With medium "" it clears the
// device, and what the reader takes for cleared with it.
func (f Frame) EncodeClear(medium string) []byte {
	const tag = "AllBlocksCleared"
	switch {
	case f.maps && medium == "":
		return appendText(appendText(appendMap(nil, 1), "type"), tag)
	case f.maps:
		return appendText(appendText(appendText(appendText(appendMap(nil, 2), "type"), tag), "medium"), medium)
	case medium == "":
		return appendText(appendArray(nil, 1), tag)
	}
	return appendText(appendText(appendArray(nil, 2), tag), medium)
}

// EncodeRemoval returns an event that removes blocks of a stored event from where that has stored them, in its form. raw is
// the stored event, and blocks are indices of its hashes. It returns nil if they cannot be found.
func EncodeRemoval(raw []byte, stored *events.Event, blocks []int) []byte {
	c := cursor{b: raw, maxDepth: depthCap}
	k, _, _ := c.findField("block_hashes", 1)
	all := c.cutElements()
	if c.err != nil || len(all) != len(stored.Hashes) {
		return nil
	}
	hashes := appendArray(nil, len(blocks))
	for _, i := range blocks {
		hashes = append(hashes, all[i]...)
	}
	medium := []byte{0xc0} // nil
	if stored.Medium != "" {
		medium = appendText(nil, stored.Medium)
	}
	group := appendUint(nil, uint64(max(stored.Group, 0)))
	const tag = "BlockRemoved"
	if k == kArray { // fields that say nothing are left out at the end: an old engine has none of them
		switch {
		case stored.Group >= 0:
			return slices.Concat(appendText(appendArray(nil, 4), tag), hashes, medium, group)
		case stored.Medium != "":
			return slices.Concat(appendText(appendArray(nil, 3), tag), hashes, medium)
		}
		return slices.Concat(appendText(appendArray(nil, 2), tag), hashes)
	}
	pairs := 3
	b := appendText(appendText(nil, "type"), tag)
	b = append(appendText(b, "block_hashes"), hashes...)
	b = append(appendText(b, "medium"), medium...)
	if stored.Group >= 0 {
		b = append(appendText(b, "group_idx"), group...)
		pairs++
	}
	if stored.Owned {
		b = appendText(appendText(b, "ownership"), "kvcr")
		pairs++
	}
	return append(appendMap(nil, pairs), b...)
}

// EncodeStore returns an event that stores the blocks of a moved event where they arrive, known by their hashes alone, in its
// form. raw is the moved event, and size the number of tokens in a block, 0 if it is not known. It returns nil if the hashes
// cannot be found.
func EncodeStore(raw []byte, moved *events.Event, size int) []byte {
	c := cursor{b: raw, maxDepth: depthCap}
	k, _, _ := c.findField("block_hashes", 1)
	from := c.i
	c.skipValues(1)
	if c.err != nil {
		return nil
	}
	hashes, none, tokens := raw[from:c.i], []byte{0xc0}, appendArray(nil, 0)
	medium := none
	if moved.Medium != "" {
		medium = appendText(nil, moved.Medium)
	}
	group := appendUint(nil, uint64(max(moved.Group, 0)))
	const tag = "BlockStored"
	if k == kArray {
		fields := slices.Concat(hashes, none, tokens, appendUint(nil, uint64(size)), none, medium)
		if moved.Group < 0 {
			return append(appendText(appendArray(nil, 7), tag), fields...)
		}
		return slices.Concat(appendText(appendArray(nil, 10), tag), fields, none, none, group)
	}
	pairs := 7
	b := appendText(appendText(nil, "type"), tag)
	for _, f := range []struct {
		key   string
		value []byte
	}{
		{"block_hashes", hashes}, {"parent_block_hash", none}, {"token_ids", tokens}, {"block_size", appendUint(nil, uint64(size))},
		{"lora_id", none}, {"medium", medium},
	} {
		b = append(appendText(b, f.key), f.value...)
	}
	if moved.Group >= 0 {
		b = append(appendText(b, "group_idx"), group...)
		pairs++
	}
	if moved.Owned {
		b = appendText(appendText(b, "ownership"), "kvcr")
		pairs++
	}
	return append(appendMap(nil, pairs), b...)
}

func appendArray(dst []byte, n int) []byte { return appendHeader(dst, uint64(n), 0x90, 0x0f, 0xdb) }

func appendMap(dst []byte, n int) []byte { return appendHeader(dst, uint64(n), 0x80, 0x0f, 0xdd) }

func appendText(dst []byte, text string) []byte {
	return append(appendHeader(dst, uint64(len(text)), 0xa0, 0x1f, 0xd9), text...)
}

// findField moves to the value that has a name in a map, or an index in an array, and behind both if there is none. It
// returns which of the two it is, how many pairs or elements that has, and where the first one begins.
func (c *cursor) findField(name string, index uint64) (k kind, n uint64, first int) {
	k, n = c.readHeader()
	if first = c.i; k != kMap && k != kArray {
		c.setError(events.BadPayload, "fields are in an array or a map, not in %s", k)
		return k, 0, first
	}
	for i := range n {
		if k == kMap {
			if key, ok := c.readShortText(); key == name {
				break
			} else if !ok {
				c.setError(events.BadPayload, "a key is not a str")
			}
		} else if i == index {
			break
		}
		c.skipValues(1)
	}
	return k, n, first
}

// cutElements returns the bytes of the elements of a list. nil is an empty one.
func (c *cursor) cutElements() (all [][]byte) {
	k, n := c.readHeader()
	if k != kArray && k != kNil {
		c.setError(events.BadPayload, "a list is an array, not %s", k)
		n = 0
	}
	for range n {
		from := c.i
		c.skipValues(1)
		all = append(all, c.b[from:c.i:c.i])
	}
	return all
}
