package hash

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Blocks as CPython writes them in pickle protocol 5: a tuple of the parent's
// digest, the tuple of the tokens and the extra keys. With a look-ahead the extra keys are
// a tuple of themselves and the tokens behind the block. Everything but numbers and
// None is memorised, 94, behind itself.
//
//	80 05 | 95 len64 | 43 20 parent 94 | 28 4b01 4b02 4b03 4b04 74 94 | 4e | 87 94 2e
//	        frame      bytes             tuple of four or more          None  end
//
// The text is one frame, unless it is long: then a frame ends before the
// first value at which it has 64 KiB, and texts of that length are in none.

const (
	pickleProtocol = 5
	frameTarget    = 64 << 10 // bytes after which a frame ends
	frameLeast     = 4        // a shorter frame has no head
	frameHead      = 9

	opProtocol   = 0x80
	opFrame      = 0x95
	opMemoize    = 0x94
	opBytes8     = 'C'
	opText8      = 0x8c
	opText32     = 'X'
	opText64     = 0x8d
	opInt8       = 'K'
	opInt16      = 'M'
	opInt32      = 'J'
	opNone       = 'N'
	opMark       = '('
	opTuple      = 't'
	opEmptyTuple = ')'
	opTuple1     = 0x85 // opTuple2 and opTuple3 follow
	opStop       = '.'
)

// appendPickle writes a block into b, which is empty and comes back with what it was
// grown to. ahead are the tokens of its look-ahead. The extra keys are written already;
// they are given as well, for blocks that are longer than a frame.
func appendPickle(b, parent []byte, tokens, ahead []uint32, written []byte, extras []extraKey) []byte {
	b = append(b, opProtocol, pickleProtocol, opFrame, 0, 0, 0, 0, 0, 0, 0, 0, opBytes8, byte(len(parent)))
	b = append(b, parent...)
	b = append(b, opMemoize)
	if len(tokens) > 3 {
		b = append(b, opMark)
	}
	b = appendPickleTokens(b, tokens)
	b = appendTupleEnd(b, len(tokens))
	if len(ahead) > 2 {
		b = append(b, opMark)
	}
	b = append(b, written...)
	if len(ahead) > 0 {
		b = appendTupleEnd(appendPickleTokens(b, ahead), 1+len(ahead))
	}
	b = append(b, opTuple1+2, opMemoize, opStop)
	n := len(b) - 2 - frameHead
	if n < frameTarget {
		binary.LittleEndian.PutUint64(b[3:], uint64(n))
		return b
	}

	k := pickler{b: b[:0], framing: true}
	k.writeProtocol()
	k.beginValue()
	k.writeDigest(parent)
	k.beginValue()
	if len(tokens) > 3 {
		k.writeBytes(opMark)
	}
	k.writeTokens(tokens)
	k.writeTupleEnd(len(tokens))
	if len(ahead) == 0 {
		k.writeExtras(extras)
	} else {
		k.beginValue()
		if len(ahead) > 2 {
			k.writeBytes(opMark)
		}
		k.writeExtras(extras)
		k.writeTokens(ahead)
		k.writeTupleEnd(1 + len(ahead))
	}
	k.writeTupleEnd(3)
	return k.finishPickle()
}

// pickleWidths say how a number is written, by how many significant bits it has: the
// opcode in byte 0, the length with it in byte 1. Negative tokens have 32 bits.
var pickleWidths = func() (w [33]uint32) {
	for n := range w {
		switch {
		case n <= 8:
			w[n] = opInt8 | 2<<8
		case n <= 16:
			w[n] = opInt16 | 3<<8
		default:
			w[n] = opInt32 | 5<<8
		}
	}
	return w
}()

// appendPickleTokens appends tokens as signed numbers, the way appendCBORTokens does.
func appendPickleTokens(b []byte, tokens []uint32) []byte {
	at := len(b)
	b = slices.Grow(b, 5*len(tokens)+8)
	b = b[:cap(b)]
	for _, t := range tokens {
		w := pickleWidths[bits.Len32(t)]
		binary.LittleEndian.PutUint64(b[at:], uint64(t)<<8|uint64(w&0xff))
		at += int(w >> 8)
	}
	return b[:at]
}

// appendTupleEnd makes a tuple of the n values before it; behind opMark if there are
// more than three.
func appendTupleEnd(b []byte, n int) []byte {
	switch {
	case n == 0:
		return append(b, opEmptyTuple)
	case n <= 3:
		return append(b, opTuple1+byte(n-1), opMemoize)
	}
	return append(b, opTuple, opMemoize)
}

// pickler writes values in frames, or without if framing is false.
type pickler struct {
	b       []byte
	framing bool
	open    bool // a frame is, whose head is at frame
	frame   int
}

func (k *pickler) writeProtocol() { k.b = append(k.b, opProtocol, pickleProtocol) }

func (k *pickler) finishPickle() []byte {
	k.writeBytes(opStop)
	k.closeFrame()
	return k.b
}

// beginValue is called before every value: frames end there.
func (k *pickler) beginValue() {
	if k.open && len(k.b)-k.frame-frameHead >= frameTarget {
		k.closeFrame()
	}
	k.openFrame()
}

// openFrame sees to it that a frame is open.
func (k *pickler) openFrame() {
	if k.framing && !k.open {
		k.open, k.frame = true, len(k.b)
		k.b = append(k.b, opFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	}
}

// closeFrame ends the frame, if one is open.
func (k *pickler) closeFrame() {
	if !k.open {
		return
	}
	k.open = false
	body := k.frame + frameHead
	n := len(k.b) - body
	if n < frameLeast {
		k.b = append(k.b[:k.frame], k.b[body:]...)
		return
	}
	binary.LittleEndian.PutUint64(k.b[k.frame+1:], uint64(n))
}

func (k *pickler) writeBytes(bytes ...byte) {
	k.openFrame()
	k.b = append(k.b, bytes...)
}

func (k *pickler) writeDigest(v []byte) {
	k.writeBytes(opBytes8, byte(len(v)))
	k.b = append(k.b, v...)
	k.writeBytes(opMemoize)
}

func (k *pickler) writeText(s string) {
	k.beginValue()
	if len(s) >= frameTarget {
		k.closeFrame()
	}
	switch n := uint64(len(s)); {
	case n <= 0xff:
		k.b = append(k.b, opText8, byte(n))
	case n <= 0xffffffff:
		k.b = binary.LittleEndian.AppendUint32(append(k.b, opText32), uint32(n))
	default:
		k.b = binary.LittleEndian.AppendUint64(append(k.b, opText64), n)
	}
	k.b = append(k.b, s...)
	k.writeBytes(opMemoize)
}

// writeTokens writes each token as a value of its own.
func (k *pickler) writeTokens(tokens []uint32) {
	for i := range tokens {
		k.beginValue()
		k.b = appendPickleTokens(k.b, tokens[i:i+1])
	}
}

func (k *pickler) writeTupleEnd(n int) {
	k.openFrame()
	k.b = appendTupleEnd(k.b, n)
}

// writeExtras writes the extra keys of a block, at most two.
func (k *pickler) writeExtras(extras []extraKey) {
	k.beginValue()
	if len(extras) == 0 {
		k.writeBytes(opNone)
		return
	}
	for _, e := range extras {
		if e.tag == "" {
			k.writeText(e.text)
			continue
		}
		k.beginValue()
		k.writeText(e.tag)
		k.writeText(e.text)
		k.writeTupleEnd(2)
	}
	k.writeTupleEnd(len(extras))
}
