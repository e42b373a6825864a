package wire

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"

	"example.com/conductor/events"
)

// Three fields list the items that a block has besides its tokens: images and other
// multimodal items, embeddings in place of tokens. Each item has a number.
//
//	block_mm_infos  [{"mm_objects": [{"mm_hash": number, "offsets": [...]}, ...]}, nil, ...]  Dynamo
//	mm_keys         [[{"type": "mm_key", "hash": digest, "start_offset": n}, ...], ...]       TensorRT-LLM
//	extra_keys      [[[identifier, offset], identifier, embeddings, ...], nil, ...]           vLLM
//
//	an identifier       with an offset or without: the first eight bytes of a digest in hex,
//	                    else XXH3-64 of its text; Dynamo's mm_hash
//	anything else       XXH3-64 of its msgpack in canonical form (canonical.go): digests of
//	                    embeddings as bytes, and whatever a later engine puts there
//
// extra_keys are what an engine hashes with a block. So all that is in them counts, but for
// nil, the adapter's name and the salt (salt.go). The images among them, which are digests
// and identifiers with an offset, are left to the first two fields if those are there.
// Where in its block an item is does not matter.

// digestLen is the length of an item's digest, in hex digits.
const digestLen = 64

// digestNumber returns the number of an item given by a digest, false for another
// string.
func digestNumber(p []byte) (n uint64, ok bool) {
	if len(p) != digestLen {
		return 0, false
	}
	for i, c := range p {
		v, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		if i < 16 {
			n = n<<4 | uint64(v)
		}
	}
	return n, true
}

// itemNumber returns the number of an item.
func itemNumber(id []byte) uint64 {
	if n, ok := digestNumber(id); ok {
		return n
	}
	return xxh3.Hash(id)
}

// readItemInfos notes where a list of infos is, one a block, or nil. They wait until it
// is known how many blocks there are.
func (f *form) readItemInfos(c *cursor) events.Reason {
	at := c.i
	switch k, _ := c.readHeader(); k {
	case kNil: // TensorRT-LLM's do not undo Dynamo's
		return ""
	case kArray:
		f.infos = at
		c.i = at
		return c.skipValue()
	}
	return events.BadEvent
}

// maxItem is the longest item that is hashed in canonical form, in bytes on the wire. An
// event with a longer one is dropped. Engines send digests.
const maxItem = 64 << 10

// collectItems returns the numbers of the items in each block, nil if there are none. It
// leaves the cursor anywhere in the event.
func (d *decoder) collectItems(f *form, ev *events.Event) ([][]uint64, events.Reason) {
	if d.in.err != nil {
		return nil, events.BadEvent // the lists may be cut short
	}
	r := itemReader{in: &d.in, memory: d.memory}
	infos, extra := r.entriesAt(f.infos), r.entriesAt(f.extra)
	var all []uint64 // of all blocks
	var of [][]uint64
	for i := range min(len(ev.Hashes), max(infos.left, extra.left)) {
		from, ok := len(all), true
		if r.enterNext(&infos) {
			if all, ok = r.appendInfoItems(all); !ok {
				return nil, events.TooLarge
			}
			infos.at = d.in.i
		}
		if r.enterNext(&extra) {
			salt := ev.Salt
			if i > 0 || ev.HasParent && ev.Parent != 0 {
				salt = nil
			}
			all, ok = r.appendExtraItems(all, f.infos > 0, ev.LoraName, salt)
			d.offsets = d.offsets || r.offsets
			if !ok {
				return nil, events.TooLarge
			}
			extra.at = d.in.i
		}
		if n := len(all); n > d.lim.MaxTokens {
			return nil, events.TooLarge
		} else if n > from {
			if of == nil {
				of = make([][]uint64, len(ev.Hashes))
			}
			of[i] = all[from:n:n]
			slices.Sort(of[i])
		}
	}
	return of, ""
}

// itemReader reads the items of one event's blocks.
type itemReader struct {
	in      *cursor
	memory  *memory // for items in canonical form
	offsets bool    // an identifier came with an offset
}

// entries are the rest of a list that has one entry a block.
type entries struct{ at, left int }

