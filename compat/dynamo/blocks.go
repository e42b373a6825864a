package dynamo

import (
	"bytes"
	"errors"
	"math/bits"
)

// dumpBlocks reads the list of blocks of an event. It is nearly all of a dump, and
// the way every indexer writes it is read here ten times faster than by reflection;
// the text around it, and lists written otherwise, are left to encoding/json.
type dumpBlocks struct {
	engine, clientHashes []uint64
	short                []byte
}

// errElsewhere says that the list that was cut out is not that of the event's blocks.
var errElsewhere = errors.New("another list than that of the blocks was read")

// cut reads the first list of blocks of a document and returns the document with an
// empty one in its place, or nil if there is none that is written as usual. Within a
// string there is none: quotes are escaped there.
//
//	"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null},...]
func (b *dumpBlocks) cut(raw []byte) []byte {
	const name = `"blocks":[`
	at := bytes.Index(raw, []byte(name))
	if at < 0 {
		return nil
	}
	at += len(name)
	b.engine, b.clientHashes = b.engine[:0], b.clientHashes[:0]
	rest := raw[at:]
	for more := true; more; {
		var engine, clientHash uint64
		ok := true
		pass := func(text string) {
			if ok = ok && len(rest) >= len(text) && string(rest[:len(text)]) == text; ok {
				rest = rest[len(text):]
			}
		}
		pass(`{"block_hash":`)
		engine, rest, ok = integer(rest, ok)
		pass(`,"tokens_hash":`)
		clientHash, rest, ok = integer(rest, ok)
		if ok && len(rest) > 0 && rest[0] == ',' {
			pass(`,"mm_extra_info":null`) // older dumps have none
		}
		pass(`}`)
		if !ok || len(rest) == 0 {
			return nil
		}
		b.engine, b.clientHashes = append(b.engine, engine), append(b.clientHashes, clientHash)
		switch rest[0] {
		case ',':
			rest = rest[1:]
		case ']':
			more = false
		default:
			return nil
		}
	}
	b.short = append(append(b.short[:0], raw[:at]...), rest...)
	return b.short
}

// integer reads an unsigned integer of 64 bits; more digits than JSON has, or a
// fraction, are not ok.
func integer(text []byte, ok bool) (n uint64, rest []byte, _ bool) {
	i := 0
	for ok && i < len(text) && text[i]-'0' <= 9 {
		over, low := bits.Mul64(n, 10)
		sum, carry := bits.Add64(low, uint64(text[i]-'0'), 0)
		if over != 0 || carry != 0 {
			return 0, text, false
		}
		n = sum
		i++
	}
	ok = ok && i > 0 && (text[0] != '0' || i == 1) && i < len(text) && (text[i] == ',' || text[i] == '}')
	return n, text[i:], ok
}
