package wire

import (
	"bytes"
	"unicode/utf8"

	"example.com/conductor/events"
)

// The salt of an event is, in this order: its cache_salt key, cache_salt in
// SGLang's metadata, the envelope's additional_salt, and what vLLM leaves of it
// in extra_keys. An empty cache_salt is none; an empty additional_salt is one,
// because it overrides the registration's.

// saltTag labels the salt among the extra keys.
var saltTag = []byte("dynamo-cache-salt:")

// readSalt reads a cache_salt.
func (d *decoder) readSalt() (*string, events.Reason) {
	p, why := d.in.readTextBody(d.in.readHeader())
	if len(p) == 0 {
		return nil, why
	}
	return d.names.shareName(slotSalt, p), ""
}

// readMetadata reads SGLang's metadata: a map or nil.
func (d *decoder) readMetadata(f *form) events.Reason {
	f.metaSalt = nil
	switch k, n := d.in.readHeader(); k {
	case kNil:
		return ""
	case kMap:
		return d.readMetadataPairs(f, int(n))
	}
	return events.BadEvent
}

// readMetadataPairs reads n pairs of it. Only the salt counts.
func (d *decoder) readMetadataPairs(f *form, n int) (why events.Reason) {
	for range n {
		k, size := d.in.readHeader()
		if k != kStr {
			return events.BadEvent
		}
		switch string(d.in.readBytes(size)) {
		case "cache_salt":
			f.metaSalt, why = d.readSalt()
		default:
			why = d.in.skipValue()
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// readExtraKeys notes where the extra keys are: a list with one entry a block, each
// nil or a list, or nil. They wait until LoRA name and parent are known. A list of
// nothing but nil, which is what plain prompts have, is none.
func (f *form) readExtraKeys(c *cursor) events.Reason {
	f.extra = 0
	at := c.i
	switch k, n := c.readHeader(); k {
	case kNil:
		return ""
	case kArray:
		if c.skipNils(int(n)) == int(n) {
			return ""
		}
		f.extra = at
		c.i = at
		return c.skipValue()
	}
	return events.BadEvent
}

// skipNils steps over at most n values as long as they are nil, and returns how many.
func (c *cursor) skipNils(n int) int {
	p := c.b[c.i:]
	p = p[:min(n, len(p))]
	for i, b := range p {
		if b != 0xc0 {
			c.i += i
			return i
		}
	}
	c.i += len(p)
	return len(p)
}

// findExtraSalt reads the salt out of the extra keys at an offset, for an event whose
// first block begins its chain; no other block carries one. It leaves the cursor
// somewhere within them.
//
// Dynamo's frontend labels the salt. Else an entry holds, unlabelled and in this
// order, the adapter's name (in every block), identifiers of multimodal items, the
// salt, and digests of prompt embeddings as bytes. So the salt is the last string of
// the first entry, unless that is the adapter's name or the second entry repeats it.
//
// An identifier is a list with an offset, except in vLLM 0.17 and 0.18, which publish it
// bare in arrays of nine elements. Arrays of 0.19 are as long. A bare string is an
// identifier if the second entry repeats it: images reach from block to block, salts
// do not. Others are taken for salts. If such a salt was an image, its blocks serve no
// plain prompt: the error costs a hit and makes none.
func (d *decoder) findExtraSalt(f *form, lora *string) (*string, events.Reason) {
	d.in.i = f.extra
	_, blocks := d.in.readHeader()
	if blocks == 0 {
		return nil, ""
	}
	k, n := d.in.readHeader()
	if k != kArray {
		return nil, ""
	}
	var last []byte
	adapter := lora != nil
	for range n {
		p := d.in.readStringOrSkip()
		if tagged, ok := bytes.CutPrefix(p, saltTag); ok {
			if len(tagged) > 0 && utf8.Valid(tagged) {
				return d.names.shareName(slotSalt, tagged), ""
			}
			continue
		}
		switch {
		case len(p) == 0:
		case adapter && string(p) == *lora:
			adapter = false
		default:
			last = p
		}
	}
	_, digest := digestNumber(last)
	if last == nil || digest && f.infos > 0 || blocks > 1 && d.in.nextEntriesHold(last, 1) {
		return nil, ""
	}
	if !utf8.Valid(last) {
		return nil, events.BadEvent
	}
	if digest && f.short {
		d.ambiguous++
	}
	return d.names.shareName(slotSalt, last), ""
}

// findExtraAdapter reads the adapter's name out of the extra keys at an offset, for an
// event that says by lora_id that there is one and does not name it. It is the first string of the first entry, and every entry holds it.
func (d *decoder) findExtraAdapter(at int) (*string, events.Reason) {
	d.in.i = at
	_, blocks := d.in.readHeader()
	if blocks == 0 {
		return nil, ""
	}
	k, n := d.in.readHeader()
	if k != kArray || n == 0 {
		return nil, ""
	}
	first := d.in.readStringOrSkip()
	for range n - 1 {
		d.in.skipValues(1)
	}
	if len(first) == 0 || !d.in.nextEntriesHold(first, int(blocks)-1) {
		return nil, ""
	}
	if !utf8.Valid(first) {
		return nil, events.BadEvent
	}
	return d.names.shareName(slotLora, first), ""
}

// nextEntriesHold reports whether each of the next entries holds s.
func (c *cursor) nextEntriesHold(s []byte, entries int) bool {
	for range entries {
		k, n := c.readHeader()
		if k != kArray {
			return false
		}
		found := false
		for range n {
			found = bytes.Equal(c.readStringOrSkip(), s) || found
		}
		if !found {
			return false
		}
	}
	return true
}

// readStringOrSkip returns the bytes of a str and nil for anything else.
func (c *cursor) readStringOrSkip() []byte {
	at := c.i
	if k, n := c.readHeader(); k == kStr {
		return c.readBytes(n)
	}
	c.i = at
	c.skipValues(1)
	return nil
}