// entriesAt returns the list at an offset, an empty one for 0.
func (r *itemReader) entriesAt(at int) entries {
	if at == 0 {
		return entries{}
	}
	r.in.i = at
	_, n := r.in.readHeader()
	return entries{r.in.i, int(n)}
}

// enterNext puts the cursor on the next entry, which it takes from the list. It returns false
// if that is nil or there is none.
func (r *itemReader) enterNext(e *entries) bool {
	if e.left == 0 {
		return false
	}
	e.left--
	if r.in.b[e.at] == 0xc0 {
		e.at++
		return false
	}
	r.in.i = e.at
	return true
}

// appendExtraItems appends the numbers of the items among the extra keys of a block; false if
// one is too large. Images are left out if they are listed elsewhere. salt is nil behind
// the first block of a prompt. An entry that is no list is an item itself.
func (r *itemReader) appendExtraItems(all []uint64, listed bool, lora, salt *string) ([]uint64, bool) {
	n := uint64(1)
	if isArray(r.in.b[r.in.i]) {
		_, n = r.in.readHeader()
	}
	for range n {
		at := r.in.i
		k, size := r.in.readHeader()
		switch k {
		case kNil:
			continue
		case kStr:
			p := r.in.readBytes(size)
			if lora != nil && string(p) == *lora || salt != nil && string(p) == *salt || bytes.HasPrefix(p, saltTag) {
				continue
			}
			if item, digest := digestNumber(p); !digest {
				all = append(all, xxh3.Hash(p))
			} else if !listed {
				all = append(all, item)
			}
			continue
		case kArray:
			if size != 2 {
				break
			}
			id := r.in.readStringOrSkip()
			if offset, _ := r.in.readHeader(); len(id) > 0 && (offset == kUint || offset == kInt) {
				if r.offsets = true; !listed {
					all = append(all, itemNumber(id))
				}
				continue
			}
		}
		r.in.i = at
		var ok bool
		if all, ok = r.appendOtherItem(all); !ok {
			return nil, false
		}
	}
	return all, true
}

// appendOtherItem appends the number of an item of a form that has none; false if it is too
// large.
func (r *itemReader) appendOtherItem(all []uint64) ([]uint64, bool) {
	at := r.in.i
	if r.in.skipValues(1); r.in.i-at > maxItem {
		return nil, false
	}
	r.in.i = at
	r.memory.item = r.in.appendCanonical(r.memory.item[:0])
	return append(all, xxh3.Hash(r.memory.item)), true
}

// appendInfoItems appends the numbers of the items that the info of a block lists; false if one
// is too large. An info of another form is an item itself.
func (r *itemReader) appendInfoItems(all []uint64) ([]uint64, bool) {
	at := r.in.i
	switch k, n := r.in.readHeader(); k {
	case kArray:
		return r.appendItemList(all, n)
	case kMap:
		lists := n == 0
		for range n {
			listed := string(r.in.readStringOrSkip()) == "mm_objects"
			at := r.in.i
			switch k, n := r.in.readHeader(); {
			case listed && k == kNil:
				lists = true
			case listed && k == kArray:
				var ok bool
				if all, ok = r.appendItemList(all, n); !ok {
					return nil, false
				}
				lists = true
			default:
				r.in.i = at
				r.in.skipValues(1)
			}
		}
		if lists {
			return all, true
		}
	}
	r.in.i = at
	return r.appendOtherItem(all)
}

// appendItemList appends the numbers of n items, which are maps with a number or a digest.
func (r *itemReader) appendItemList(all []uint64, n uint64) (_ []uint64, ok bool) {
	for range n {
		start := r.in.i
		k, keys := r.in.readHeader()
		if k == kNil {
			continue
		}
		item, named := uint64(0), false
		for k == kMap && keys > 0 {
			keys--
			key, at := r.in.readStringOrSkip(), r.in.i
			k, n := r.in.readHeader()
			switch {
			case string(key) == "mm_hash" && (k == kUint || k == kInt):
				item, named = n, true
			case string(key) == "hash" && k == kStr && n > 0:
				item, named = itemNumber(r.in.readBytes(n)), true
			default:
				r.in.i = at
				r.in.skipValues(1)
			}
		}
		if named {
			all = append(all, item)
			continue
		}
		r.in.i = start
		if all, ok = r.appendOtherItem(all); !ok {
			return nil, false
		}
	}
	return all, true
}
