package relay

import (
	"bytes"
	"encoding/binary"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// frame is a batch around its events: the time, the rank, and of a batch in the form of a map whatever else it has.
// Fields behind the rank of an array name one batch, as the publisher id does, and are left out.
type frame struct{ before, after []byte }

// wrapEvents returns a batch of some events.
func (f frame) wrapEvents(all [][]byte) []byte {
	if f.before == nil { // no batch was seen: the time is 0
		f.before = []byte{0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0}
	}
	b := appendArrayHeader(bytes.Clone(f.before), len(all))
	for _, raw := range all {
		b = append(b, raw...)
	}
	return append(b, f.after...)
}

// splitBatch returns the events of a batch that decodes, as they were sent, and the frame around them. The frame is a
// copy, the events are not. ok is false if the batch cannot be put together again.
func splitBatch(payload []byte) (f frame, all [][]byte, ok bool) {
	c := newCutter(payload)
	fields, isMap := c.openValue()
	start := c.offset()
	for i := 0; i < fields && c.err == nil; i++ {
		if isMap && c.readKey() != "events" || !isMap && i != 1 {
			c.cutValue()
			continue
		}
		at := c.offset()
		all = c.cutElements()
		if isMap {
			f.before, f.after = bytes.Clone(payload[:at]), bytes.Clone(payload[c.offset():])
			return f, all, c.err == nil
		}
		f.before = append(appendArrayHeader(nil, min(fields, 3)), payload[start:at]...)
		if fields > 2 {
			f.after = bytes.Clone(c.cutValue())
		}
		return f, all, c.err == nil
	}
	return f, nil, false
}

// rawHashes returns the hashes of an event as they were sent, nil if they cannot be found.
func rawHashes(event []byte) [][]byte {
	c := newCutter(event)
	fields, isMap := c.openValue()
	for i := 0; i < fields && c.err == nil; i++ {
		if isMap && c.readKey() != "block_hashes" || !isMap && i != 1 {
			c.cutValue()
			continue
		}
		if all := c.cutElements(); c.err == nil {
			return all
		}
	}
	return nil
}

// cutter cuts a msgpack value into the bytes of its parts. After an error it returns nothing.
type cutter struct {
	data []byte
	rest *bytes.Reader
	dec  *msgpack.Decoder
	err  error
}

func newCutter(data []byte) *cutter {
	rest := bytes.NewReader(data)
	return &cutter{data: data, rest: rest, dec: msgpack.NewDecoder(rest)}
}

// offset returns where the cutter is.
func (c *cutter) offset() int { return len(c.data) - c.rest.Len() }

// openValue goes into an array or a map, and returns how many elements, or pairs, it has.
func (c *cutter) openValue() (n int, isMapped bool) {
	code, err := c.dec.PeekCode()
	if c.err = err; err != nil {
		return 0, false
	}
	if isMapped = isMap(code); isMapped {
		n, c.err = c.dec.DecodeMapLen()
	} else {
		n, c.err = c.dec.DecodeArrayLen()
	}
	return n, isMapped
}

// readKey reads the key of a pair.
func (c *cutter) readKey() (name string) {
	if c.err == nil {
		name, c.err = c.dec.DecodeString()
	}
	return name
}

// cutValue returns the bytes of the next value.
func (c *cutter) cutValue() []byte {
	from := c.offset()
	if c.err == nil {
		c.err = c.dec.Skip()
	}
	return c.data[from:c.offset():c.offset()]
}

// cutElements returns the bytes of the elements of an array.
func (c *cutter) cutElements() (all [][]byte) {
	n := 0
	if c.err == nil {
		n, c.err = c.dec.DecodeArrayLen()
	}
	for i := 0; i < n && c.err == nil; i++ {
		all = append(all, c.cutValue())
	}
	return all
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}

// encodeEvent encodes what this package makes up itself.
func encodeEvent(v any) []byte {
	b, err := msgpack.Marshal(v)
	if err != nil {
		panic("BUG: an event that removes or clears cannot be encoded: " + err.Error())
	}
	return b
}

// appendArrayHeader appends the header of an array of n elements.
func appendArrayHeader(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, msgpcode.FixedArrayLow|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, msgpcode.Array16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, msgpcode.Array32), uint32(n))
}
