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

// salt reads a cache_salt.
func (d *decoder) salt() (*string, events.Reason) {
	p, why := d.textOf(d.head())
	if len(p) == 0 {
		return nil, why
	}
	return d.shared(slotSalt, p), ""
}

// metadataField reads SGLang's metadata: a map or nil.
func (d *decoder) metadataField(f *form) events.Reason {
	f.metaSalt = nil
	switch k, n := d.head(); k {
	case kNil:
		return ""
	case kMap:
		return d.metadata(f, int(n))
	}
	return events.BadEvent
}

// metadata reads n pairs of it. Only the salt counts.
func (d *decoder) metadata(f *form, n int) (why events.Reason) {
	for range n {
		k, size := d.head()
		if k != kStr {
			return events.BadEvent
		}
		switch string(d.take(size)) {
		case "cache_salt":
			f.metaSalt, why = d.salt()
		default:
			why = d.ignore()
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// extraKeys notes where the extra keys are: a list with one entry a block, each
// nil or a list, or nil. They wait until LoRA name and parent are known. A list of
// nothing but nil, which is what plain prompts have, is none.
func (d *decoder) extraKeys(f *form) events.Reason {
	f.extra = 0
	at := d.i
	switch k, n := d.head(); k {
	case kNil:
		return ""
	case kArray:
		if d.nils(int(n)) == int(n) {
			return ""
		}
		f.extra = at
		d.i = at
		return d.ignore()
	}
	return events.BadEvent
}

// nils steps over at most n values as long as they are nil, and returns how many.
func (d *decoder) nils(n int) int {
	p := d.b[d.i:]
	p = p[:min(n, len(p))]
	for i, c := range p {
		if c != 0xc0 {
			d.i += i
			return i
		}
	}
	d.i += len(p)
	return len(p)
}

// extraSalt reads the salt out of the extra keys at an offset, for an event whose
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
func (d *decoder) extraSalt(f *form, lora *string) (*string, events.Reason) {
	d.i = f.extra
	_, blocks := d.head()
	if blocks == 0 {
		return nil, ""
	}
	k, n := d.head()
	if k != kArray {
		return nil, ""
	}
	var last []byte
	adapter := lora != nil
	for range n {
		p := d.stringOrSkip()
		if tagged, ok := bytes.CutPrefix(p, saltTag); ok {
			if len(tagged) > 0 && utf8.Valid(tagged) {
				return d.shared(slotSalt, tagged), ""
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
	if last == nil || digest && f.infos > 0 || blocks > 1 && d.inAll(last, 1) {
		return nil, ""
	}
	if !utf8.Valid(last) {
		return nil, events.BadEvent
	}
	if digest && f.short {
		d.ambiguous++
	}
	return d.shared(slotSalt, last), ""
}

// extraLora reads the adapter's name out of the extra keys at an offset, for an
// event that says by lora_id that there is one and does not name it. It is the first string of the first entry, and every entry holds it.
func (d *decoder) extraLora(at int) (*string, events.Reason) {
	d.i = at
	_, blocks := d.head()
	if blocks == 0 {
		return nil, ""
	}
	k, n := d.head()
	if k != kArray || n == 0 {
		return nil, ""
	}
	first := d.stringOrSkip()
	for range n - 1 {
		d.skip(1)
	}
	if len(first) == 0 || !d.inAll(first, int(blocks)-1) {
		return nil, ""
	}
	if !utf8.Valid(first) {
		return nil, events.BadEvent
	}
	return d.shared(slotLora, first), ""
}

// inAll reports whether each of the next entries holds s.
func (d *decoder) inAll(s []byte, entries int) bool {
	for range entries {
		k, n := d.head()
		if k != kArray {
			return false
		}
		found := false
		for range n {
			found = bytes.Equal(d.stringOrSkip(), s) || found
		}
		if !found {
			return false
		}
	}
	return true
}

// stringOrSkip returns the bytes of a str and nil for anything else.
func (d *decoder) stringOrSkip() []byte {
	at := d.i
	if k, n := d.head(); k == kStr {
		return d.take(n)
	}
	d.i = at
	d.skip(1)
	return nil
}
