package wire

import (
	"slices"

	"github.com/zeebo/xxh3"

	"kvconductor/events"
)

// Three fields tell, block by block, which images and other multimodal items are in
// it. An item has a number, Dynamo's mm_hash: the first eight bytes of a digest in
// hex, else a hash of its identifier.
//
//	block_mm_infos  [{"mm_objects": [{"mm_hash": number, "offsets": [...]}, ...]}, nil, ...]  Dynamo
//	mm_keys         [[{"type": "mm_key", "hash": digest, "start_offset": n}, ...], ...]       TensorRT-LLM
//	extra_keys      [[[identifier, offset], digest, ...], nil, ...]                           vLLM
//
// An identifier without an offset is an item only as a digest, and not if it is the
// adapter's name or, in the first block of a prompt, the salt (salt.go). Where in its
// block an item is does not matter. The first two fields win over the third.

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

// loneItem returns the number of an item that an extra key without an offset names,
// false for a key that is something else. lora and salt are nil where there is none.
func loneItem(p []byte, lora, salt *string) (uint64, bool) {
	if lora != nil && string(p) == *lora || salt != nil && string(p) == *salt {
		return 0, false
	}
	return digestNumber(p)
}

// itemInfos notes where a list of infos is, one a block, or nil. They wait until it
// is known how many blocks there are.
func (d *decoder) itemInfos(f *form) events.Reason {
	at := d.i
	switch k, _ := d.head(); k {
	case kNil: // TensorRT-LLM's do not undo Dynamo's
		return ""
	case kArray:
		f.infos = at
		d.i = at
		return d.ignore()
	}
	return events.BadEvent
}

// items returns the numbers of the items in each block, nil if there are none. It
// leaves the cursor anywhere in the event.
func (d *decoder) items(f *form, ev *events.Event) ([][]uint64, events.Reason) {
	blocks := len(ev.Hashes)
	if d.i = f.infos; f.infos == 0 {
		d.i = f.extra
	}
	var all []uint64 // of all blocks
	var of [][]uint64
	_, entries := d.head()
	for i, end := 0, min(int(entries), blocks); i < end; i++ {
		if i += d.nils(end - i); i == end {
			break
		}
		from, ok := len(all), true
		if f.infos == 0 {
			salt := ev.Salt
			if i > 0 || ev.HasParent && ev.Parent != 0 {
				salt = nil
			}
			all = d.extraItems(all, ev.LoraName, salt)
		} else if all, ok = d.infoItems(all); !ok {
			return nil, events.BadEvent
		}
		if n := len(all); n > from {
			if of == nil {
				of = make([][]uint64, blocks)
			}
			of[i] = all[from:n:n]
			slices.Sort(of[i])
		}
	}
	return of, ""
}

// extraItems appends the numbers of the items among the extra keys of a block. salt is
// nil behind the first block of a prompt.
func (d *decoder) extraItems(all []uint64, lora, salt *string) []uint64 {
	at := d.i
	k, n := d.head()
	if k != kArray {
		d.i = at
		d.skip(1)
		return all
	}
	for range n {
		at := d.i
		switch k, size := d.head(); {
		case k == kStr:
			if item, ok := loneItem(d.take(size), lora, salt); ok {
				all = append(all, item)
			}
		case k == kArray && size == 2:
			id := d.stringOrSkip()
			if offset, _ := d.head(); len(id) > 0 && (offset == kUint || offset == kInt) {
				all = append(all, itemNumber(id))
				d.offsets = true
				continue
			}
			fallthrough
		default:
			d.i = at
			d.skip(1)
		}
	}
	return all
}

// infoItems appends the numbers of the items that the info of a block lists; false
// if one has none. An info of another shape says nothing of items.
func (d *decoder) infoItems(all []uint64) ([]uint64, bool) {
	at := d.i
	switch k, n := d.head(); k {
	case kArray:
		return d.itemList(all, n)
	case kMap:
		for range n {
			ok := true
			if string(d.stringOrSkip()) != "mm_objects" {
				d.skip(1)
			} else if k, n := d.head(); k == kArray {
				all, ok = d.itemList(all, n)
			} else {
				ok = k == kNil
			}
			if !ok {
				return nil, false
			}
		}
		return all, true
	}
	d.i = at
	d.skip(1)
	return all, true
}

// itemList appends the numbers of n items, each a map.
func (d *decoder) itemList(all []uint64, n uint64) ([]uint64, bool) {
	for range n {
		k, keys := d.head()
		if k != kMap {
			return nil, false
		}
		item, named := uint64(0), false
		for range keys {
			key, at := d.stringOrSkip(), d.i
			k, n := d.head()
			switch {
			case string(key) == "mm_hash" && (k == kUint || k == kInt):
				item, named = n, true
			case string(key) == "hash" && k == kStr && n > 0:
				item, named = itemNumber(d.take(n)), true
			default:
				d.i = at
				d.skip(1)
			}
		}
		if !named {
			return nil, false
		}
		all = append(all, item)
	}
	return all, true
}
